package disktest

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
)

// Apart gives cmd a mount namespace of its own, so that cmd can mount file systems. Only root, or a
// user who may make namespaces, can do so. For other users cmd fails with EPERM, at its start or in
// Mount.
func Apart(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	if os.Geteuid() != 0 {
		cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
}

// Mount mounts a file system of a size such as "16m". The returned function fill fills the file
// system to the last page, and the function free frees the space again. Only a process that Apart
// has prepared can call Mount.
func Mount(folder, size string) (fill, free func() error, err error) {
	if err := syscall.Mount("tmpfs", folder, "tmpfs", 0, "size="+size); err != nil {
		return nil, nil, err
	}
	name := filepath.Join(folder, "filler")
	return func() error { return writeFull(name) }, func() error { return os.Remove(name) }, nil
}

// writeFull writes a file until there is no space.
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
