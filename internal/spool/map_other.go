//go:build !(linux || darwin || freebsd || dragonfly)

package spool

import (
	"errors"
	"os"
)

// canMap is false on systems where the package does not map files, but writes each
// change to the file.
const canMap = false

func mapFile(*os.File, int) ([]byte, error) { return nil, errors.ErrUnsupported }

func unmap([]byte) error { return errors.ErrUnsupported }

func syncMapping(*os.File, []byte) error { return errors.ErrUnsupported }
