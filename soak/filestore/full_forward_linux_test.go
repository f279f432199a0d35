package filestore_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"time"

	"github.com/hookferry/analytics/event"
	"github.com/hookferry/analytics/signature"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/filequeue"
)

// A receiver records which deliveries arrive. It does not answer until open is called.
type receiver struct {
	*httptest.Server
	open func()
	more chan struct{} // has a value after a delivery has arrived

	mu      sync.Mutex
	arrived map[string]int // how often, by id
}

func newReceiver() *receiver {
	opened := make(chan struct{})
	r := &receiver{open: sync.OnceFunc(func() { close(opened) }), more: make(chan struct{}, 1), arrived: make(map[string]int)}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		io.Copy(io.Discard, req.Body)
		<-opened
		r.mu.Lock()
		defer r.mu.Unlock()
		r.arrived[req.Header.Get("Webhook-Id")]++
		select {
		case r.more <- struct{}{}:
		default:
		}
	}))
	return r
}

// counts returns how many different deliveries have arrived, and how many arrivals were repeated.
func (r *receiver) counts() (different, again int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, n := range r.arrived {
		again += n - 1
	}
	return len(r.arrived), again
}

// await waits until all of ids have arrived.
func (r *receiver) await(ctx context.Context, ids map[string]bool) error {
	for {
		missing := 0
		r.mu.Lock()
		for id := range ids {
			if r.arrived[id] == 0 {
				missing++
			}
		}
		r.mu.Unlock()
		if missing == 0 {
			return nil
		}
		select {
		case <-r.more:
		case <-ctx.Done():
			return fmt.Errorf("%d of %d accepted deliveries have not arrived", missing, len(ids))
		}
	}
}

// A sender forwards events to a receiver, and records which ones were accepted.
type sender struct {
	*webhook.Forwarder
	dir      string
	store    *filequeue.Store
	run      chan error
	accepted map[string]bool
	n        int // how many events were forwarded
}

func newSender(d disk, to *receiver) (*sender, error) {
	store, err := openStore(d.dir, filequeue.Config{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, err
	}
	f, err := webhook.New(webhook.Config{
		Store: store, MaxInFlight: 16, Retries: &webhook.Retries{Timeout: 30 * time.Second},
		Destinations: []webhook.Destination{{
			ID: "crm", StandardSecrets: []signature.Secret{signature.NewStandardSecret()}, Endpoints: []webhook.Endpoint{{URL: to.URL}},
		}},
	})
	if err != nil {
		return nil, errors.Join(err, store.Close())
	}
	s := &sender{Forwarder: f, dir: d.dir, store: store, run: make(chan error, 1), accepted: make(map[string]bool)}
	go func() { s.run <- f.Run(context.Background()) }() // end waits for it
	return s, nil
}

// forward forwards 20 events in one call, so that either all or none are accepted.
func (s *sender) forward(ctx context.Context) error {
	var es []event.Event
	for range 20 {
		s.n++
		es = append(es, event.Event{ID: fmt.Sprint(s.n), Type: "track", Body: fmt.Appendf(nil, `{"x":"%s"}`, strings.Repeat("x", 1990)), Received: time.Now()})
	}
	if err := s.ForwardEvents(ctx, []string{"crm"}, es...); err != nil {
		return err
	}
	for _, e := range es {
		s.accepted[e.ID] = true
	}
	return nil
}

// fill forwards until the disk is full.
func (s *sender) fill(ctx context.Context) (err error) {
	for err == nil && s.n < 100_000 {
		err = s.forward(ctx)
	}
	if !errors.Is(err, webhook.ErrQueueFull) {
		return fmt.Errorf("Forward on a full disk, after %d events = %v, want ErrQueueFull", s.n, err)
	}
	return nil
}

// end shuts down. The store must be empty and undamaged then.
func (s *sender) end(ctx context.Context) error {
	if err := s.Shutdown(ctx); err != nil {
		return err
	}
	if err := <-s.run; err != nil {
		return err
	}
	if err := s.store.Close(); err != nil {
		return err
	}
	if r, err := checkStore(s.dir); err != nil || r.Waiting+r.Dead > 0 {
		return fmt.Errorf("Check after all deliveries have arrived = %+v, %w; want an empty store", r, err)
	}
	return nil
}

// forwardFull fills the disk under a forwarder. Forward returns an error, and each accepted
// delivery arrives once. When there is room, the forwarder accepts events again by itself.
func forwardFull(d disk) error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	r := newReceiver()
	defer r.Close()
	defer r.open()
	s, err := newSender(d, r)
	if err != nil {
		return err
	}
	if err := s.forward(ctx); err != nil { // now the store has its reserve
		return err
	}
	if err := d.fill(); err != nil {
		return err
	}
	if err := s.fill(ctx); err != nil {
		return err
	}
	first, before := s.n, len(s.accepted)
	r.open()
	select {
	case <-r.more:
	case <-ctx.Done():
		return fmt.Errorf("no delivery arrives on a full disk; Stats() = %+v", s.Stats())
	}
	refused := 0
	for range 100 {
		if s.forward(ctx) != nil {
			refused++
		}
	}
	during, _ := r.counts()
	if err := d.free(); err != nil {
		return err
	}
	if err := onceThereIsRoom(func() error { return s.forward(ctx) }); err != nil {
		return fmt.Errorf("Forward with room again: %w", err)
	}
	if err := r.await(ctx, s.accepted); err != nil {
		return fmt.Errorf("%w; Stats() = %+v", err, s.Stats())
	}
	if err := s.end(ctx); err != nil {
		return err
	}
	// The process was not restarted, so no delivery may arrive twice.
	different, again := r.counts()
	if again > 0 {
		return fmt.Errorf("%d deliveries arrived again, want 0", again)
	}
	fmt.Printf("%d calls until the disk was full, %d of them accepted; then %d refused and %d delivered before there was room; %d delivered in all, %d again\n",
		first, before, 20*refused, during, different, again)
	return nil
}

// fillItself lets the store alone fill its disk, while the receiver does not answer. When the
// receiver answers, all accepted deliveries arrive, although the disk has no other room. Then the
// forwarder accepts events again.
func fillItself(d disk) error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	r := newReceiver()
	defer r.Close()
	defer r.open()
	s, err := newSender(d, r)
	if err != nil {
		return err
	}
	if err := s.fill(ctx); err != nil {
		return err
	}
	before := len(s.accepted)
	r.open()
	if err := r.await(ctx, s.accepted); err != nil {
		return fmt.Errorf("%w; Stats() = %+v", err, s.Stats())
	}
	if err := onceThereIsRoom(func() error { return s.forward(ctx) }); err != nil {
		return fmt.Errorf("Forward after all deliveries have arrived: %w", err)
	}
	if err := r.await(ctx, s.accepted); err != nil {
		return err
	}
	if err := s.end(ctx); err != nil {
		return err
	}
	different, again := r.counts()
	if again > 0 {
		return fmt.Errorf("%d deliveries arrived again, want 0", again)
	}
	fmt.Printf("%d accepted until the disk was full, and all delivered without room; %d delivered in all\n", before, different)
	return nil
}
