//go:build !linux

package boltqueue

import "os"

// syncData returns when f is on the disk.
func syncData(f *os.File) error { return f.Sync() }
