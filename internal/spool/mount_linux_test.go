package spool_test

import (
	"errors"
	"syscall"
	"testing"

	"github.com/hookferry/analytics/internal/disktest"
)

// TestFullDisk fills a real file system to the last page, where to touch a page
// without space would kill the process. It takes the right to mount: that of
// root, or of a user who may make namespaces. TestFileLimit takes neither.
func TestFullDisk(t *testing.T) {
	cmd := child("full", t.TempDir(), fullMount+"=1")
	disktest.Apart(cmd)
	out, err := cmd.Output()
	if errors.Is(err, syscall.EPERM) || string(out) == "operation not permitted\n" {
		t.Logf("not permitted to mount: %v%s", err, out)
		return
	}
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
