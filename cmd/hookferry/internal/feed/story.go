package feed

import (
	"bytes"
	"slices"
	"strings"
	"time"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/store"
)

type key struct{ destination, id string }

// A delivery is a delivery of which the Feed keeps events.
type delivery struct {
	api.Names
	key         key
	first       uint64 // the Seq of its first event
	events      int    // how many are kept
	traceParent string
	accepted    time.Time         // zero if unknown
	body        []byte            // nil if unknown; is never changed
	failed      []webhook.Attempt // failed attempts, as the store had them at the end of the delivery
}

// size returns about how many bytes of memory a delivery takes, without its events.
func (d *delivery) size() int {
	return 448 + len(d.Destination) + len(d.key.id) + len(d.ID) + len(d.Source) + len(d.User) + len(d.Event) + len(d.body) + sizeOf(d.failed...)
}

// sizeOf returns about how many bytes of memory attempts take.
func sizeOf(attempts ...webhook.Attempt) (n int) {
	for i := range attempts {
		n += 160 + len(attempts[i].Header) + len(attempts[i].Error) + len(attempts[i].Answer)
	}
	return n
}

// deliveryOf returns what the Feed knows of d, or nil if d is new, and the token bucket allows no new
// delivery. The caller holds f.mu, and then calls keep.
func (f *Feed) deliveryOf(c *counts, d *webhook.Delivery, now time.Time) *delivery {
	if known := f.deliveries[key{d.Destination, d.ID}]; known != nil {
		return known
	}
	if !f.begins(c, now) {
		return nil
	}
	known := &delivery{first: f.seq + 1, traceParent: d.Trace.Parent, Names: api.Names{
		Destination: strings.Clone(d.Destination), ID: strings.Clone(d.MessageID), Source: strings.Clone(d.Source),
		User: strings.Clone(d.User), Event: strings.Clone(d.Event), Type: strings.Clone(d.Type),
	}}
	known.key = key{known.Destination, strings.Clone(d.ID)}
	f.deliveries[known.key] = known
	f.bytes += known.size()
	return known
}

// learn adds the data of d that an attempt does not have.
func (f *Feed) learn(known *delivery, d *webhook.Delivery) {
	f.bytes -= known.size()
	known.accepted, known.traceParent = d.Accepted.UTC(), d.Trace.Parent
	if known.body == nil {
		known.body = bytes.Clone(d.Body)
	}
	known.failed = slices.Clone(d.Attempts)
	f.bytes += known.size()
}

// Story returns the story of a delivery, if the Feed keeps events of it. id is its messageId or its
// webhook-id. If source is "", Story takes the latest delivery with this id.
func (f *Feed) Story(destination, source, id string) (api.Delivery, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var found *delivery
	for _, e := range f.events {
		d := e.of
		if d.Destination == destination && (d.ID == id || d.key.id == id) && (source == "" || d.Source == source) &&
			(found == nil || d.first > found.first) {
			found = d
		}
	}
	if found == nil {
		return api.Delivery{}, false
	}
	return f.story(found), true
}

// story makes the story of d, with up to store.MaxAttempts attempts: the first two and the latest.
func (f *Feed) story(d *delivery) api.Delivery {
	s := api.Delivery{Names: d.Names, State: webhook.StateWaiting, Accepted: d.accepted, TraceParent: d.traceParent, Body: d.body}
	attempts := []webhook.Attempt{}
	for _, e := range f.events {
		switch {
		case e.of != d:
		case e.Kind == KindAttempt:
			attempts = append(attempts, *e.Attempt)
			if !e.Due.IsZero() {
				s.State, s.Reason, s.Ended, s.Due = webhook.StateWaiting, "", time.Time{}, e.Due
			}
		case e.Kind != KindAccepted:
			s.State, s.Reason, s.Ended, s.Due = webhook.State(e.Kind), e.Reason, e.At, time.Time{}
		}
	}
	// The Feed has no events of the attempts of other processes, or before the start of this one.
	for i, a := range d.failed {
		if len(attempts) > i && !a.At.Before(attempts[i].At.Truncate(time.Microsecond)) {
			break
		}
		attempts = slices.Insert(attempts, i, a)
	}
	for i := range attempts {
		s.Tries = max(s.Tries, attempts[i].Try)
	}
	if more := len(attempts) - store.MaxAttempts; more > 0 {
		attempts = slices.Delete(attempts, 2, 2+more)
	}
	s.Attempts = attempts
	return s
}
