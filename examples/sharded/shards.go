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

// of returns the shard of a destination. For each shard it hashes the shard's name
// together with the destination's id, and it returns the shard with the highest hash.
// Adding or removing a shard moves no destination between two other shards.
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

// ForwardEvents makes shards a collector.Forwarder. If it fails, some events may be stored
// already. The stores know their messageIds, so a repeated call does not store these
// events twice.
func (ss shards) ForwardEvents(ctx context.Context, destinations []string, events ...event.Event) error {
	for _, d := range destinations {
		if err := ss.of(d).Forwarder.ForwardEvents(ctx, []string{d}, events...); err != nil {
			return err
		}
	}
	return nil
}

// drain waits until a shard that gets no new events is empty, and shuts it down. Its dead
// letters and audiences stay in its folder.
func (s *shard) drain(ctx context.Context) {
	for tick := time.Tick(100 * time.Millisecond); ; <-tick {
		if must(s.store.Count(ctx)).Waiting == 0 {
			break
		}
	}
	check(s.Shutdown(ctx))
	check(s.store.Close())
}
