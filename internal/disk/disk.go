// Package disk is the interface between a store and the machine: a folder of a file system, and the
// clock. For tests, package simdisk implements the interface with a simulated disk. There, a test
// can make each call fail, be done in part or be lost in a crash, and can set the clock.
package disk

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// ErrLocked says that this process or another one holds the lock.
var ErrLocked = errors.New("in use: this process or another one has it open")

// The errors of OpenFile.
var (
	errLink      = errors.New("it is a symbolic link, which is not followed; somebody else may have put it there; remove it, or put the file itself in its place")
	errIrregular = errors.New("it is not a regular file; somebody else may have put it there; remove it")
)

// A Disk is one folder. Names are the names of files in it, without a path. All methods may be
// called concurrently. Errors wrap the errors of the system, such as fs.ErrNotExist and
// syscall.ENOSPC.
type Disk interface {
	// Open opens a regular file for reading and writing. It does not follow a symbolic link.
	Open(name string) (File, error)
	// Create makes a new file that only its owner can read. It fails if the file exists.
	Create(name string) (File, error)
	// Rename gives a file another name. It replaces a file that already has the new name. Open files
	// stay open.
	Rename(from, to string) error
	// Remove removes a file. Its space is free once the file is closed.
	Remove(name string) error
	// List returns the regular files in the order of their names. It fails if there is a symbolic
	// link.
	List() ([]Info, error)
	// SyncNames makes all earlier calls of Create, Rename and Remove survive a loss of power.
	// File.Sync syncs the content of a file, but not its name.
	SyncNames() error
	// Lock locks the file with this name until the Closer is closed or the process ends. It
	// makes the file if there is none. It does not wait: it returns ErrLocked if the file is
	// locked.
	Lock(name string) (io.Closer, error)
	// Room returns how many bytes the file system has, and how many of them are free.
	Room() (total, free int64, err error)
	// Now returns the time by the machine's clock, which may be set forward or back.
	Now() time.Time
}

// A File is an open file. All methods but Close may be called concurrently.
type File interface {
	io.ReaderAt
	// WriteAt writes all of b or returns an error. Reads see the bytes at once. The bytes
	// survive a loss of power once Sync has returned nil.
	io.WriterAt
	// Sync makes earlier writes, and the size of the file, survive a loss of power. After an error,
	// each of the earlier writes may or may not survive, even if a later Sync succeeds.
	Sync() error
	// Truncate sets the size.
	Truncate(size int64) error
	Size() (int64, error)
	// Is returns nil if the open file still is the file with this name. Otherwise its error
	// wraps fs.ErrNotExist.
	Is(name string) error
	io.Closer
}

// Info describes a file.
type Info struct {
	Name string
	Size int64
}

// MakeFolder creates a missing folder for the owner alone, and makes it durable: it syncs the
// parent, and all folders above, which may be new, too. Above the parent, it stops at the first
// folder that this process may not read. It returns the error of CheckFolder.
func MakeFolder(dir string) error {
	if _, err := os.Stat(dir); err == nil {
		return CheckFolder(dir)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	full, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	parent := filepath.Dir(full)
	if err := SyncFolder(parent); err != nil {
		return err
	}
	for above := filepath.Dir(parent); above != filepath.Dir(above) && SyncFolder(above) == nil; {
		above = filepath.Dir(above)
	}
	return CheckFolder(dir)
}

// Folder returns a Disk for the folder path, which must exist.
func Folder(path string) Disk { return folder(path) }

type folder string

func (d folder) path(name string) string { return filepath.Join(string(d), name) }

func (d folder) Open(name string) (File, error) { return d.open(name, os.O_RDWR) }

func (d folder) Create(name string) (File, error) {
	return d.open(name, os.O_RDWR|os.O_CREATE|os.O_EXCL)
}

func (d folder) open(name string, flag int) (File, error) {
	f, err := OpenFile(d.path(name), flag)
	if err != nil {
		return nil, err
	}
	return &file{File: f, disk: d}, nil
}

func (d folder) Rename(from, to string) error { return os.Rename(d.path(from), d.path(to)) }
func (d folder) Remove(name string) error     { return os.Remove(d.path(name)) }
func (d folder) SyncNames() error             { return SyncFolder(string(d)) }
func (d folder) Now() time.Time               { return time.Now() }

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
		switch info.Mode().Type() {
		case fs.ModeSymlink:
			return nil, &os.PathError{Op: "open", Path: d.path(e.Name()), Err: errLink}
		case 0:
			files = append(files, Info{e.Name(), info.Size()})
		}
	}
	return files, nil
}

type file struct {
	*os.File
	disk folder
}

func (f *file) Sync() error { return SyncData(f.File) }

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
	named, err := os.Lstat(f.disk.path(name))
	if err == nil && !os.SameFile(mine, named) {
		err = &os.PathError{Op: "stat", Path: f.disk.path(name), Err: os.ErrNotExist}
	}
	return err
}
