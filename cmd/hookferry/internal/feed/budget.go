package feed

import "time"

const (
	// eventRate bounds how many events a second are told, on average. The package comment explains
	// "told".
	eventRate = 1000
	// eventBurst is how many events may be told at once after a quiet time.
	eventBurst = 1000
	// eventReserve is the part of eventBurst that only quiet destinations may use.
	eventReserve = 200
	// A destination is quiet while fewer than eventShare of its events were told in the current
	// second.
	eventShare = 10
	// eventDebt is how far below zero the budget may go, in events. Only further events of a
	// delivery whose first event was told may take it there, so that the delivery's story is
	// complete.
	eventDebt = 1000
)

// A budget is a token bucket that limits how many events the feed sends to its readers.
type budget struct {
	tokens float64
	at     time.Time // of the last refill
}

func (b *budget) refill(now time.Time) {
	if d := now.Sub(b.at); d > 0 {
		b.tokens = min(b.tokens+d.Seconds()*eventRate, eventBurst)
		b.at = now
	}
}

// begins reports whether the budget has room for a new delivery, whose events are then all told.
// The argument quiet says whether the destination of the delivery is quiet.
func (b *budget) begins(now time.Time, quiet bool) bool {
	b.refill(now)
	return b.tokens >= eventReserve || quiet && b.tokens >= 1
}

// spend takes a token for an event and returns true, unless the budget is eventDebt below zero.
func (b *budget) spend(now time.Time) bool {
	b.refill(now)
	if b.tokens <= -eventDebt {
		return false
	}
	b.tokens--
	return true
}
