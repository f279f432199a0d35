//go:build !linux && !darwin && !freebsd && !windows

package server

import "errors"

// diskFree is for systems that tell how much of a disk is free.
func diskFree(string) (int64, error) { return 0, errors.ErrUnsupported }
