//go:build unix && !linux

package disktest

import "errors"

// Mount returns an error: it is for Linux.
func Mount(string, string) (fill, free func() error, err error) {
	return nil, nil, errors.ErrUnsupported
}
