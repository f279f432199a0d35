package lanes

import (
	"strings"

	"github.com/hookferry/analytics/event"
	"github.com/hookferry/analytics/webhook"
)

// Clone returns a copy of d that shares no memory with it, and has no
// Destination. Its slices have no spare capacity, so that the caller who is handed
// the copy may append to them.
func Clone(d *webhook.Delivery) webhook.Delivery {
	c := CloneHead(d)
	c.Body = make([]byte, len(d.Body))
	copy(c.Body, d.Body)
	return c
}

// CloneHead is Clone without the Body.
func CloneHead(d *webhook.Delivery) webhook.Delivery {
	c := *d
	c.Destination, c.Claim = "", 0
	if d.MessageID == d.ID { // as without a source
		cloneTexts(&c.ID, &c.Source, &c.User, &c.Event)
		c.MessageID = c.ID
	} else {
		cloneTexts(&c.ID, &c.MessageID, &c.Source, &c.User, &c.Event)
	}
	c.Type = typeName(d.Type)
	c.Body = nil
	c.Closed = cloneClosed(d.Closed)
	c.Attempts = cloneAttempts(d.Attempts)
	c.Trace = event.Trace{Parent: strings.Clone(d.Trace.Parent), State: strings.Clone(d.Trace.State)}
	return c
}

// Update copies the fields that a Retry or a Bury changes from s to d, which then
// share no memory.
func Update(d, s *webhook.Delivery) {
	d.Due, d.Expires, d.Tries = s.Due, s.Expires, s.Tries
	d.Closed = cloneClosed(s.Closed)
	d.Attempts = cloneAttempts(s.Attempts)
}

// cloneTexts replaces texts by copies that share one allocation.
func cloneTexts(texts ...*string) {
	n := 0
	for _, s := range texts {
		n += len(*s)
	}
	var b strings.Builder
	b.Grow(n)
	for _, s := range texts {
		b.WriteString(*s)
	}
	all := b.String()
	for _, s := range texts {
		*s, all = all[:len(*s)], all[len(*s):]
	}
}

// typeName returns a copy of s; for the types of the tracking API always the
// same.
func typeName(s string) string {
	switch s {
	case "track":
		return "track"
	case "identify":
		return "identify"
	case "page":
		return "page"
	case "screen":
		return "screen"
	case "group":
		return "group"
	case "alias":
		return "alias"
	}
	return strings.Clone(s)
}

func cloneClosed(s []webhook.Closed) []webhook.Closed {
	if len(s) == 0 {
		return nil
	}
	c := make([]webhook.Closed, len(s))
	copy(c, s)
	return c
}

func cloneAttempts(s []webhook.Attempt) []webhook.Attempt {
	if len(s) == 0 {
		return nil
	}
	c := make([]webhook.Attempt, len(s))
	copy(c, s)
	return c
}
