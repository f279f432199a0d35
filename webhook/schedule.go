package webhook

import (
	"math/rand/v2"
	"time"
)

// A Schedule says how long a delivery that keeps failing waits between its attempts. The wait is
// random, between 0 and a longest wait (full jitter). The longest wait doubles with each attempt,
// up to a bound.
type Schedule string

// The schedules.
const (
	// ScheduleDefault begins with 1 s, and waits up to 10 minutes.
	ScheduleDefault Schedule = ""
	// ScheduleEager begins with 1 s, and waits up to 1 minute. It is for a receiver that should get
	// its deliveries soon after an outage. The receiver gets up to ten times as many requests as
	// with ScheduleDefault.
	ScheduleEager Schedule = "eager"
	// SchedulePatient begins with 30 s, and waits up to 30 minutes. It is for a receiver that
	// repeated requests harm.
	SchedulePatient Schedule = "patient"
)

// The longest waits of ScheduleDefault: after the first attempt, and after any attempt.
const (
	firstWait = time.Second
	longWait  = 10 * time.Minute
)

// bounds returns the longest wait after the first attempt, and the longest after any attempt. known
// is false if there is no such schedule.
func (s Schedule) bounds() (first, most time.Duration, known bool) {
	switch s {
	case ScheduleEager:
		return firstWait, time.Minute, true
	case SchedulePatient:
		return 30 * time.Second, 30 * time.Minute, true
	}
	return firstWait, longWait, s == ScheduleDefault
}

// A pace holds the settings that say when and for how long a delivery is attempted.
type pace struct {
	timeout, window time.Duration
	schedule        Schedule
}

// The default schedule in full:
//
//	attempt   wait at most   latest start after the first
//	      2            1 s                 1 s
//	      3            2 s                 3 s
//	      4            4 s                 7 s
//	      5            8 s                15 s
//	      6           16 s                31 s
//	      7           32 s             1 m  3 s
//	      8           64 s             2 m  7 s
//	      9          128 s             4 m 15 s
//	     10          256 s             8 m 31 s
//	     11          512 s            17 m  3 s
//	     12           10 m            27 m  3 s
//	    ...           10 m           ... to the end of the window
//
// Most attempts come early, because most failures are a restart or a short overload. Most other
// failures last so long that an attempt each minute would be wasted. Jitter over the whole wait
// keeps the deliveries that failed together from coming back together.

// jitter returns a random duration below n. Tests give it a fixed seed.
var jitter = rand.N[time.Duration]

// longestWait returns the longest wait after attempt n, counted from 1.
func (s Schedule) longestWait(n int) time.Duration {
	first, most, _ := s.bounds()
	if n > 10 {
		return most
	}
	return min(first<<max(n-1, 0), most)
}

// nextAttempt returns when a delivery is due again after its attempt n has failed. retryAfter is
// the wait that the endpoints asked for: the delivery waits at least that long. The last attempt
// starts early enough to end within the window. If it is too late for such an attempt, nextAttempt
// returns false.
func (p pace) nextAttempt(now, expires time.Time, n int, retryAfter time.Duration) (time.Time, bool) {
	last := expires.Add(-p.timeout)
	if !now.Before(last) {
		return time.Time{}, false
	}
	wait := max(jitter(p.schedule.longestWait(n)+1), retryAfter)
	due := now.Add(wait)
	if due.After(last) {
		due = last
	}
	return due, true
}
