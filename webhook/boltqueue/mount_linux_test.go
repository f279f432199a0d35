package boltqueue_test

import (
	"errors"
	"os"
	"os/exec"
	"syscall"
	"testing"
)

// mountSmall mounts a file system of 32 MB.
func mountSmall(path string) error {
	return syscall.Mount("tmpfs", path, "tmpfs", 0, "size=32m")
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

// TestDiskFullForReal is TestDiskFull on a real file system without a page to
// spare. It takes the right to mount: that of root, or of a user who may make
// namespaces. TestDiskFull takes neither.
func TestDiskFullForReal(t *testing.T) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), limitDir+"="+t.TempDir(), limitMount+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	if os.Geteuid() != 0 {
		cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
	out, err := cmd.CombinedOutput()
	if errors.Is(err, syscall.EPERM) || string(out) == "operation not permitted\n" {
		t.Logf("not permitted to mount: %v%s", err, out)
		return
	}
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	t.Logf("%s", out)
}
