package webhook

import (
	"testing"
	"time"
)

func TestDefaultScheduleDoublesUpToTenMinutes(t *testing.T) {
	for n, want := range map[int]time.Duration{
		1: time.Second, 2: 2 * time.Second, 3: 4 * time.Second, 9: 256 * time.Second,
		10: 512 * time.Second, 11: 10 * time.Minute, 12: 10 * time.Minute, 1000: 10 * time.Minute, 1 << 30: 10 * time.Minute,
	} {
		if got := Schedule("").longestWait(n); got != want {
			t.Errorf("longestWait(%d) = %v, want %v", n, got, want)
		}
	}
}

func TestEagerAndPatientScheduleWaits(t *testing.T) {
	for s, want := range map[Schedule][3]time.Duration{
		ScheduleEager:   {time.Second, 32 * time.Second, time.Minute},
		SchedulePatient: {30 * time.Second, 16 * time.Minute, 30 * time.Minute},
	} {
		if got := [3]time.Duration{s.longestWait(1), s.longestWait(6), s.longestWait(50)}; got != want {
			t.Errorf("%s: the longest waits after the attempts 1, 6 and 50 are %v, want %v", s, got, want)
		}
	}
}

// The waits are about those that ScheduleDays names, and their spread is a fifth of them.
func TestScheduleDaysWaits(t *testing.T) {
	for n, want := range map[int]time.Duration{
		1: 5 * time.Second, 2: 5 * time.Minute, 3: 30 * time.Minute, 4: 2 * time.Hour, 5: 5 * time.Hour,
		6: 10 * time.Hour, 7: 24 * time.Hour, 8: 24 * time.Hour, 1 << 30: 24 * time.Hour,
	} {
		var least, most time.Duration = 1 << 62, 0
		for range 2000 {
			wait := ScheduleDays.wait(n)
			least, most = min(least, wait), max(most, wait)
		}
		from, to := want-want/10, want+want/10
		if least < from || most > to || least > from+want/50 || most < to-want/50 {
			t.Errorf("after attempt %d, it waits %v to %v, want %v to %v", n, least, most, from, to)
		}
	}
}

func TestNextAttemptIsJitteredWithinItsBounds(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	const timeout = 5 * time.Second
	target := &target{timeout: timeout}
	for _, tt := range []struct {
		name       string
		left       time.Duration // until the retry window ends
		n          int           // attempts so far
		retryAfter time.Duration
		from, to   time.Duration // bounds of the wait
		dead       bool          // there is no next attempt
	}{
		{name: "first", left: time.Hour, n: 1, to: time.Second},
		{name: "fifth", left: time.Hour, n: 5, to: 16 * time.Second},
		{name: "longest wait", left: 2 * time.Hour, n: 40, to: 10 * time.Minute},
		{name: "Retry-After is a floor", left: time.Hour, n: 1, retryAfter: time.Minute, from: time.Minute, to: time.Minute},
		{name: "Retry-After below the schedule", left: time.Hour, n: 11, retryAfter: time.Second, from: time.Second, to: 10 * time.Minute},
		{name: "Retry-After is capped by the window", left: time.Hour, n: 1, retryAfter: 5 * time.Hour, from: time.Hour - timeout, to: time.Hour - timeout},
		{name: "last attempt ends within the window", left: 10 * time.Second, n: 30, retryAfter: 9 * time.Second, from: 5 * time.Second, to: 5 * time.Second},
		{name: "just enough time for another attempt", left: timeout + 1, n: 30, from: 0, to: 1},
		{name: "no time for another attempt", left: timeout, n: 3, dead: true},
		{name: "window has ended", left: -time.Minute, n: 3, dead: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var least, most time.Duration = 1 << 62, -1
			for range 2000 {
				due, ok := target.nextAttempt(now, now.Add(tt.left), max(target.schedule.wait(tt.n), tt.retryAfter))
				if ok == tt.dead {
					t.Fatalf("nextAttempt() = %v, %v; want %v", due, ok, !tt.dead)
				}
				if !ok {
					return
				}
				wait := due.Sub(now)
				if wait < tt.from || wait > tt.to {
					t.Fatalf("nextAttempt() waits %v, want %v to %v", wait, tt.from, tt.to)
				}
				least, most = min(least, wait), max(most, wait)
			}
			if span := tt.to - tt.from; most-least < span*8/10 {
				t.Errorf("2,000 waits span %v to %v, want jitter over most of %v to %v", least, most, tt.from, tt.to)
			}
		})
	}
}
