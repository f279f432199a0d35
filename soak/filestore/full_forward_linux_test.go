package filestore_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync"
	"time"

	"github.com/hookferry/analytics/event"
	"github.com/hookferry/analytics/signature"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/boltqueue"
)

// forwardFull has the disk fill under a forwarder. Forward returns an error; what was
// accepted arrives, once; and once there is room, all goes on by itself.
func forwardFull(d disk) error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	const inFlight = 16
	var mu sync.Mutex
	arrived, again := map[string]int{}, 0
	more := make(chan struct{}, 1)
	full := make(chan struct{}) // closed when the disk is: then there are answers
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		<-full
		mu.Lock()
		defer mu.Unlock()
		id := r.Header.Get("Webhook-Id")
		if arrived[id]++; arrived[id] > 1 {
			again++
		}
		select {
		case more <- struct{}{}:
		default:
		}
	}))
	defer receiver.Close()
	release := sync.OnceFunc(func() { close(full) })
	defer release()
	store, err := openStore(d.dir, &boltqueue.Config{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	defer store.Close()
	f, err := webhook.New(webhook.Config{
		Store: webhook.FromQueue(store), MaxInFlight: inFlight, Timeout: time.Minute,
		Destinations: []webhook.Destination{{
			ID: "crm", StandardSecrets: []signature.Secret{signature.NewStandardSecret()}, Endpoints: []webhook.Endpoint{{URL: receiver.URL}},
		}},
	})
	if err != nil {
		return err
	}
	run := make(chan error, 1)
	go func() { run <- f.Run(context.Background()) }() // ended below
	accepted := map[string]bool{}
	n := 0
	forward := func() error {
		var es []event.Event
		for range 20 {
			n++
			es = append(es, event.Event{ID: fmt.Sprint(n), Type: "track", Body: make([]byte, 2000), Received: time.Now()})
		}
		if err := f.ForwardEvents(ctx, []string{"crm"}, es...); err != nil {
			return err
		}
		for _, e := range es {
			accepted[e.ID] = true
		}
		return nil
	}
	if err := d.fill(); err != nil {
		return err
	}
	for err = nil; err == nil && n < 100_000; {
		err = forward()
	}
	// bbolt does not wrap every cause.
	if err == nil || errors.Is(err, boltqueue.ErrDamaged) || ctx.Err() != nil {
		return fmt.Errorf("Forward on a full disk, after %d calls: %v", n, err)
	}
	first, before := n, len(accepted)
	// What is answered now cannot be settled.
	release()
	<-more
	refused := 0
	for range 100 {
		if forward() != nil {
			refused++
		}
	}
	mu.Lock()
	during := len(arrived)
	mu.Unlock()
	if err := d.free(); err != nil {
		return err
	}
	if err := forward(); err != nil {
		return fmt.Errorf("Forward with room again: %w", err)
	}
	for {
		mu.Lock()
		missing := 0
		for id := range accepted {
			if arrived[id] == 0 {
				missing++
			}
		}
		mu.Unlock()
		if missing == 0 {
			break
		}
		select {
		case <-more:
		case <-ctx.Done():
			return fmt.Errorf("%d of %d accepted deliveries have not arrived; Stats() = %+v", missing, len(accepted), f.Stats())
		}
	}
	if refused == 0 {
		return errors.New("the disk was not full")
	}
	if err := f.Shutdown(ctx); err != nil {
		return err
	}
	if err := <-run; err != nil {
		return err
	}
	counts, err := store.Count(ctx)
	if err != nil {
		return err
	}
	if counts.Waiting+counts.Dead > 0 {
		return fmt.Errorf("the store holds %+v after all has arrived", counts)
	}
	if err := store.Check(ctx); err != nil {
		return err
	}
	// The store was not restarted, and no lease ended: nothing is sent twice.
	if again > 0 {
		return fmt.Errorf("%d deliveries arrived again", again)
	}
	fmt.Printf("%d calls until the disk was full, %d of them accepted; then %d refused and %d delivered before there was room; %d delivered in all, %d again\n",
		first, before, 20*refused, during, len(arrived), again)
	return nil
}
