package filequeue_test

import (
	"bytes"
	"testing"
	"time"

	"github.com/hookferry/analytics/webhook/filequeue"
	"github.com/hookferry/analytics/webhook/store"
)

// The state record of a fresh delivery, which was made due now, is damaged. Change finds the delivery
// where it is, and discards it, instead of counting it as claimed.
func TestChangeOfFreshDeliveryWithDamagedState(t *testing.T) {
	r := newRig(t, filequeue.Config{})
	defer func() { r.s.Close() }()
	later := store.Delivery{Destination: "a", ID: "1", Body: []byte("{}"), Due: r.s.Now().Add(time.Hour)}
	if err := r.s.Put(t.Context(), []store.Put{{Delivery: later}}, make([]store.Result, 1)); err != nil {
		t.Fatal(err)
	}
	if n, _, err := r.s.Change(t.Context(), store.WaitingFilter{Destination: "a"}, store.DueNow); n != 1 || err != nil {
		t.Fatalf("Change = %d, %v; want 1", n, err)
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
