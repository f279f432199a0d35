package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"sync"

	"github.com/hookferry/analytics/collector"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/boltqueue"
)

const (
	defaultData = "hookferry-data"
	// dataFile is the store, in the data folder.
	dataFile = "hookferry.db"
)

// runServer serves until ctx is done, and then stops in order: no more calls,
// no more attempts, the store.
func runServer(ctx context.Context, s *settings, logger *slog.Logger) (err error) {
	// First what can be refused at once.
	listener, err := listenOn(ctx, s.listen)
	if err != nil {
		return err
	}
	defer listener.Close()
	store, err := openStore(s.data, logger)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()

	if s.writeKey == "" {
		if s.writeKey, err = makeWriteKey(s.data); err != nil {
			return fmt.Errorf("-data: %w", err)
		}
		logger.Info("no -write-key: calls must carry the key in the file", "file", filepath.Join(s.data, writeKeyFile))
	}
	config := s.webhook
	config.Queue, config.Logger = store, logger
	forwarder, err := webhook.New(config)
	if err != nil {
		return err
	}
	handler, err := collector.New(collector.Config{
		Forwarder: forwarder,
		Sources:   collector.Keys(map[string]collector.Source{s.writeKey: {Destinations: []string{destinationID}}}),
		Logger:    logger,
	})
	if err != nil {
		return err
	}

	server := newHTTPServer(handler, logger)
	ended := make(chan error, 2)
	var running sync.WaitGroup
	running.Go(func() { ended <- forwarder.Run(context.WithoutCancel(ctx)) })
	running.Go(func() {
		err := server.Serve(listener)
		if errors.Is(err, http.ErrServerClosed) {
			err = nil
		}
		ended <- err
	})
	destination := config.Destinations[0]
	for _, e := range destination.Endpoints {
		logger.Info("forwarding", "webhook", redacted(e.URL), "signed", destination.Secret != "")
	}
	logger.Info("listening", "address", listener.Addr().String(), "data", s.data)

	var failure error
	select {
	case <-ctx.Done():
		logger.Info("stopping", "grace", s.grace)
	case failure = <-ended:
	}
	stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.grace)
	defer cancel()
	if server.Shutdown(stopping) != nil {
		logger.Warn("requests were cut off; their senders will repeat them")
		server.Close()
	}
	if forwarder.Shutdown(stopping) != nil {
		logger.Warn("attempts were cut off; they are repeated after the next start")
	}
	running.Wait()
	close(ended)
	for err := range ended {
		failure = errors.Join(failure, err)
	}
	if failure == nil {
		logger.Info("stopped")
	}
	return failure
}

// openStore opens the store in the data folder, which it makes if it is
// missing.
func openStore(folder string, logger *slog.Logger) (*boltqueue.Queue, error) {
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return nil, fmt.Errorf("-data: %w", err)
	}
	store, err := boltqueue.Open(filepath.Join(folder, dataFile), &boltqueue.Config{Logger: logger})
	if errors.Is(err, boltqueue.ErrDamaged) {
		return nil, fmt.Errorf("-data: %w; 'hookferry store rescue -data %s -to FILE' writes what can be read to a new file", err, folder)
	}
	if err != nil {
		return nil, fmt.Errorf("-data: %w", err)
	}
	return store, nil
}
