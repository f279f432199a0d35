package feed

import "time"

const (
	// eventRate is how many events a second are told in the long run.
	eventRate = 1000
	// eventBurst is how many are told at once after a time with fewer.
	eventBurst = 1000
	// eventReserve is the part of eventBurst that is kept for quiet destinations, so that a busy
	// one does not hide them.
	eventReserve = 200
	// eventShare is how many events a second make a destination no longer quiet.
	eventShare = 10
	// eventDebt is how far below zero the budget may go, for the further events of deliveries
	// whose first event was told.
	eventDebt = 1000
)

// A budget is a token bucket of the events that may be told.
type budget struct {
	tokens float64
	at     time.Time // of the last refill
}

// refill adds the tokens of the time since the last refill.
func (b *budget) refill(now time.Time) {
	if d := now.Sub(b.at); d > 0 {
		b.tokens = min(b.tokens+d.Seconds()*eventRate, eventBurst)
		b.at = now
	}
}

// begins reports whether the events of a further delivery may be told.
func (b *budget) begins(now time.Time, quiet bool) bool {
	b.refill(now)
	return b.tokens >= eventReserve || quiet && b.tokens >= 1
}

// spend takes a token for an event, unless the budget is eventDebt below zero.
func (b *budget) spend(now time.Time) bool {
	b.refill(now)
	if b.tokens <= -eventDebt {
		return false
	}
	b.tokens--
	return true
}
