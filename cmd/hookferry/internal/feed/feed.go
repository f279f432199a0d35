// Package feed remembers the recent events of deliveries for people to look at, and counts events
// over time, with bounded memory and cost. The story of a delivery, all that is known about it, is
// made from its events when somebody asks.
//
// All events are counted. About eventRate events a second are also kept, until newer ones take
// their place. The Feed keeps either all events of a delivery or none, so a story is complete until
// its oldest events are dropped.
package feed

import (
	"bytes"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
	"github.com/hookferry/analytics/webhook"
)

// Kinds of events.
const (
	KindAccepted  = "accepted"
	KindAttempt   = "attempt"
	KindDelivered = "delivered"
	KindDead      = "dead"
)

// bounds bound the memory: about 30 MB of events with their deliveries, and 8 MB of counts.
type bounds struct {
	events, bytes int
	destinations  int           // how many have counts of their own
	idle          time.Duration // without events, after which the counts of a destination make room for another
}

var defaultBounds = bounds{events: 16_384, bytes: 24 << 20, destinations: 256, idle: 10 * time.Minute}

// A token bucket bounds the events that are kept. The events of a delivery are kept if the bucket
// has enough tokens at the first one. Each event takes a token, down to -eventBurst. So after a
// burst of retries, new deliveries are kept again within about a second.
const (
	eventRate    = 1000 // how many events a second are kept, on average
	eventBurst   = 1000 // how many events may be kept at once after a quiet time
	eventReserve = 200  // the part of eventBurst that only quiet destinations may use
	eventShare   = 10   // how many events a destination has in a second until it is not quiet
)

// A Feed is a webhook.Observer that remembers events. Its methods may be called concurrently.
type Feed struct {
	bounds bounds
	since  time.Time

	// mu guards the fields below. No method holds it during I/O or while it waits.
	mu           sync.Mutex
	tokens       float64
	refilled     time.Time // when tokens were added last
	seq          uint64    // the number of the latest event
	events       []*event  // the oldest first
	deliveries   map[key]*delivery
	bytes        int // about how much memory events and deliveries take
	total        *counts
	destinations map[string]*counts
	missed       bool // a destination without counts may have had events
}

// An event is an event that the Feed keeps.
type event struct {
	api.Event
	of   *delivery
	body []byte // of the delivery, if it was known at the event; Filter.Query searches in it
}

// size returns about how many bytes of memory an event takes, without its delivery.
func (e *event) size() int {
	if e.Attempt == nil {
		return 304
	}
	return 304 + sizeOf(*e.Attempt)
}

// New returns an empty Feed.
func New() *Feed { return newFeed(defaultBounds) }

func newFeed(b bounds) *Feed {
	now := time.Now().UTC()
	return &Feed{
		bounds:       b,
		since:        now,
		tokens:       eventBurst,
		refilled:     now,
		deliveries:   make(map[key]*delivery),
		total:        newCounts("", now, now),
		destinations: make(map[string]*counts),
	}
}

// Accepted implements webhook.Observer.
func (f *Feed) Accepted(a webhook.Accepted) {
	now := time.Now()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.total.add(now, cell{accepted: uint32(a.Stored)})
	for i := range a.Puts {
		d := &a.Puts[i].Delivery
		if !a.Results[i].Stored {
			continue
		}
		c := f.countsOf(d.Destination, now)
		c.add(now, cell{accepted: 1})
		if known := f.deliveryOf(c, d, now); known != nil {
			f.learn(known, d)
			f.keep(known, api.Event{At: now.UTC(), Kind: KindAccepted, Body: known.body})
		}
	}
}

