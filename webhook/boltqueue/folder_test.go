package boltqueue

import (
	"errors"
	"io/fs"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
)

func TestSyncFolder(t *testing.T) {
	defer SetSyncing(syncing)
	SetSyncing(true)
	if err := syncFolder(t.TempDir()); err != nil {
		t.Errorf("a folder: %v", err)
	}
	if err := syncFolder(filepath.Join(t.TempDir(), "none")); !errors.Is(err, fs.ErrNotExist) && runtime.GOOS != "windows" {
		t.Errorf("a folder that is not there: %v, want %v", err, fs.ErrNotExist)
	}
}

func TestFolderError(t *testing.T) {
	for _, tt := range []struct {
		name string
		err  error
		want error
	}{
		{"synced", nil, nil},
		{"no such operation on folders", syscall.EINVAL, nil},
		{"no such operation on the file system", syscall.ENOTSUP, nil},
		{"the disk fails", syscall.EIO, syscall.EIO},
		{"the disk is full", syscall.ENOSPC, syscall.ENOSPC},
	} {
		err := tt.err
		if err != nil {
			err = &fs.PathError{Op: "sync", Path: "data", Err: err}
		}
		if got := folderError(err); !errors.Is(got, tt.want) {
			t.Errorf("%s: folderError(%v) = %v, want %v", tt.name, err, got, tt.want)
		}
	}
}
