package spool_test

import (
	"errors"
	"os"
	"syscall"
	"testing"
)

// mountSmall mounts a file system with room for two segments and not for three.
func mountSmall(path string) error {
	return syscall.Mount("tmpfs", path, "tmpfs", 0, "size=1200k")
}

// fillDisk writes a file until there is no room.
func fillDisk(name string) error {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	for page := make([]byte, 4096); err == nil; {
		_, err = f.Write(page)
	}
	if errors.Is(err, syscall.ENOSPC) {
		return nil
	}
	return err
}

// TestFullDisk fills a real file system to the last page, where to touch a page
// without space would kill the process. It takes the right to mount: that of
// root, or of a user who may make namespaces. TestFileLimit takes neither.
func TestFullDisk(t *testing.T) {
	cmd := child("full", t.TempDir(), fullMount+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	if os.Geteuid() != 0 {
		cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
	out, err := cmd.Output()
	if errors.Is(err, syscall.EPERM) || string(out) == "operation not permitted\n" {
		t.Logf("not permitted to mount: %v%s", err, out)
		return
	}
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
