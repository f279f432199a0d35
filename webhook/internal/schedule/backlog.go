package schedule

import (
	"math"
	"runtime"
	"time"
)

// A backlog limits the attempts of late deliveries, so that they do not take all processors while
// fresh deliveries arrive. During that time the lanes that are behind may together begin only
// backlogRate attempts a second for each processor, and one more for each delivery that arrives for
// them, so that they catch up whatever arrives. A processor can do about four times as many, with
// the receivers on the same machine. A fresh delivery then waits hardly longer than beside a
// foreign process that posts at the same rate.
type backlog[S, V any] struct {
	lane     *Lane[S, V] // the latest lane whose delivery was claimed soon after it was due
	until    time.Time   // when the limit ends, unless another fresh delivery comes
	attempts bucket      // has a token for each attempt that lanes that are behind may begin now
	arrived  int         // deliveries that arrived for such lanes while the limit holds: as many more attempts
}

const (
	backlogRate = 2000 // for each processor; see backlog
	// A delivery is late if it is claimed more than lateAfter after its Due. A lane is behind if the
	// delivery that it has claimed last was late.
	lateAfter  = time.Second
	backlogFor = time.Second // how long the limit stays after the latest delivery that was not late
)

func newBacklog[S, V any]() backlog[S, V] {
	rate := backlogRate * runtime.GOMAXPROCS(0)
	return backlog[S, V]{attempts: bucket{interval: time.Second / time.Duration(rate), burst: max(rate/500, 1)}}
}

// arrive records that a delivery of l has come to the store.
func (b *backlog[S, V]) arrive(l *Lane[S, V], now time.Time) {
	if !b.on(now) {
		b.arrived = 0
	} else if l.behind {
		b.arrived = min(b.arrived+1, backlogRate)
	}
}

// note records that a delivery of l that was due at due was claimed now.
func (b *backlog[S, V]) note(l *Lane[S, V], due, now time.Time) {
	l.behind = now.Sub(due) > lateAfter
	switch {
	case l.behind && b.lane == l:
		b.lane = nil // a lane does not give way to itself
	case !l.behind && l.standing != doubtful:
		b.lane, b.until = l, now.Add(backlogFor)
	}
}

// on reports whether the attempts of lanes that are behind are limited.
func (b *backlog[S, V]) on(now time.Time) bool { return b.lane != nil && now.Before(b.until) }

// free returns how many attempts the lanes that are behind may begin now.
func (b *backlog[S, V]) free(now time.Time) int {
	if !b.on(now) {
		return math.MaxInt
	}
	return b.attempts.tokens(now) + b.arrived
}

// pause returns how long the bucket takes to get half of its tokens.
func (b *backlog[S, V]) pause() time.Duration {
	return b.attempts.interval * time.Duration((b.attempts.burst+1)/2)
}

// begin records that a lane that is behind begins an attempt now.
func (b *backlog[S, V]) begin(now time.Time) {
	if b.arrived > 0 {
		b.arrived--
	} else {
		b.attempts.take(now)
	}
}
