package webhook

import (
	"testing"
	"time"
)

func TestBreakerOpensAfterARowOfFailures(t *testing.T) {
	now := time.Now()
	retry := postpone(&Delivery{Expires: now.Add(time.Hour)}, now.Add(time.Hour))
	for _, tt := range []struct {
		name  string
		paces []pace
		open  bool
	}{
		{"nine failures", []pace{failing, failing, failing, failing, failing, failing, failing, failing, failing}, false},
		{"ten failures", []pace{failing, failing, failing, failing, failing, failing, failing, failing, failing, failing}, true},
		{"an answer between", []pace{failing, failing, failing, failing, failing, answered, failing, failing, failing, failing, failing, failing}, false},
		{"three time-outs", []pace{timedOut, timedOut, timedOut}, false},
		{"four time-outs", []pace{timedOut, timedOut, timedOut, timedOut}, true},
		{"both", []pace{timedOut, timedOut, timedOut, failing}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var b breaker
			for i, p := range tt.paces {
				if p == answered {
					b.answer()
				} else if opened := b.fail(p, false, &retry, now); opened != (tt.open && i == len(tt.paces)-1) {
					t.Errorf("after %d of %d attempts opened = %v", i+1, len(tt.paces), opened)
				}
			}
			if b.open != tt.open {
				t.Errorf("open = %v, want %v", b.open, tt.open)
			}
		})
	}
}

// Its probes come at intervals that double, jittered by half, and deliveries
// that were attempted before need not wait for them.
func TestBreakerProbes(t *testing.T) {
	now := time.Now()
	fresh, begun := &Delivery{}, &Delivery{Expires: now.Add(time.Hour)}
	retry := postpone(begun, now.Add(time.Hour))
	var b breaker
	for !b.fail(failing, false, &retry, now) {
	}
	for i, most := range []time.Duration{1, 2, 4, 8, 16, 30, 30, 30} {
		most *= time.Second
		if wait := b.probe.Sub(now); wait < most/2 || wait > most {
			t.Errorf("probe %d after %v, want it within the second half of %v", i, wait, most)
		}
		if wait := b.retry.Sub(now); wait != retrySpace {
			t.Errorf("retry %d after %v, want %v", i, wait, retrySpace)
		}
		if early := b.probe.Add(-1); !b.admits(begun, early) || b.admits(fresh, early) || !b.admits(fresh, b.probe) {
			t.Errorf("probe %d: one that was begun is to be admitted before, one that was not after", i)
		}
		if !b.retry.Equal(b.probe) {
			t.Errorf("probe %d: after the first in the lane was not admitted the next is asked for at %v, want the probe at %v", i, b.retry, b.probe)
		}
		if b.fail(failing, false, &retry, now.Add(time.Millisecond)); b.probe.Sub(now) > most {
			t.Errorf("probe %d: an attempt from before it opened puts it off", i)
		}
		now = b.probe
		b.fail(timedOut, true, &retry, now)
	}
	if !b.answer() || b.open || !b.admits(fresh, now) {
		t.Error("an answer does not close it")
	}
	for !b.fail(failing, false, &retry, now) {
	}
	if wait := b.probe.Sub(now); wait < lastProbe/2 {
		t.Errorf("the first probe after %v of one that opens again at once", wait)
	}
	b.answer()
	b.forgive()
	for !b.fail(failing, false, &retry, now) {
	}
	if wait := b.probe.Sub(now); wait > firstProbe {
		t.Errorf("the first probe after %v of one that had recovered", wait)
	}
}

// What is at the end of its window is not kept waiting.
func TestBreakerAdmitsTheLastAttempt(t *testing.T) {
	now := time.Now()
	b := breaker{open: true}
	soon := postpone(&Delivery{}, now.Add(time.Millisecond))
	b.fail(failing, true, &soon, now)
	if wait := b.retry.Sub(now); wait != time.Millisecond {
		t.Errorf("a delivery due in a millisecond waits %v", wait)
	}
	over := bury(&Delivery{}, ReasonExpired, now)
	b.fail(failing, true, &over, now)
	if wait := b.retry.Sub(now); wait != 0 {
		t.Errorf("what follows a delivery given up waits %v", wait)
	}
}

func TestPaceOf(t *testing.T) {
	r := func(o outcome, why Reason) result { return result{outcome: o, attempt: Attempt{Reason: why}} }
	for _, tt := range []struct {
		name    string
		results []result
		want    pace
	}{
		{"404", []result{r(permanent, ReasonRefused)}, answered},
		{"certificate", []result{r(permanent, ReasonCertificate)}, answered},
		{"503", []result{r(retryable, ReasonServerError)}, failing},
		{"429", []result{r(retryable, ReasonThrottled)}, failing},
		{"timeout", []result{r(retryable, ReasonTimeout)}, timedOut},
		{"404 and 503", []result{r(permanent, ReasonRefused), r(retryable, ReasonServerError)}, failing},
		{"503 and timeout", []result{r(retryable, ReasonServerError), r(retryable, ReasonTimeout)}, timedOut},
	} {
		if got := paceOf(tt.results); got != tt.want {
			t.Errorf("%s: paceOf() = %d, want %d", tt.name, got, tt.want)
		}
	}
}
