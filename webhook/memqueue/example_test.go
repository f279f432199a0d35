package memqueue_test

import (
	"context"
	"fmt"

	"github.com/hookferry/analytics/webhook/memqueue"
	"github.com/hookferry/analytics/webhook/store"
)

// The life of a delivery in a store. A Forwarder makes these calls; the example is for authors of
// stores.
func Example() {
	ctx := context.Background()
	s, err := memqueue.Open(memqueue.Config{MaxBytes: 64 << 20})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer s.Close()

	d := store.Delivery{Destination: "crm", ID: "message-1", Type: "track", Body: []byte(`{"type":"track"}`), Due: s.Now()}
	puts := []store.Put{{Delivery: d}, {Delivery: d}} // the second is a repeat
	results := make([]store.Result, len(puts))
	err = s.Put(ctx, puts, results)
	fmt.Println("stored", results[0].Stored, results[1].Stored, err)

	wants := []store.Want{{Destination: "crm", Max: 10}}
	ds, err := s.Fetch(ctx, wants, 1<<20, nil)
	fmt.Println("fetched", len(ds), ds[0].ID, err)

	n, err := s.Settle(ctx, []store.Settlement{{Verdict: store.Done, Delivery: ds[0]}})
	counts, _ := s.Count(ctx)
	fmt.Println("settled", n, "left", counts.Waiting, err)
	// Output:
	// stored true false <nil>
	// fetched 1 message-1 <nil>
	// settled 1 left 0 <nil>
}
