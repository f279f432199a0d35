package spool_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/hookferry/analytics/internal/spool"
)

// Fill reserves space by writing zeros. It is for systems without a call that reserves space.
func TestFillWritesZeros(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "file"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := spool.Fill(f, 100_000); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(f.Name())
	if err != nil || !bytes.Equal(b, make([]byte, 100_000)) {
		t.Errorf("the file has %d bytes, %v, want 100,000 zeros", len(b), err)
	}
}

// If making a file was interrupted, the file has only zeros. Open removes it.
func TestOpenRemovesFilesThatHaveOnlyZeros(t *testing.T) {
	for _, size := range []int{0, 1, 127, 128, 4096} {
		path := t.TempDir()
		if err := os.WriteFile(filepath.Join(path, "segment-00000001"), make([]byte, size), 0o600); err != nil {
			t.Fatal(err)
		}
		_, backlog := open(t, path, small())
		equal(t, "segments", len(backlog), 0)
		equal(t, "files", files(t, path), []string(nil))
	}
}
