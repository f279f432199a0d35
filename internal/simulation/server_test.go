package simulation

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/hookferry/analytics/collector"
	"github.com/hookferry/analytics/internal/simdisk"
	"github.com/hookferry/analytics/webhook"
)

// A server is one life of the service: a store on a disk, the forwarder and the collector.
type server struct {
	disk      *simdisk.Disk
	store     webhook.Store
	forwarder *webhook.Forwarder
	handler   http.Handler
	ran       chan error
}

// start opens the store and starts to deliver. It returns the errors of the disk.
func (w *world) start() error {
	store, err := w.open(w.disk)
	if err != nil {
		return err
	}
	s := &server{disk: w.disk, store: store, ran: make(chan error, 1)}
	s.forwarder, err = webhook.New(webhook.Config{
		Store:           store,
		Destinations:    w.destinations,
		DialContext:     w.network.DialContext,
		TLSClientConfig: w.network.TLSClientConfig(),
		MaxInFlight:     16,
		Logger:          slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return fmt.Errorf("the forwarder: %w", err)
	}
	var ids []string
	for _, d := range w.destinations {
		ids = append(ids, d.ID)
	}
	s.handler, err = collector.New(collector.Config{
		Forwarder: s.forwarder,
		Sources:   collector.Keys(map[string]collector.Source{"key": {Name: "shop", Destinations: ids}}),
	})
	if err != nil {
		return fmt.Errorf("the collector: %w", err)
	}
	go func() { s.ran <- s.forwarder.Run(context.Background()) }() // ended by stop
	w.server.Store(s)
	return nil
}

// stop ends the server: in order, or as if its process ended if its disk has crashed.
func (w *world) stop() error {
	s := w.server.Swap(nil)
	if s == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if s.disk.Crashed() {
		cancel()
	}
	stopped := s.forwarder.Shutdown(ctx)
	ran := <-s.ran
	closed := s.store.Close()
	if s.disk.Crashed() || w.failing { // what it could not settle comes again
		w.ledger.crash()
		return nil
	}
	for _, err := range []error{stopped, ran, closed} {
		if err != nil {
			return fmt.Errorf("a stop in order: %w", err)
		}
	}
	return nil
}

// restart ends the server if it runs, and starts it on what its disk has left. If the disk fails the
// start, a later event tries again.
func (w *world) restart(loss simdisk.Loss) error {
	if err := w.stop(); err != nil {
		return err
	}
	if w.disk.Crashed() {
		w.disk = w.disk.Reboot(loss)
		w.disk.SetCapacity(w.capacity)
		w.disk.OnOp(w.fault)
	}
	err := w.start()
	if err != nil && !w.disk.Crashed() && !w.failing {
		return fmt.Errorf("the server does not start: %w", err)
	}
	return nil
}
