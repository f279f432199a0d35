package store_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/hookferry/analytics/examples/store"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/queuetest"
)

func open(t testing.TB, dir string) webhook.Store {
	s, err := store.Open(store.Config{Path: filepath.Join(dir, "log"), NoSync: true})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestStore(t *testing.T) {
	queuetest.Run(t, open, queuetest.Traits{Durable: true, Bubble: true})
}

// A crash in the middle of a write leaves a part of a line at the end of the log. Open keeps the
// lines before it and drops the part, so that the next write begins a new line.
func TestOpenDropsAPartialLastLine(t *testing.T) {
	dir := t.TempDir()
	put := func(id string) {
		s := open(t, dir)
		defer s.Close()
		out := make([]webhook.Result, 1)
		if err := s.Put(t.Context(), []webhook.Put{{Delivery: webhook.Delivery{Destination: "a", ID: id, Due: s.Now()}}}, out); err != nil || !out[0].Stored {
			t.Fatalf("Put of %q = %v, %v", id, out, err)
		}
	}
	put("1")
	put("2")
	log, err := os.ReadFile(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "log"), log[:len(log)-10], 0o600); err != nil {
		t.Fatal(err)
	}
	put("2") // its line was cut off
	put("3")
	s := open(t, dir)
	defer s.Close()
	if c, err := s.Count(t.Context()); err != nil || c.Waiting != 3 {
		t.Errorf("Count = %+v, %v, want 3 waiting deliveries", c, err)
	}
}
