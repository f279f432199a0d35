package webhook

import (
	"time"

	"github.com/hookferry/analytics/check"
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
	// ScheduleDays waits about 5 s, 5 min, 30 min, 2 h, 5 h, 10 h, and then a day each: up to a tenth
	// less or more, at random. It is for the long windows of Retries.
	ScheduleDays Schedule = "days"
)

// schedules has the longest waits of each other Schedule: after the first attempt, and after any attempt.
var schedules = map[Schedule]struct{ first, most time.Duration }{
	ScheduleDefault: {firstWait, longWait},
	ScheduleEager:   {time.Second, time.Minute},
	SchedulePatient: {30 * time.Second, 30 * time.Minute},
}

// days has the waits of ScheduleDays. The last one is repeated.
var days = [...]time.Duration{5 * time.Second, 5 * time.Minute, 30 * time.Minute, 2 * time.Hour, 5 * time.Hour, 10 * time.Hour, 24 * time.Hour}

const (
	firstWait = time.Second
	longWait  = 10 * time.Minute
)

// jitter returns a random duration below n. Tests give it a fixed seed.
var jitter = random.N[time.Duration]

// check adds a fault to wrong if s is not known. field is its path.
func (s Schedule) check(field string, wrong *check.Faults) {
	_, known := schedules[s]
	wrong.Refuse(!known && s != ScheduleDays, field, `is not known; "eager", "patient", "days" and "" (the default) are allowed`)
}

// wait returns a random wait after attempt n, counted from 1.
func (s Schedule) wait(n int) time.Duration {
	if s == ScheduleDays {
		about := days[min(n, len(days))-1]
		return about - about/10 + jitter(about/5+1)
	}
	return jitter(s.longestWait(n) + 1)
}

// longestWait returns the longest wait after attempt n, of a Schedule in schedules.
func (s Schedule) longestWait(n int) time.Duration {
	waits := schedules[s]
	return min(waits.first<<min(n-1, 10), waits.most)
}
