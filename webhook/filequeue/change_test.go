package filequeue_test

import (
	"bytes"
	"testing"

	"github.com/hookferry/analytics/webhook/filequeue"
	"github.com/hookferry/analytics/webhook/store"
)

// The state record of a revived delivery is damaged. Change finds the delivery where it is, and discards
// it, instead of counting it as claimed.
func TestChangeOfRevivedDeliveryWithDamagedState(t *testing.T) {
	r := newRig(t, filequeue.Config{})
	defer func() { r.s.Close() }()
	r.settle(store.Bury, r.put("a", 100, true))
	var key string
	for d, err := range r.s.Dead(t.Context(), store.EndedFilter{}, "") {
		if key = d.Key; err != nil {
			t.Fatal(err)
		}
	}
	if n, err := r.s.Revive(t.Context(), key); n != 1 || err != nil {
		t.Fatalf("Revive = %d, %v; want 1", n, err)
	}
	if err := r.s.Close(); err != nil {
		t.Fatal(err)
	}
	name := r.latest()
	b := r.d.ReadFile(name)
	b[len(bytes.TrimRight(b, "\x00"))-1] ^= 1 // in the last record, which has the state
	r.d.WriteFile(name, b)
	r.reopen()
	n, held, err := r.s.Change(t.Context(), store.WaitingFilter{Destination: "a"}, store.Discarded)
	if n != 1 || held != 0 || err != nil {
		t.Errorf("Change = %d, %d claimed, %v; want 1 discarded, 0 claimed", n, held, err)
	}
}
