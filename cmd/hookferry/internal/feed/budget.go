package feed

import "time"

const (
	// eventRate is how many events a second are told in the long run.
	eventRate = 1000
	// eventBurst is how many are told at once after a time with fewer.
	eventBurst = 1000
	// eventReserve is the share of eventBurst that is left to destinations of
	// which little was told within the second, so that a busy one does not hide
	// them.
	eventReserve = 200
	// eventShare is how much that is.
	eventShare = 10
	// eventDebt is how far the stories that have begun may go beyond it.
	eventDebt = 1000
)

// A budget is the events that may be told.
type budget struct {
	tokens float64
	at     time.Time
}

// refill adds what has come in until now.
func (b *budget) refill(now time.Time) {
	if d := now.Sub(b.at); d > 0 {
		b.tokens = min(b.tokens+d.Seconds()*eventRate, eventBurst)
		b.at = now
	}
}

// begins reports whether a delivery that nothing was told of may be begun with.
func (b *budget) begins(now time.Time, quiet bool) bool {
	b.refill(now)
	return b.tokens >= eventReserve || quiet && b.tokens >= 1
}

// spend takes an event out of the budget, unless that is too far gone.
func (b *budget) spend(now time.Time) bool {
	b.refill(now)
	if b.tokens <= -eventDebt {
		return false
	}
	b.tokens--
	return true
}
