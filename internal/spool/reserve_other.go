//go:build !linux

package spool

import "os"

// reserve sets the size of an empty file and reserves its space on the disk.
func reserve(f *os.File, size int64) error { return fill(f, size) }
