//go:build unix && !linux

package spool_test

import "errors"

func mountSmall(string) error { return errors.ErrUnsupported }

func fillDisk(string) error { return errors.ErrUnsupported }
