package server

import (
	"context"
	"time"

	"github.com/hookferry/analytics"
	"github.com/hookferry/analytics/webhook"
)

// operations tells the destination that webhooks.operations names when another one is disabled or
// enabled. It does so by a call of its own, a track, which is stored, signed and retried as all
// others are.
type operations struct{ server *server }

func (*operations) Accepted(webhook.Accepted)   {}
func (*operations) Attempted(webhook.Attempted) {}
func (*operations) Ended(webhook.Ended)         {}

func (o *operations) Disabled(d webhook.Disabled) {
	o.tell("Destination Disabled", d.Destination, map[string]any{
		"destination": d.Destination, "reason": string(d.Reason), "status": d.Status, "failingSince": d.Since,
	})
}

func (o *operations) Enabled(e webhook.Enabled) {
	o.tell("Destination Enabled", e.Destination, map[string]any{
		"destination": e.Destination, "reason": string(e.Reason), "disabledSince": e.Since,
	})
}

// tellTime bounds how long the store may take for a call.
const tellTime = 10 * time.Second

// tell stores a call. It does not keep the forwarder waiting, which observers may not do.
func (o *operations) tell(what, about string, properties map[string]any) {
	s := o.server
	to := s.Settings.Webhooks.Operations
	if about == to {
		return // the log has to do
	}
	s.running.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), tellTime)
		defer cancel()
		if err := s.forwarder.Forward(ctx, to, &analytics.Track{UserId: "hookferry", Event: what, Properties: properties}); err != nil {
			s.log.Error("webhooks.operations: a call could not be stored", "event", what, "destination", about, "error", err)
		}
	})
}
