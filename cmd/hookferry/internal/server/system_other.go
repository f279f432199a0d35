//go:build !linux && !darwin && !freebsd && !windows

package server

import "errors"

// diskFree and fileLimit know nothing on these systems.
func diskFree(string) (int64, error)    { return 0, errors.ErrUnsupported }
func fileLimit() (n uint64, known bool) { return 0, false }
