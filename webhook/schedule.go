package webhook

import (
	"time"

	"github.com/hookferry/analytics/internal/random"
)

// A Schedule says how long a delivery that keeps failing waits between its attempts. The wait is
// random, between 0 and a longest wait (full jitter), so that deliveries that failed together do
// not come back together. The longest wait doubles with each attempt, up to a bound: most failures
// are a restart or a short overload. By default, the first ten retries start within 17 minutes, and
// further ones every 10 minutes at the latest.
type Schedule string

const (
	ScheduleDefault Schedule = "" // begins with 1 s, and waits up to 10 minutes
	// ScheduleEager begins with 1 s, and waits up to 1 minute. After an outage the receiver gets its
	// deliveries sooner, and up to ten times as many requests as with ScheduleDefault.
	ScheduleEager Schedule = "eager"
	// SchedulePatient begins with 30 s, and waits up to 30 minutes, to spare the receiver repetitions.
	SchedulePatient Schedule = "patient"
)

// schedules has the longest waits of each Schedule: after the first attempt, and after any attempt.
var schedules = map[Schedule]struct{ first, most time.Duration }{
	ScheduleDefault: {firstWait, longWait},
	ScheduleEager:   {time.Second, time.Minute},
	SchedulePatient: {30 * time.Second, 30 * time.Minute},
}

const (
	firstWait = time.Second
	longWait  = 10 * time.Minute
)

// jitter returns a random duration below n. Tests give it a fixed seed.
var jitter = random.N[time.Duration]

// longestWait returns the longest wait after attempt n, counted from 1.
func (s Schedule) longestWait(n int) time.Duration {
	waits := schedules[s]
	return min(waits.first<<min(n-1, 10), waits.most)
}
