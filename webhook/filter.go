package webhook

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hookferry/analytics"
	"github.com/hookferry/analytics/check"
	"github.com/hookferry/analytics/event"
	"github.com/hookferry/analytics/internal/esjson"
)

// A Filter selects events by patterns. A pattern is a type of event, such as "identify", or a type,
// a colon and an event name, such as "track:Order Completed". A name that ends in "*" matches all
// names that begin with the text before the "*": "page:Docs *". The type "*" matches all types:
// "*:Order *". Only tracks, pages and screens have a name. Patterns are case-sensitive.
//
// The zero Filter takes every event. A Filter can be stored, for example as JSON.
type Filter struct {
	Include []string `json:"include,omitempty"` // takes only events that match one of these; empty takes all
	Exclude []string `json:"exclude,omitempty"` // leaves out events that match one of these, even if Include takes them
}

const MaxPatterns = 100 // patterns of each list of a Filter at most
const maxPattern = 512  // bytes

var filterTypes = []string{"identify", "track", "page", "screen", "group", "alias", "*"}

// Match reports whether the filter takes e.
func (f *Filter) Match(e *event.Event) bool {
	return (len(f.Include) == 0 || matchAny(f.Include, e)) && !matchAny(f.Exclude, e)
}

func matchAny(patterns []string, e *event.Event) bool {
	for _, p := range patterns {
		kind, name, named := strings.Cut(p, ":")
		if kind != "*" && kind != e.Type {
			continue
		}
		prefix, open := strings.CutSuffix(name, "*")
		switch {
		case !named, open && e.Name != "" && strings.HasPrefix(e.Name, prefix), !open && e.Name == name:
			return true
		}
	}
	return false
}

// Validate returns all faults as *ConfigErrors, joined by errors.Join.
func (f *Filter) Validate() error {
	var wrong check.Faults
	checkPatterns("Include", f.Include, &wrong)
	checkPatterns("Exclude", f.Exclude, &wrong)
	return configError(wrong)
}

func checkPatterns(field string, patterns []string, wrong *check.Faults) {
	n := len(patterns)
	wrong.Refuse(n > MaxPatterns, field, "%d given; at most %d are allowed", n, MaxPatterns)
	for i, p := range patterns {
		kind, name, named := strings.Cut(p, ":")
		field := fmt.Sprintf("%s[%d]", field, i)
		wrong.Refuse(len(p) > maxPattern, field, "has %d bytes, the limit is %d", len(p), maxPattern)
		wrong.Refuse(!slices.Contains(filterTypes, kind), field, "does not begin with a type: %s", strings.Join(filterTypes, ", "))
		wrong.Refuse(named && name == "", field, "has no event name after the colon")
	}
}

// filters reports whether the destination has a filter or a Transform.
func (d *Destination) filters() bool {
	return len(d.Filter.Include) > 0 || len(d.Filter.Exclude) > 0 || d.Transform != nil
}

const (
	transformTime  = time.Second               // for an event
	maxTransformed = 4 * analytics.MaxCallSize // bytes of a body; other bodies have at most half as many
)

// transform returns the body of e for this destination, or that Filter or Transform leaves e out.
func (d *Destination) transform(ctx context.Context, e *event.Event) (body []byte, left bool, err error) {
	if left = !d.Filter.Match(e); left || d.Transform == nil {
		return e.Body, left, nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, transformTime, fmt.Errorf("webhook: Transform took longer than %v", transformTime))
	defer cancel()
	made := *e
	made.Body = bytes.Clone(e.Body) // other destinations get the same body
	err = noPanic("Transform", func() (err error) {
		made, err = d.Transform(ctx, made)
		return err
	})
	switch {
	case ctx.Err() != nil: // the result comes too late
		return nil, false, context.Cause(ctx)
	case err != nil:
		return nil, false, err
	case made.Off:
		return e.Body, true, nil
	}
	size := len(made.Body)
	if size <= maxTransformed {
		if body, err = esjson.Append(nil, made.Body); err != nil {
			return nil, false, fmt.Errorf("webhook: Transform returned a body that is not JSON: %w", err)
		}
		size = len(body)
	}
	switch {
	case size > maxTransformed:
		return nil, false, fmt.Errorf("webhook: Transform returned a body of %d bytes, the limit is %d", size, maxTransformed)
	case body[0] != '{':
		return nil, false, errors.New("webhook: Transform returned a body that is not a JSON object")
	}
	return body, false, nil
}

// logUntransformed logs that d is not stored because Transform failed.
func (r *recorder) logUntransformed(d *Delivery, err error) {
	if log, unlogged := r.accounts.of(d.Destination).untransformed.failed(); log {
		r.config.Logger.Warn("webhook: Transform failed; this destination does not get the event",
			"destination", d.Destination, "source", d.Source, "id", d.MessageID, "error", clean(err.Error(), nil), "unlogged", unlogged)
	}
}
