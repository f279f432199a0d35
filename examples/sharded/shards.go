package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"time"

	"github.com/hookferry/analytics/event"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/filequeue"
)

// A shard is a store and its forwarder. Every shard knows all destinations.
type shard struct {
	*webhook.Forwarder
	name  string
	store *filequeue.Store
}

// shards take calls for all destinations.
type shards []*shard

// of returns the shard of a destination: the one whose name makes the highest hash
// with its id. With a shard more, or less, no destination moves between two others.
func (ss shards) of(destination string) *shard {
	var best *shard
	var most [sha256.Size]byte
	for _, s := range ss {
		if h := sha256.Sum256([]byte(s.name + "/" + destination)); best == nil || bytes.Compare(h[:], most[:]) > 0 {
			best, most = s, h
		}
	}
	return best
}

// ForwardEvents makes shards a collector.Forwarder. What was stored before an error
// is recognised by its messageId when the call is made again.
func (ss shards) ForwardEvents(ctx context.Context, destinations []string, events ...event.Event) error {
	for _, d := range destinations {
		if err := ss.of(d).Forwarder.ForwardEvents(ctx, []string{d}, events...); err != nil {
			return err
		}
	}
	return nil
}

// drain ends a shard to which nothing is forwarded any more, once nothing waits in
// it. Its dead letters and audiences stay in its folder.
func (s *shard) drain(ctx context.Context) {
	for tick := time.Tick(100 * time.Millisecond); ; <-tick {
		if c, err := s.store.Count(ctx); check(err) && c.Waiting == 0 {
			break
		}
	}
	check(s.Shutdown(ctx))
	check(s.store.Close())
}
