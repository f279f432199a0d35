// Package feed remembers the recent deliveries for people to look at: the latest events, the
// stories of the latest deliveries, and counts over time. A story is all that is known about one
// delivery. The Feed is a webhook.Observer with bounded memory and bounded cost.
//
// All events are counted. Up to eventRate events a second are also told, which means kept in full
// and sent to readers. Of each delivery either all events are told or none, so every kept story is
// complete.
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

// bounds bound the memory: about 10 MB of events, 20 MB of stories and 8 MB of counts.
type bounds struct {
	events, eventBytes  int
	stories, storyBytes int
	destinations        int           // how many have counts of their own
	idle                time.Duration // after this time without events, the counts of a destination may be removed for another one
	readers             int
}

var defaultBounds = bounds{
	events: 4096, eventBytes: 8 << 20,
	stories: 8192, storyBytes: 16 << 20,
	destinations: 256, idle: 10 * time.Minute,
	readers: 64,
}

// A Feed is a webhook.Observer that remembers events. Its methods may be called concurrently.
type Feed struct {
	bounds bounds
	since  time.Time

	// mu guards the fields below. No method holds it during I/O or while it waits.
	mu           sync.Mutex
	budget       budget
	seq          uint64   // the number of the latest event
	events       []*event // the oldest first
	eventBytes   int
	stories      map[storyKey]*story
	order        []*story // the oldest first
	storyBytes   int
	total        *counts
	destinations map[string]*counts
	forgot       bool  // bounds.destinations was reached, so a destination without counts may have had events
	looked       int64 // when forget last searched, in Unix seconds
	readers      map[*Reader]struct{}
}

// An event is an event that the Feed keeps, with the body of its delivery.
type event struct {
	api.Event
	body []byte // nil if unknown; Filter.Query searches in it
}

// size returns about how many bytes of memory an event takes. It counts the body in full, although
// events of one delivery share it.
func (e *event) size() int {
	n := 304 + len(e.ID) + len(e.Source) + len(e.User) + len(e.Event.Event) + len(e.body)
	if e.Attempt != nil {
		n += 128 + len(e.Attempt.Error) + len(e.Attempt.Answer)
	}
	return n
}

// New returns an empty Feed.
func New() *Feed { return newFeed(defaultBounds) }

func newFeed(b bounds) *Feed {
	now := time.Now().UTC()
	return &Feed{
		bounds:       b,
		since:        now,
		budget:       budget{tokens: eventBurst, at: now},
		stories:      make(map[storyKey]*story),
		total:        newCounts("", now, now),
		destinations: make(map[string]*counts),
		readers:      make(map[*Reader]struct{}),
	}
}

// Accepted implements webhook.Observer.
func (f *Feed) Accepted(a webhook.Accepted) {
	now := time.Now()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.total.accepted(now, a.Stored)
	// The store says how many deliveries it has stored, but not which it has left out as
	// duplicates. Assume that the deliveries with a story are the duplicates, and that the others
	// are new.
	left := a.Stored
	seen := len(a.Deliveries) - a.Stored
	var c *counts // the counts of the latest destination, whose id is in the variable of
	var of string
	for i := range a.Deliveries {
		d := &a.Deliveries[i]
		if left == 0 {
			break
		}
		s := f.stories[storyKey{d.Destination, d.ID}]
		if s != nil && seen > 0 {
			seen--
			continue
		}
		left--
		if c == nil || d.Destination != of {
			c, of = f.countsOf(d.Destination, now), d.Destination
		}
		if c != nil {
			c.accepted(now, 1)
		}
		if s = f.storyFor(c, d, now); s == nil {
			continue
		}
		s.Accepted, s.TraceParent = d.Accepted.UTC(), d.Trace.Parent
		f.keepBody(s, d.Body)
		f.tell(c, s, api.Event{At: now.UTC(), Kind: KindAccepted, Body: s.Body})
	}
}

// Attempted implements webhook.Observer.
func (f *Feed) Attempted(a webhook.Attempted) {
	now := a.At.Add(a.Took)
	again := !a.Due.IsZero() && a.Outcome != webhook.OutcomeDelivered && a.Outcome != webhook.OutcomeCutOff
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.countsOf(a.Destination, now)
	f.total.attempted(now, &a, again)
	if c != nil {
		c.attempted(now, &a, again)
	}
	s := f.storyFor(c, &webhook.Delivery{
		Destination: a.Destination, ID: a.ID, MessageID: a.MessageID, Source: a.Source, User: a.User, Event: a.Event, Type: a.Type, Trace: a.Trace,
	}, now)
	if s == nil {
		return
	}
	at := api.AttemptOf(&a.Attempt)
	f.setAttempts(s, append(s.Attempts, at))
	s.Tries = max(s.Tries, a.Try)
	if !a.Due.IsZero() {
		s.State, s.Due = StateWaiting, a.Due.UTC()
	}
	e := api.Event{At: now.UTC(), Kind: KindAttempt, Attempt: &at, Outcome: string(a.Outcome)}
	if again {
		e.Due = a.Due.UTC()
	}
	f.tell(c, s, e)
}

// Ended implements webhook.Observer.
func (f *Feed) Ended(ended webhook.Ended) {
	d := &ended.Delivery
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.countsOf(d.Destination, ended.At)
	f.total.ended(ended.At, ended.Reason)
	if c != nil {
		c.ended(ended.At, ended.Reason)
	}
	s := f.storyFor(c, d, ended.At)
	if s == nil {
		return
	}
	f.complete(s, d)
	s.Ended, s.Due = ended.At.UTC(), time.Time{}
	e := api.Event{At: ended.At, Kind: KindDelivered}
	s.State, s.Reason = StateDelivered, string(ended.Reason)
	if ended.Reason != "" {
		s.State = StateDead
		e.Kind, e.Reason = KindDead, s.Reason
	}
	f.tell(c, s, e)
}

// tell keeps an event of s and notifies the readers, within the budget. The caller holds f.mu.
func (f *Feed) tell(c *counts, s *story, e api.Event) {
	if !f.budget.spend(e.At) {
		f.leaveOut(c)
		return
	}
	if c != nil {
		if s := e.At.Unix(); s != c.second {
			c.second, c.shown = s, 0
		}
		c.shown++
	}
	f.seq++
	e.Seq, e.Names = f.seq, s.Names
	kept := &event{Event: e, body: s.Body}
	f.events = append(f.events, kept)
	f.eventBytes += kept.size()
	for len(f.events) > f.bounds.events || f.eventBytes > f.bounds.eventBytes {
		f.eventBytes -= f.events[0].size()
		// Lets the garbage collector free the event before append copies the slice.
		f.events[0] = nil
		f.events = f.events[1:]
	}
	for r := range f.readers {
		select {
		case r.news <- struct{}{}:
		default: // the reader has a notification already
		}
	}
}

func (f *Feed) leaveOut(c *counts) {
	f.total.leftOut++
	if c != nil {
		c.leftOut++
	}
}

// Events returns up to limit of the latest events that filter selects, newest first. It also
// returns the Seq of the latest event, selected or not, from which Follow can continue.
func (f *Feed) Events(filter Filter, limit int) ([]api.Event, uint64) {
	f.mu.Lock()
	all, seq := slices.Clone(f.events), f.seq
	f.mu.Unlock()
	filter.Query = strings.ToLower(filter.Query)
	found := []api.Event{}
	for i := len(all) - 1; i >= 0 && len(found) < limit; i-- {
		if filter.match(all[i]) {
			found = append(found, all[i].Event)
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
