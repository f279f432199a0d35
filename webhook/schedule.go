package webhook

import (
	"math/rand/v2"
	"time"
)

// The schedule of a delivery that keeps failing, with full jitter: the wait
// before attempt n+1 is between 0 and the least of 1 s doubled n-1 times and
// 10 minutes.
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
// It is front-weighted: most failures are a restart or a short overload, and
// most of the rest last longer than anyone wants to be asked about each
// minute. Jitter over the whole wait keeps the deliveries that failed together
// from coming back together.
const (
	firstWait = time.Second
	longWait  = 10 * time.Minute
)

// jitter returns a random duration below n. Tests give it a fixed seed.
var jitter = rand.N[time.Duration]

// longestWait returns the most that is waited after attempt n, counted from 1.
func longestWait(n int) time.Duration {
	if n > 10 {
		return longWait
	}
	return min(firstWait<<max(n-1, 0), longWait)
}

// nextAttempt returns when a delivery whose attempt n has just failed is due
// again. retryAfter is what the endpoints asked for, a floor under the
// schedule. The last attempt starts early enough to end within the window;
// nextAttempt returns false once that time has passed.
func nextAttempt(now, expires time.Time, n int, retryAfter, timeout time.Duration) (time.Time, bool) {
	last := expires.Add(-timeout)
	if !now.Before(last) {
		return time.Time{}, false
	}
	wait := max(jitter(longestWait(n)+1), retryAfter)
	due := now.Add(wait)
	if due.After(last) {
		due = last
	}
	return due, true
}
