package disk

import (
	"os"
	"syscall"
)

// LockFile locks the file with this name until the returned file is closed or the process ends.
// Until then, no process can open the file again. The end of the lock does not remove the file.
func LockFile(name string) (*os.File, error) {
	path, err := syscall.UTF16PtrFromString(name)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: name, Err: err}
	}
	const (
		alone            = 0
		sharingViolation = syscall.Errno(32) // winerror.h, ERROR_SHARING_VIOLATION
	)
	h, err := syscall.CreateFile(path, syscall.GENERIC_READ|syscall.GENERIC_WRITE, alone, nil,
		syscall.OPEN_ALWAYS, syscall.FILE_ATTRIBUTE_NORMAL, 0)
	switch err {
	case nil:
		return os.NewFile(uintptr(h), name), nil
	case sharingViolation:
		return nil, ErrLocked
	}
	return nil, &os.PathError{Op: "open", Path: name, Err: err}
}
