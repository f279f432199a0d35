//go:build unix && !linux

package boltqueue_test

import "errors"

func mountSmall(string) error { return errors.ErrUnsupported }

func fillDisk(string) error { return errors.ErrUnsupported }
