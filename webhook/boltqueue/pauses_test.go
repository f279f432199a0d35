package boltqueue

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// A pause that SetPaused returned is there after the process was killed, and in the
// store that Compact or Rescue leaves.
func TestPausesAreKept(t *testing.T) {
	dir := t.TempDir()
	path, killed, rescued := filepath.Join(dir, "queue.db"), filepath.Join(dir, "killed.db"), filepath.Join(dir, "rescued.db")
	q, err := Open(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, destination := range []string{"crm", "warehouse"} {
		if err := q.SetPaused(t.Context(), destination, true); err != nil {
			t.Fatal(err)
		}
	}
	if err := q.SetPaused(t.Context(), "warehouse", false); err != nil {
		t.Fatal(err)
	}
	want, err := q.Paused(t.Context())
	if _, ok := want["crm"]; len(want) != 1 || !ok || err != nil {
		t.Fatalf("Paused = %v, %v, want crm", want, err)
	}
	for _, end := range []string{"", ".journal", ".journal2"} {
		b, err := os.ReadFile(path + end)
		if err == nil {
			err = os.WriteFile(killed+end, b, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := q.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := Rescue(killed, rescued); err != nil {
		t.Fatal(err)
	}
	if _, _, err := Compact(path); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{killed, rescued, path} {
		q, err := Open(path, nil)
		if err != nil {
			t.Fatal(err)
		}
		got, err := q.Paused(context.Background())
		if err != nil {
			t.Errorf("%s: %v", filepath.Base(path), err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got)\n%s", filepath.Base(path), diff)
		}
		if since := got["crm"]; time.Since(since) < 0 {
			t.Errorf("%s: paused since %v", filepath.Base(path), since)
		}
		if err := q.Close(); err != nil {
			t.Error(err)
		}
	}
}
