// Package retryafter reads the Retry-After header (RFC 9110, section 10.2.3).
package retryafter

import (
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Max is the longest wait that Parse returns. Parse reduces longer waits to Max.
const Max = 365 * 24 * time.Hour

// Parse returns how long to wait, counted from now, according to the value of a
// Retry-After header. The value is a number of seconds or an HTTP date in any of its
// three forms. For any other value Parse returns false. For a date in the past it
// returns 0 and true.
func Parse(value string, now time.Time) (time.Duration, bool) {
	value = strings.Trim(value, " \t")
	if value == "" {
		return 0, false
	}
	if '0' <= value[0] && value[0] <= '9' {
		n, err := strconv.ParseUint(value, 10, 64)
		if errors.Is(err, strconv.ErrRange) {
			return Max, true
		}
		return time.Duration(min(n, uint64(Max/time.Second))) * time.Second, err == nil
	}
	at, err := http.ParseTime(value)
	if err != nil {
		return 0, false
	}
	return min(max(at.Sub(now), 0), Max), true
}
