package schedule

import (
	"math"
	"slices"
	"time"
)

// A backlog limits the attempts of late deliveries, so that they do not take all processors while
// fresh deliveries arrive. During that time the lanes that are behind may together have, for each
// processor, only backlogAttempts attempts that began in the last backlogTime. Older attempts do
// not count: they wait for their receivers, and take no processor. If receivers answer at once, the
// backlog still drains two thirds as fast as with many attempts.
type backlog struct {
	lane  *Lane     // the latest lane whose delivery was claimed soon after it was due
	until time.Time // when the limit ends, unless another fresh delivery comes

	// begun has a place for each attempt that may begin in one backlogTime. It holds when the latest
	// attempt there began, or zero if that attempt has ended.
	begun  []time.Time
	latest time.Time // when a lane that is behind began an attempt last
}

const (
	backlogAttempts = 1 // for each processor; see backlog
	backlogTime     = time.Millisecond
	// A delivery is late if it is claimed more than lateAfter after its Due. A lane is behind if
	// the delivery that it has claimed last was late.
	lateAfter = 100 * time.Millisecond
	// backlogFor is how long the limit stays after the latest delivery that was not late.
	backlogFor = time.Second
)

// note records that a delivery of l was claimed now. The argument due is its Due.
func (b *backlog) note(l *Lane, due, now time.Time) {
	l.behind = now.Sub(due) > lateAfter
	switch {
	case l.behind && b.lane == l:
		b.lane = nil // a lane does not give way to itself
	case !l.behind && l.standing != doubtful:
		b.lane, b.until = l, now.Add(backlogFor)
	}
}

// on reports whether the attempts of lanes that are behind are limited.
func (b *backlog) on(now time.Time) bool { return b.lane != nil && now.Before(b.until) }

// free returns how many attempts the lanes that are behind may begin now.
func (b *backlog) free(now time.Time) (n int) {
	if !b.on(now) {
		return math.MaxInt
	}
	for _, t := range b.begun {
		if now.Sub(t) >= backlogTime {
			n++
		}
	}
	return n
}

// begin records that a lane that is behind begins an attempt now, and returns now for end.
func (b *backlog) begin(now time.Time) time.Time {
	if i := slices.IndexFunc(b.begun, func(t time.Time) bool { return now.Sub(t) >= backlogTime }); i >= 0 {
		b.begun[i] = now
	}
	b.latest = now
	return now
}

// end records the end of an attempt. The argument begun is the result of begin, or zero if begin
// was not called.
func (b *backlog) end(begun time.Time) {
	if begun.IsZero() {
		return
	}
	if i := slices.Index(b.begun, begun); i >= 0 { // else another attempt has taken the place
		b.begun[i] = time.Time{}
	}
}
