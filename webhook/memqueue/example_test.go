package memqueue_test

import (
	"context"
	"fmt"
	"time"

	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/memqueue"
)

// A Forwarder does all of this; it is shown for those who write stores.
func Example() {
	ctx := context.Background()
	q := memqueue.New(memqueue.Config{MaxBytes: 64 << 20})
	defer q.Close()

	d := webhook.Delivery{Destination: "crm", ID: "message-1", Type: "track", Body: []byte(`{"type":"track"}`), Due: time.Now()}
	stored, err := q.Put(ctx, d, d) // the second is a repeat
	fmt.Println("stored", stored, err)

	ds, _, err := q.Lease(ctx, webhook.LeaseRequest{Max: 10, Until: time.Now().Add(time.Minute)}, nil)
	fmt.Println("leased", len(ds), ds[0].ID, err)

	err = q.Settle(ctx, webhook.Settlement{Verdict: webhook.Done, Delivery: ds[0]})
	counts, _ := q.Count(ctx)
	fmt.Println("left", counts.Waiting, err)
	// Output:
	// stored 1 <nil>
	// leased 1 message-1 <nil>
	// left 0 <nil>
}
