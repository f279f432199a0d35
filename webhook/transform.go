package webhook

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"github.com/hookferry/analytics"
	"github.com/hookferry/analytics/event"
	"github.com/hookferry/analytics/internal/esjson"
)

const (
	// transformTime is the time that Destination.Transform has for an event.
	transformTime = time.Second
	// maxTransformed is the size of a body that Transform may return, in bytes. That of a
	// call and its envelope is about half of it at most.
	maxTransformed = 4 * analytics.MaxCallSize
)

// transform returns the body that Destination.Transform makes of e, in the form of bodies, and
// whether it leaves e out. An error says what is wrong with d.Transform or its result.
func (d *Destination) transform(ctx context.Context, e *event.Event) (body []byte, off bool, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, transformTime, fmt.Errorf("webhook: Transform has taken longer than %v", transformTime))
	defer cancel()
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("webhook: Transform panics: %v", v)
		}
	}()
	given := *e
	given.Body = bytes.Clone(e.Body) // which other destinations get, too
	made, err := d.Transform(ctx, given)
	switch {
	case ctx.Err() != nil:
		return nil, false, context.Cause(ctx)
	case err != nil:
		return nil, false, err
	case made.Off:
		return e.Body, true, nil
	}
	if n := len(made.Body); n > maxTransformed {
		return nil, false, fmt.Errorf("webhook: Transform has returned a body of %d bytes, the limit is %d", n, maxTransformed)
	}
	if body, err = esjson.Append(nil, made.Body); err != nil {
		return nil, false, fmt.Errorf("webhook: Transform has returned a body that is no JSON: %w", err)
	}
	if n := len(body); n > maxTransformed {
		return nil, false, fmt.Errorf("webhook: Transform has returned a body of %d bytes, the limit is %d", n, maxTransformed)
	}
	if body[0] != '{' {
		return nil, false, fmt.Errorf("webhook: Transform has returned a body that is no JSON object")
	}
	return body, false, nil
}

// untransformed logs that d is not stored. err is cut, and text.
func (en *engine) untransformed(d *Delivery, err error) {
	if log, held := en.accounts.get(d.Destination).untransformed.failed(time.Now()); log {
		en.config.Logger.Warn("webhook: Transform has failed, so the destination does not get the event",
			"destination", d.Destination, "source", d.Source, "id", d.MessageID, "error", clean(err.Error(), nil), "unlogged", held)
	}
}
