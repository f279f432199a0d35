//go:build !linux

package spool

import "os"

// reserve gives an empty file its size and its space on the disk.
func reserve(f *os.File, size int64) error { return fill(f, size) }
