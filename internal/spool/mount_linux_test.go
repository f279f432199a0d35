package spool_test

import (
	"errors"
	"syscall"
	"testing"

	"github.com/hookferry/analytics/internal/disktest"
	"github.com/hookferry/analytics/internal/soakenv"
)

// TestFullDisk fills a real file system to the last page. If the spool did not reserve space, a
// write to a mapped page would then kill the process. The test needs the right to mount: it runs
// as root, or as a user who may make namespaces. TestFileLimit needs no rights.
func TestFullDisk(t *testing.T) {
	soakenv.Long(t, "spool-disk")
	cmd := child("full", t.TempDir(), fullMount+"=1")
	disktest.Apart(cmd)
	out, err := cmd.CombinedOutput()
	if errors.Is(err, syscall.EPERM) || string(out) == "operation not permitted\n" {
		t.Logf("not permitted to mount: %v%s", err, out)
		return
	}
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
