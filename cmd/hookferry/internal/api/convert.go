package api

import (
	"time"

	"github.com/hookferry/analytics/webhook"
)

// NamesOf returns the names of a delivery.
func NamesOf(d *webhook.Delivery) Names {
	return Names{Destination: d.Destination, ID: d.MessageID, Source: d.Source, User: d.User, Event: d.Event, Type: d.Type}
}

// AttemptOf converts an attempt.
func AttemptOf(a *webhook.Attempt) Attempt {
	return Attempt{
		At: a.At, Took: Milliseconds(a.Took), Try: a.Try, Endpoint: a.Endpoint,
		Status: a.Status, Reason: string(a.Reason), Error: a.Error, Answer: a.Answer,
	}
}

// Milliseconds converts a duration.
func Milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
