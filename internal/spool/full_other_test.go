//go:build !unix

package spool_test

// fullChild is never called. On this system, filling a disk would harm other programs.
func fullChild() error { return nil }
