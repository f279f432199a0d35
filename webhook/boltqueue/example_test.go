package boltqueue_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/boltqueue"
)

// What was put is there when the file is opened again.
func ExampleOpen() {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	ctx := context.Background()
	path := filepath.Join(dir, "hookferry.db")

	q, err := boltqueue.Open(path, nil)
	if err != nil {
		panic(err)
	}
	_, err = q.Put(ctx, webhook.Delivery{Destination: "crm", ID: "message-1", Body: []byte("{}"), Due: time.Now()})
	fmt.Println("put:", err)
	_, err = boltqueue.Open(path, &boltqueue.Config{LockTimeout: time.Millisecond})
	fmt.Println("locked:", errors.Is(err, boltqueue.ErrLocked))
	q.Close()

	q, err = boltqueue.Open(path, &boltqueue.Config{MaxBytes: 10 << 30})
	if err != nil {
		panic(err)
	}
	defer q.Close()
	ds, _, err := q.Lease(ctx, webhook.LeaseRequest{Max: 10, Until: time.Now().Add(time.Minute)}, nil)
	fmt.Println("leased:", len(ds), ds[0].ID, err)
	fmt.Println("check:", q.Check(ctx))
	// Output:
	// put: <nil>
	// locked: true
	// leased: 1 message-1 <nil>
	// check: <nil>
}
