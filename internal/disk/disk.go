// Package disk is what a store needs of a folder of a file system: few calls, all of which
// a simulated disk can fail, tear or forget; see package simdisk.
package disk

import (
	"errors"
	"io"
	"os"
	"path/filepath"
)

// ErrLocked says that the lock is held already, by this process or another.
var ErrLocked = errors.New("in use by another process")

// A Disk is one folder. Names are those of files in it, without any path. All methods may be
// called concurrently. Errors wrap those of the system, such as fs.ErrNotExist and
// syscall.ENOSPC.
type Disk interface {
	// Open opens a file for reading and writing.
	Open(name string) (File, error)
	// Create makes a file that is not there, for its owner alone.
	Create(name string) (File, error)
	// Rename gives a file another name, and replaces what had it. A file that is open
	// stays open.
	Rename(from, to string) error
	// Remove removes a file. Its space is free once it is closed, too.
	Remove(name string) error
	// List returns the files, in the order of their names.
	List() ([]Info, error)
	// SyncNames returns when all that Create, Rename and Remove have done would survive a
	// loss of power. A Sync of a file does not say so of its name.
	SyncNames() error
	// Lock makes the file of that name if need be and locks it, until the Closer is
	// closed or the process ends. It returns ErrLocked at once if it is locked.
	Lock(name string) (io.Closer, error)
	// Room returns how many bytes the file system has, and how many of them are free.
	Room() (total, free int64, err error)
}

// A File is an open file. All methods but Close may be called concurrently.
type File interface {
	io.ReaderAt
	// WriteAt writes all of b or returns an error. Other handles and reads see it at once;
	// it survives a loss of power once Sync has returned nil.
	io.WriterAt
	// Sync returns when what was written before it, and the size, are on the disk. After an
	// error it is unknown which of the writes before will be, even if a later Sync succeeds.
	Sync() error
	// Truncate sets the size.
	Truncate(size int64) error
	Size() (int64, error)
	// Is returns an error that wraps fs.ErrNotExist unless this is the file of that name.
	Is(name string) error
	io.Closer
}

// Info describes a file.
type Info struct {
	Name string
	Size int64
}

// Folder returns the Disk that is the folder path, which exists.
func Folder(path string) Disk { return folder(path) }

type folder string

func (d folder) path(name string) string { return filepath.Join(string(d), name) }

func (d folder) Open(name string) (File, error) { return d.open(name, os.O_RDWR) }

func (d folder) Create(name string) (File, error) {
	return d.open(name, os.O_RDWR|os.O_CREATE|os.O_EXCL)
}

func (d folder) open(name string, flag int) (File, error) {
	f, err := os.OpenFile(d.path(name), flag, 0o600)
	if err != nil {
		return nil, err
	}
	return &file{File: f, disk: d}, nil
}

func (d folder) Rename(from, to string) error { return os.Rename(d.path(from), d.path(to)) }
func (d folder) Remove(name string) error     { return os.Remove(d.path(name)) }
func (d folder) SyncNames() error             { return SyncFolder(string(d)) }

func (d folder) Lock(name string) (io.Closer, error) {
	f, err := LockFile(d.path(name))
	if err != nil {
		return nil, err
	}
	return f, nil
}

func (d folder) List() ([]Info, error) {
	entries, err := os.ReadDir(string(d))
	if err != nil {
		return nil, err
	}
	var files []Info
	for _, e := range entries {
		info, err := e.Info()
		if errors.Is(err, os.ErrNotExist) {
			continue // removed meanwhile
		}
		if err != nil {
			return nil, err
		}
		if info.Mode().IsRegular() {
			files = append(files, Info{e.Name(), info.Size()})
		}
	}
	return files, nil
}

type file struct {
	*os.File
	disk folder
}

func (f *file) Sync() error { return syncData(f.File) }

func (f *file) Size() (int64, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

func (f *file) Is(name string) error {
	mine, err := f.Stat()
	if err != nil {
		return err
	}
	named, err := os.Stat(f.disk.path(name))
	if err == nil && !os.SameFile(mine, named) {
		err = &os.PathError{Op: "stat", Path: f.disk.path(name), Err: os.ErrNotExist}
	}
	return err
}
