//go:build !linux

package disk

import "os"

// SyncData makes f survive a loss of power.
func SyncData(f *os.File) error { return f.Sync() }
