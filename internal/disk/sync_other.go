//go:build !linux

package disk

import "os"

// syncData makes f survive a loss of power.
func syncData(f *os.File) error { return f.Sync() }
