//go:build !unix

package spool

// syncFolder does nothing where folders are not files.
func syncFolder(string) error { return nil }
