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

// A server is one process of the service. It has a store on a disk, a forwarder and a collector.
type server struct {
	disk      *simdisk.Disk
	store     webhook.Store
	forwarder *webhook.Forwarder
	handler   http.Handler
	ran       chan error
}

// start opens the store and starts to deliver. It returns the errors of the disk.
func (w *world) start() error {
	store, err := w.open(w)
	if err != nil {
		return err
	}
	store = &watchedStore{store, w.orders, w.ledger}
	s := &server{disk: w.disk, store: store, ran: make(chan error, 1)}
	s.forwarder, err = webhook.New(webhook.Config{
		Store:           store,
		Destinations:    w.destinations,
		DialContext:     w.dial,
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
	go func() { s.ran <- s.forwarder.Run(context.Background()) }() // stop ends it
	w.server.Store(s)
	return nil
}

// stop ends the server. If its disk has crashed, stop ends it as if its process ended. Otherwise
// the server shuts down in order.
func (w *world) stop() error {
	s := w.server.Swap(nil)
	if s == nil {
		return nil
	}
	w.turns.wait("stop")
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if s.disk.Crashed() {
		cancel()
	}
	stopped := s.forwarder.Shutdown(ctx)
	ran := <-s.ran
	w.turns.wait("close")
	closed := s.store.Close()
	w.turns.wait("closed")
	if s.disk.Crashed() || w.diskFails { // deliveries that were not settled are repeated
		w.ledger.crash()
		return nil
	}
	for _, err := range []error{stopped, ran, closed} {
		if err != nil {
			return fmt.Errorf("an orderly stop: %w", err)
		}
	}
	return nil
}

// restart ends the server if it runs, and starts it on the data that is still on its disk. If the
// start fails because of the disk, a later event tries again.
func (w *world) restart(loss simdisk.Loss) error {
	if err := w.stop(); err != nil {
		return err
	}
	if w.disk.Crashed() {
		w.turns.wait("reboot")
		w.useDisk(w.disk.Reboot(loss))
	}
	err := w.start()
	if err != nil && !w.disk.Crashed() && !w.diskFails {
		return fmt.Errorf("the server does not start: %w", err)
	}
	return nil
}
