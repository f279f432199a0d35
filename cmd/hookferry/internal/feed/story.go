package feed

import (
	"bytes"
	"slices"
	"strings"
	"time"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
	"github.com/hookferry/analytics/webhook"
)

// The states of a delivery.
const (
	StateWaiting   = "waiting"
	StateDelivered = "delivered"
	StateDead      = "dead"
)

type storyKey struct{ destination, id string }

// A story is an api.Story that the Feed keeps. Its body is shared with events, and never changed.
type story struct {
	api.Story
	key  storyKey
	size int // about, in bytes of memory
}

// storyFor returns the story of d, and begins a story if there is none. It returns nil if the
// budget does not allow a new story. The caller holds f.mu.
func (f *Feed) storyFor(c *counts, d *webhook.Delivery, now time.Time) *story {
	if s := f.stories[storyKey{d.Destination, d.ID}]; s != nil {
		return s
	}
	if !f.budget.begins(now, c.quiet(now)) {
		f.leaveOut(c)
		return nil
	}
	s := &story{Story: api.Story{State: StateWaiting, TraceParent: d.Trace.Parent, Names: api.Names{
		ID: strings.Clone(d.MessageID), Source: strings.Clone(d.Source),
		User: strings.Clone(d.User), Event: strings.Clone(d.Event), Type: strings.Clone(d.Type),
	}}}
	if c != nil {
		s.Destination = c.id
	} else {
		s.Destination = strings.Clone(d.Destination)
	}
	s.key = storyKey{s.Destination, strings.Clone(d.ID)}
	f.stories[s.key] = s
	f.order = append(f.order, s)
	f.grow(s, 448+len(d.ID)+len(d.MessageID)+len(d.Source)+len(d.User)+len(d.Event))
	return s
}

// grow adds n bytes to the size of s, and drops the oldest stories beyond the bounds.
func (f *Feed) grow(s *story, n int) {
	s.size += n
	f.storyBytes += n
	for len(f.order) > f.bounds.stories || f.storyBytes > f.bounds.storyBytes && f.order[0] != s {
		old := f.order[0]
		f.order[0] = nil
		f.order = f.order[1:]
		f.storyBytes -= old.size
		delete(f.stories, old.key)
	}
}

func (f *Feed) keepBody(s *story, body []byte) {
	if s.Body == nil && body != nil {
		s.Body = bytes.Clone(body)
		f.grow(s, len(body))
	}
}

// setAttempts replaces the attempts of s. If there are more than webhook.MaxAttempts, it keeps the
// first two and the latest. It may overwrite the elements of the argument all.
func (f *Feed) setAttempts(s *story, all []api.Attempt) {
	grown := sizeOf(all) - sizeOf(s.Attempts)
	if more := len(all) - webhook.MaxAttempts; more > 0 {
		grown -= sizeOf(all[2 : 2+more])
		all = slices.Delete(all, 2, 2+more)
	}
	s.Attempts = all
	f.grow(s, grown)
}

// sizeOf returns about how many bytes of memory attempts take.
func sizeOf(attempts []api.Attempt) (n int) {
	for i := range attempts {
		n += 128 + len(attempts[i].Error) + len(attempts[i].Answer)
	}
	return n
}

// complete adds to s the data that only d, the ended delivery, has, such as attempts before the
// process started.
func (f *Feed) complete(s *story, d *webhook.Delivery) {
	s.Accepted, s.Tries = d.Accepted.UTC(), max(s.Tries, d.Tries)
	f.keepBody(s, d.Body)
	var before []api.Attempt
	for i := range d.Attempts {
		a := api.AttemptOf(&d.Attempts[i])
		if len(s.Attempts) > 0 && !a.At.Before(s.Attempts[0].At.Truncate(time.Microsecond)) {
			break
		}
		before = append(before, a)
	}
	f.setAttempts(s, append(before, s.Attempts...))
}

// Story returns the story of a delivery, if the Feed has it. The argument id is the messageId or
// the webhook-id. If source is "", Story takes the latest delivery with this id.
func (f *Feed) Story(destination, source, id string) (api.Story, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range slices.Backward(f.order) {
		if s.Destination == destination && (s.ID == id || s.key.id == id) && (source == "" || s.Source == source) {
			told := s.Story
			told.Attempts = append([]api.Attempt{}, s.Attempts...)
			return told, true
		}
	}
	return api.Story{}, false
}
