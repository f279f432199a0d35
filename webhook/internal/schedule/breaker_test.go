package schedule

import (
	"testing"
	"time"
)

// half is a jitter that is not random: it always returns half of n.
func half(n time.Duration) time.Duration { return n / 2 }

func TestBreakerOpensAfterARowOfFailures(t *testing.T) {
	const (
		answered = iota
		refused
		timedOut
	)
	for _, tt := range []struct {
		name     string
		attempts []int
		open     bool
	}{
		{"nine failures", []int{refused, refused, refused, refused, refused, refused, refused, refused, refused}, false},
		{"ten failures", []int{refused, refused, refused, refused, refused, refused, refused, refused, refused, refused}, true},
		{"an answer between the failures", []int{refused, refused, refused, refused, refused, answered, refused, refused, refused, refused, refused, refused}, false},
		{"three time-outs", []int{timedOut, timedOut, timedOut}, false},
		{"four time-outs", []int{timedOut, timedOut, timedOut, timedOut}, true},
		{"three time-outs and another failure", []int{timedOut, timedOut, timedOut, refused}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var b breaker
			now := time.Now()
			for i, a := range tt.attempts {
				if a == answered {
					b.answer()
					continue
				}
				opened := b.fail(Failure{TimedOut: a == timedOut, Due: now.Add(time.Hour)}, false, now, half)
				if opened != (tt.open && i == len(tt.attempts)-1) {
					t.Errorf("after %d of %d attempts opened = %v, want %v", i+1, len(tt.attempts), opened, !opened)
				}
			}
			if b.open != tt.open {
				t.Errorf("open = %v, want %v", b.open, tt.open)
			}
		})
	}
}

// An open breaker probes at intervals that double up to lastProbe, with a jitter of half an
// interval. Retries do not wait for the probes.
func TestBreakerProbesAtDoublingIntervals(t *testing.T) {
	now := time.Now()
	failed := Failure{Due: now.Add(1000 * time.Hour)}
	var b breaker
	for !b.fail(failed, false, now, half) {
	}
	for i, most := range []time.Duration{1, 2, 4, 8, 16, 30, 30, 30} {
		most *= time.Second
		if wait := b.probe.Sub(now); wait < most/2 || wait > most {
			t.Errorf("probe %d after %v, want it in the second half of %v", i, wait, most)
		}
		if wait := b.retry.Sub(now); wait != retrySpace {
			t.Errorf("retry %d after %v, want %v", i, wait, retrySpace)
		}
		if b.fail(failed, false, now.Add(time.Millisecond), half); b.probe.Sub(now) > most {
			t.Errorf("probe %d: an attempt that began before the breaker opened delays the probe, want no delay", i)
		}
		now = b.probe
		b.fail(failed, true, now, half)
	}
	if !b.answer() || b.open {
		t.Error("the breaker is open after an answer, want it closed")
	}
	for !b.fail(failed, false, now, half) {
	}
	if wait := b.probe.Sub(now); wait < lastProbe/2 {
		t.Errorf("a breaker that opens again at once: first probe after %v, want at least %v", wait, lastProbe/2)
	}
	b.answer()
	b.probes = 0
	for !b.fail(failed, false, now, half) {
	}
	if wait := b.probe.Sub(now); wait > firstProbe {
		t.Errorf("a breaker whose destination had recovered: first probe after %v, want at most %v", wait, firstProbe)
	}
}

// An open breaker lets a delivery retry at the end of its retry window, even if the previous retry
// was just before.
func TestBreakerDoesNotDelayLastAttempt(t *testing.T) {
	now := time.Now()
	b := breaker{open: true}
	b.fail(Failure{Due: now.Add(time.Millisecond)}, true, now, half)
	if wait := b.retry.Sub(now); wait != time.Millisecond {
		t.Errorf("a delivery due in a millisecond waits %v, want 1ms", wait)
	}
	b.fail(Failure{}, true, now, half)
	if wait := b.retry.Sub(now); wait != 0 {
		t.Errorf("after a delivery that was given up, the next retry waits %v, want 0", wait)
	}
}
