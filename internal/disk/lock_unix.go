//go:build linux || darwin || freebsd || dragonfly || netbsd || openbsd || illumos

package disk

import (
	"os"
	"syscall"
)

// LockFile locks the file with this name until the returned file is closed or the process ends.
// The end of the lock does not remove the file.
func LockFile(name string) (*os.File, error) {
	f, err := OpenFile(name, os.O_RDWR|os.O_CREATE)
	if err != nil {
		return nil, err
	}
	for {
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err != syscall.EINTR {
			break
		}
	}
	if err != nil {
		f.Close()
		if err == syscall.EWOULDBLOCK {
			return nil, ErrLocked
		}
		return nil, &os.PathError{Op: "flock", Path: name, Err: err}
	}
	return f, nil
}
