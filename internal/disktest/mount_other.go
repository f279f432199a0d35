//go:build unix && !linux

package disktest

import "errors"

// Mount returns an error, because it works only on Linux.
func Mount(string, string) (fill, free func() error, err error) {
	return nil, nil, errors.ErrUnsupported
}
