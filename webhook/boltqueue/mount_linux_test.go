package boltqueue_test

import (
	"errors"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/hookferry/analytics/internal/disktest"
)

// TestDiskFullForReal is TestDiskFull on a real file system without a page to
// spare. It takes the right to mount: that of root, or of a user who may make
// namespaces. TestDiskFull takes neither.
func TestDiskFullForReal(t *testing.T) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), limitDir+"="+t.TempDir(), limitMount+"=1")
	disktest.Apart(cmd)
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
