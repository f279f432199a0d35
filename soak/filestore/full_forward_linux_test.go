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
	"github.com/hookferry/analytics/webhook/filequeue"
)

// A receiver notes what arrives, and answers nothing until open is called.
type receiver struct {
	*httptest.Server
	open func()
	more chan struct{} // has a value after something has arrived

	mu      sync.Mutex
	arrived map[string]int
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

// A sender forwards to a receiver, and notes what was accepted.
type sender struct {
	*webhook.Forwarder
	dir      string
	store    *filequeue.Store
	run      chan error
	accepted map[string]bool
	n        int // calls
}

func newSender(d disk, to *receiver) (*sender, error) {
	store, err := openStore(d.dir, filequeue.Config{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, err
	}
	f, err := webhook.New(webhook.Config{
		Store: store, MaxInFlight: 16, Timeout: time.Minute,
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

// forward makes 20 calls, all of which are accepted or none.
func (s *sender) forward(ctx context.Context) error {
	var es []event.Event
	for range 20 {
		s.n++
		es = append(es, event.Event{ID: fmt.Sprint(s.n), Type: "track", Body: make([]byte, 2000), Received: time.Now()})
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
		return fmt.Errorf("Forward on a full disk, after %d calls: %v, want ErrQueueFull", s.n, err)
	}
	return nil
}

// end shuts down, and finds nothing left in the store, and nothing wrong with it.
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
		return fmt.Errorf("after all has arrived the store has %+v, %w", r, err)
	}
	return nil
}

// forwardFull has the disk fill under a forwarder. Forward returns an error; what was
// accepted arrives, once; and once there is room, all goes on by itself.
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
	if err := s.forward(ctx); err != nil { // from here on there is a reserve
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
		return fmt.Errorf("nothing arrives; Stats() = %+v", s.Stats())
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
	// The store was not restarted: nothing is sent twice.
	different, again := r.counts()
	if again > 0 {
		return fmt.Errorf("%d deliveries arrived again", again)
	}
	fmt.Printf("%d calls until the disk was full, %d of them accepted; then %d refused and %d delivered before there was room; %d delivered in all, %d again\n",
		first, before, 20*refused, during, different, again)
	return nil
}

// fillItself has the store alone fill its disk, while the receiver does not answer. Once it does,
// all that was accepted arrives, though nobody makes room, and then calls are accepted again.
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
		return fmt.Errorf("Forward, after all has arrived: %w", err)
	}
	if err := r.await(ctx, s.accepted); err != nil {
		return err
	}
	if err := s.end(ctx); err != nil {
		return err
	}
	different, again := r.counts()
	if again > 0 {
		return fmt.Errorf("%d deliveries arrived again", again)
	}
	fmt.Printf("%d accepted until the disk was full, and all delivered without room; %d delivered in all\n", before, different)
	return nil
}
