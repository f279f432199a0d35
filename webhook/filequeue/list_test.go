package filequeue_test

import (
	"bytes"
	"testing"
	"time"

	"github.com/hookferry/analytics/webhook/filequeue"
	"github.com/hookferry/analytics/webhook/store"
)

// The state record of a fresh delivery, which was made due now, is damaged. Discard finds the delivery
// where it is, and discards it, instead of counting it as claimed.
func TestDiscardOfFreshDeliveryWithDamagedState(t *testing.T) {
	r := newRig(t, filequeue.Config{})
	defer func() { r.s.Close() }()
	later := store.Delivery{Destination: "a", ID: "1", Body: []byte("{}"), Due: r.s.Now().Add(time.Hour)}
	if err := r.s.Put(t.Context(), []store.Put{{Delivery: later}}, make([]store.Result, 1)); err != nil {
		t.Fatal(err)
	}
	if n, _, err := r.s.Retry(t.Context(), r.refs()...); n != 1 || err != nil {
		t.Fatalf("Retry = %d, %v; want 1", n, err)
	}
	if err := r.s.Close(); err != nil {
		t.Fatal(err)
	}
	name := r.latest()
	b := r.d.ReadFile(name)
	b[len(bytes.TrimRight(b, "\x00"))-1] ^= 1 // in the last record, which has the state
	r.d.WriteFile(name, b)
	r.reopen()
	n, held, err := r.s.Discard(t.Context(), r.refs()...)
	if n != 1 || held != 0 || err != nil {
		t.Errorf("Discard = %d, %d claimed, %v; want 1 discarded, 0 claimed", n, held, err)
	}
}

// refs returns the deliveries of the store.
func (r *rig) refs() (refs []store.Ref) {
	r.Helper()
	for d, err := range store.Records(r.Context(), r.s, store.Query{}) {
		if err != nil {
			r.Fatal(err)
		}
		refs = append(refs, d.Ref())
	}
	return refs
}
