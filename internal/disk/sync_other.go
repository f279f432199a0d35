//go:build !linux

package disk

import "os"

// syncData returns when f is on the disk.
func syncData(f *os.File) error { return f.Sync() }
