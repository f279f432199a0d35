//go:build !unix

package spool_test

// fullChild is not used: there is no disk to fill without harm to others.
func fullChild() error { return nil }
