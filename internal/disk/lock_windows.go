package disk

import (
	"os"
	"syscall"
)

// LockFile locks the file of that name until the result is closed or the process ends. It opens the
// file so that nobody can open it again. The file itself stays.
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