// Attempted implements webhook.Observer.
func (f *Feed) Attempted(a webhook.Attempted) {
	now := a.End()
	e := api.Event{At: now.UTC(), Kind: KindAttempt, Outcome: string(a.Outcome)}
	var step cell
	if !a.Due.IsZero() && a.Outcome != webhook.OutcomeDelivered && a.Outcome != webhook.OutcomeCutOff {
		e.Due = a.Due.UTC()
		if divided := a.Reason == webhook.ReasonRefused && len(a.Batch) > 1; !divided { // else the same try goes on
			step.retried = uint32(max(len(a.Batch), 1))
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.countsOf(a.Destination, now)
	for _, c := range [...]*counts{f.total, c} {
		c.add(now, step)
		if a.Outcome != webhook.OutcomeCutOff {
			c.answered(&a.Attempt)
		}
	}
	if a.Batch == nil {
		f.attempted(c, &a.Delivery, &a.Attempt, e, now)
	}
	for _, d := range a.Batch {
		a.Try = d.Tries + 1
		f.attempted(c, d, &a.Attempt, e, now)
	}
}

// attempted adds an attempt to the story of d, if it has one.
func (f *Feed) attempted(c *counts, d *webhook.Delivery, a *webhook.Attempt, e api.Event, now time.Time) {
	if known := f.deliveryOf(c, d, now); known != nil {
		e.Attempt = new(*a)
		f.keep(known, e)
	}
}

// Ended implements webhook.Observer.
func (f *Feed) Ended(ended webhook.Record) {
	d := &ended.Delivery
	e, step := api.Event{At: ended.At.UTC(), Kind: KindDelivered}, cell{delivered: 1}
	if ended.Reason != "" {
		e.Kind, e.Reason, step = KindDead, string(ended.Reason), cell{dead: 1}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.countsOf(d.Destination, ended.At)
	f.total.add(ended.At, step)
	c.add(ended.At, step)
	if known := f.deliveryOf(c, d, ended.At); known != nil {
		f.learn(known, d)
		f.keep(known, e)
	}
}

// begins reports whether the token bucket has room for a new delivery of the destination of c. If
// not, it counts an event that is left out.
func (f *Feed) begins(c *counts, now time.Time) bool {
	if d := now.Sub(f.refilled); d > 0 {
		f.tokens = min(f.tokens+d.Seconds()*eventRate, eventBurst)
		f.refilled = now
	}
	if f.tokens >= eventReserve || f.tokens >= 1 && c.quiet() {
		return true
	}
	f.total.leftOut++
	if c != nil {
		c.leftOut++
	}
	return false
}

// keep keeps an event of d, and drops the oldest events beyond the bounds. The caller holds f.mu.
func (f *Feed) keep(d *delivery, e api.Event) {
	f.tokens = max(f.tokens-1, -eventBurst)
	f.seq++
	e.Seq, e.Names = f.seq, d.Names
	kept := &event{Event: e, of: d, body: d.body}
	f.events = append(f.events, kept)
	f.bytes += kept.size()
	d.events++
	for len(f.events) > f.bounds.events || f.bytes > f.bounds.bytes && len(f.events) > 1 {
		f.drop()
	}
}

// drop drops the oldest event, and its delivery if it has no other event.
func (f *Feed) drop() {
	e := f.events[0]
	f.events[0] = nil // lets the garbage collector free the event before append copies the slice
	f.events = f.events[1:]
	f.bytes -= e.size()
	if e.of.events--; e.of.events == 0 {
		f.bytes -= e.of.size()
		delete(f.deliveries, e.of.key)
	}
}

// Events returns up to limit of the latest events that filter selects, newest first, and the Seq of
// the latest event, selected or not, from which Follow can continue.
func (f *Feed) Events(filter Filter, limit int) ([]api.Event, uint64) {
	f.mu.Lock()
	all, seq := slices.Clone(f.events), f.seq
	f.mu.Unlock()
	filter.Query = strings.ToLower(filter.Query)
	found := []api.Event{}
	for _, e := range slices.Backward(all) {
		if len(found) == limit {
			break
		}
		if filter.match(e) {
			found = append(found, e.Event)
		}
	}
	return found, seq
}

// A Filter selects events. The zero value selects all.
type Filter struct {
	Destination, Type string   // "" selects all
	Kinds             []string // none selects all
	Query             string   // a text in the id or the body, in upper or lower case
}

func (f *Filter) match(e *event) bool {
	if f.Destination != "" && f.Destination != e.Destination || f.Type != "" && f.Type != e.Type {
		return false
	}
	if len(f.Kinds) > 0 && !slices.Contains(f.Kinds, e.Kind) {
		return false
	}
	return f.Query == "" || strings.Contains(strings.ToLower(e.ID), f.Query) ||
		bytes.Contains(bytes.ToLower(e.body), []byte(f.Query))
}
