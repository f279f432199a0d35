package random

import "testing"

// Replace replaces the source of all numbers until it is undone.
func TestReplace(t *testing.T) {
	next := uint64(0)
	undo := Replace(func() uint64 { next++; return next })
	if got := Uint64(); got != 1 {
		t.Errorf("got %d, want 1", got)
	}
	if N(5); next < 2 {
		t.Error("N has not used the source")
	}
	undo()
	if Uint64(); next > 2 {
		t.Error("the source is used after undo")
	}
	for range 1000 {
		if got := N(5); got < 0 || got > 4 {
			t.Fatalf("got %d, want 0 to 4", got)
		}
	}
}
