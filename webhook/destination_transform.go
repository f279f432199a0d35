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

// filters reports whether the destination has a filter or a Transform.
func (d *Destination) filters() bool {
	return len(d.Filter.Include) > 0 || len(d.Filter.Exclude) > 0 || d.Transform != nil
}

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

const (
	transformTime  = time.Second               // for an event
	maxTransformed = 4 * analytics.MaxCallSize // bytes of a body; other bodies have at most half as many
)
