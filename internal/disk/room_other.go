//go:build !linux

package disk

import "errors"

func (d folder) Room() (total, free int64, err error) { return 0, 0, errors.ErrUnsupported }
