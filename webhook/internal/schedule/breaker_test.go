package schedule

import (
	"testing"
	"time"
)

// half is a jitter without luck.
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
		{"an answer between", []int{refused, refused, refused, refused, refused, answered, refused, refused, refused, refused, refused, refused}, false},
		{"three time-outs", []int{timedOut, timedOut, timedOut}, false},
		{"four time-outs", []int{timedOut, timedOut, timedOut, timedOut}, true},
		{"both", []int{timedOut, timedOut, timedOut, refused}, true},
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
					t.Errorf("after %d of %d attempts opened = %v", i+1, len(tt.attempts), opened)
				}
			}
			if b.open != tt.open {
				t.Errorf("open = %v, want %v", b.open, tt.open)
			}
		})
	}
}

// Its probes come at intervals that double, jittered by half, and retries need not wait for
// them.
func TestBreakerProbes(t *testing.T) {
	now := time.Now()
	failed := Failure{Due: now.Add(1000 * time.Hour)}
	var b breaker
	for !b.fail(failed, false, now, half) {
	}
	for i, most := range []time.Duration{1, 2, 4, 8, 16, 30, 30, 30} {
		most *= time.Second
		if wait := b.probe.Sub(now); wait < most/2 || wait > most {
			t.Errorf("probe %d after %v, want it within the second half of %v", i, wait, most)
		}
		if wait := b.retry.Sub(now); wait != retrySpace {
			t.Errorf("retry %d after %v, want %v", i, wait, retrySpace)
		}
		if b.fail(failed, false, now.Add(time.Millisecond), half); b.probe.Sub(now) > most {
			t.Errorf("probe %d: an attempt from before it opened puts it off", i)
		}
		now = b.probe
		b.fail(failed, true, now, half)
	}
	if !b.answer() || b.open {
		t.Error("an answer does not close it")
	}
	for !b.fail(failed, false, now, half) {
	}
	if wait := b.probe.Sub(now); wait < lastProbe/2 {
		t.Errorf("the first probe after %v of one that opens again at once", wait)
	}
	b.answer()
	b.forgive()
	for !b.fail(failed, false, now, half) {
	}
	if wait := b.probe.Sub(now); wait > firstProbe {
		t.Errorf("the first probe after %v of one that had recovered", wait)
	}
}

// What is at the end of its retry window is not kept waiting.
func TestBreakerAdmitsTheLastAttempt(t *testing.T) {
	now := time.Now()
	b := breaker{open: true}
	b.fail(Failure{Due: now.Add(time.Millisecond)}, true, now, half)
	if wait := b.retry.Sub(now); wait != time.Millisecond {
		t.Errorf("a delivery due in a millisecond waits %v", wait)
	}
	b.fail(Failure{}, true, now, half)
	if wait := b.retry.Sub(now); wait != 0 {
		t.Errorf("what follows a delivery given up waits %v", wait)
	}
}
