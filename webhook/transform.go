package webhook

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hookferry/analytics"
	"github.com/hookferry/analytics/event"
	"github.com/hookferry/analytics/internal/esjson"
)

const (
	transformTime  = time.Second               // for an event
	maxTransformed = 4 * analytics.MaxCallSize // bytes of a body; other bodies have at most half as many
)

// transform returns the body of e for this destination. The result left says that Transform leaves
// e out.
func (d *Destination) transform(ctx context.Context, e *event.Event) (body []byte, left bool, err error) {
	if d.Transform == nil {
		return e.Body, false, nil
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
func (e *engine) logUntransformed(d *Delivery, err error) {
	if log, unlogged := e.accounts.of(d.Destination).untransformed.failed(); log {
		e.config.Logger.Warn("webhook: Transform failed; this destination does not get the event",
			"destination", d.Destination, "source", d.Source, "id", d.MessageID, "error", clean(err.Error(), nil), "unlogged", unlogged)
	}
}
