//go:build unix

package disk

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

// OpenFile opens a regular file. A new file has the mode 0600. OpenFile does not follow a symbolic
// link: a user who can make a link in a folder must not choose which files outside of the folder
// are read or overwritten.
func OpenFile(name string, flag int) (*os.File, error) {
	// With O_NONBLOCK, the open of a pipe does not wait for another process.
	f, err := os.OpenFile(name, flag|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0o600)
	if err != nil {
		if info, lerr := os.Lstat(name); lerr == nil && info.Mode()&fs.ModeSymlink != 0 && !errors.Is(err, fs.ErrExist) {
			err = &os.PathError{Op: "open", Path: name, Err: errLink}
		}
		return nil, err
	}
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		f.Close()
		if err == nil {
			err = &os.PathError{Op: "open", Path: name, Err: errIrregular}
		}
		return nil, err
	}
	return f, nil
}

// CheckFolder returns an error that says what to do, if a user other than root and the user of the
// process can change the names in a folder. It allows a group to do so if it is the group of the
// process, or if the folder has the set-group-ID bit, as volumes of Kubernetes with fsGroup have.
func CheckFolder(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	s, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return nil
	}
	mode, user := info.Mode(), os.Geteuid()
	switch {
	case s.Uid != 0 && int(s.Uid) != user:
		return fmt.Errorf("the folder %s belongs to user %d, and this process runs as user %d; run it as user %[2]d, run 'chown -R %[3]d %[1]s', or name another folder", path, s.Uid, user)
	case mode&0o002 != 0:
		return fmt.Errorf("all users can write to the folder %s; look for files in it that you do not know, and run 'chmod go-w %[1]s', or name a folder in it, which is then made for this user alone", path)
	case mode&0o020 != 0 && mode&fs.ModeSetgid == 0 && int(s.Gid) != os.Getegid():
		return fmt.Errorf("the group %d can write to the folder %s; look for files in it that you do not know, and run 'chmod g-w %[2]s', or name another folder", s.Gid, path)
	}
	return nil
}
