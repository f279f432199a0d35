package server

import (
	"context"
	"time"

	"github.com/hookferry/analytics"
	"github.com/hookferry/analytics/webhook"
)

// An operator is an observer that sends a track call, like any other, to the destination of
// webhooks.operations when another destination is disabled or enabled.
type operator struct{ server *server }

func (o *operator) Accepted(webhook.Accepted)   {}
func (o *operator) Attempted(webhook.Attempted) {}
func (o *operator) Ended(webhook.Record)        {}

func (o *operator) Disabled(d webhook.Disabled) {
	o.tell("Destination Disabled", d.Destination, map[string]any{
		"destination": d.Destination, "reason": string(d.Reason), "status": d.Status, "failingSince": d.FailingSince,
	})
}

func (o *operator) Enabled(e webhook.Disabled) {
	o.tell("Destination Enabled", e.Destination, map[string]any{
		"destination": e.Destination, "reason": string(e.Reason), "disabledSince": e.Since,
	})
}

// tell sends a call to the destination of webhooks.operations, unless the call is about that
// destination itself. It returns before the call is stored, because an observer must not block the
// forwarder.
func (o *operator) tell(what, about string, properties map[string]any) {
	s := o.server
	to := s.Settings.Webhooks.Operations
	if to == "" || about == to {
		return
	}
	s.running.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := s.forwarder.Forward(ctx, to, &analytics.Track{UserId: "hookferry", Event: what, Properties: properties}); err != nil {
			s.Logger.Error("webhooks.operations: could not store a call; the operations destination is not told about this change", "event", what, "destination", about, "error", err)
		}
	})
}
