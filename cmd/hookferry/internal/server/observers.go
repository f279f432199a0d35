package server

import (
	"context"
	"time"

	"github.com/hookferry/analytics"
	"github.com/hookferry/analytics/webhook"
)

// observers passes the events of deliveries on to several observers. When a destination is disabled
// or enabled, it also sends a track call, like any other, to the destination of webhooks.operations.
type observers struct {
	all    []webhook.Observer
	server *server
}

func (o *observers) Accepted(a webhook.Accepted) {
	for _, of := range o.all {
		of.Accepted(a)
	}
}

func (o *observers) Attempted(a webhook.Attempted) {
	for _, of := range o.all {
		of.Attempted(a)
	}
}

func (o *observers) Ended(e webhook.Record) {
	for _, of := range o.all {
		of.Ended(e)
	}
}

func (o *observers) Disabled(d webhook.Disabled) {
	o.tell("Destination Disabled", d.Destination, map[string]any{
		"destination": d.Destination, "reason": string(d.Reason), "status": d.Status, "failingSince": d.FailingSince,
	})
}

func (o *observers) Enabled(e webhook.Disabled) {
	o.tell("Destination Enabled", e.Destination, map[string]any{
		"destination": e.Destination, "reason": string(e.Reason), "disabledSince": e.Since,
	})
}

// tell sends a call to the destination of webhooks.operations, unless the call is about that itself.
// It returns before the call is stored, because an observer must not block the forwarder.
func (o *observers) tell(what, about string, properties map[string]any) {
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
