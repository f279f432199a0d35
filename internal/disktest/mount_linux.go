package disktest

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
)

// Apart has cmd run where it may mount. That takes the right to: that of root, or of a
// user who may make namespaces; else cmd fails with EPERM, at its start or in Mount.
func Apart(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	if os.Geteuid() != 0 {
		cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
}

// Mount mounts a file system of that size, as in "16m", and returns functions that fill
// it to the last page, and that make room again. It is for processes that are Apart.
func Mount(folder, size string) (fill, free func() error, err error) {
	if err := syscall.Mount("tmpfs", folder, "tmpfs", 0, "size="+size); err != nil {
		return nil, nil, err
	}
	name := filepath.Join(folder, "filler")
	return func() error { return writeFull(name) }, func() error { return os.Remove(name) }, nil
}

// writeFull writes a file until there is no room.
func writeFull(name string) error {
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
