package webhook

import (
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/hookferry/analytics/check"
)

// The most that Retries may ask for.
const (
	MaxTimeout = 30 * time.Second
	MaxWindow  = 7 * 24 * time.Hour
)

// Retries makes the forwarder attempt deliveries for longer, or after more failures, than the
// public webhook documentation says. A receiver must then deduplicate for as long as Window and
// Config.DeadMaxAge together. StandardRetries returns what Standard Webhooks recommends.
//
// In JSON, times are texts, such as "30s"; see time.ParseDuration. The key "standard" with the value
// true stands for StandardRetries, of which the other keys change parts.
type Retries struct {
	Timeout time.Duration `json:"timeout,omitzero"` // bounds an attempt, up to MaxTimeout; zero means Config.Timeout
	Window  time.Duration `json:"window,omitzero"`  // the retry window, up to MaxWindow; zero means Config.Window
	// Schedule is the schedule of destinations that have none of their own.
	Schedule Schedule `json:"schedule,omitempty"`
	// Statuses lists statuses of answers that are retried, although they are final otherwise: one from
	// 300 to 499, or "3xx" or "4xx" for all of a class. "4xx" does not include 410, which says that
	// nothing should be sent any more.
	Statuses []string `json:"statuses,omitempty"`
	// Certificates also makes the forwarder repeat attempts after a certificate that does not
	// verify.
	Certificates bool `json:"certificates,omitempty"`
}

// StandardRetries returns the retries that the specification of Standard Webhooks recommends: 30 s for
// an attempt, three days of retries with ScheduleDays, and after every answer but a 2xx. A 410 stays
// final; see Config.DisableGone.
//
// Source: github.com/standard-webhooks/standard-webhooks, spec/standard-webhooks.md, "Deliverability
// and reliability". Its example of a schedule takes 75 hours.
func StandardRetries() *Retries {
	return &Retries{
		Timeout: MaxTimeout, Window: 3 * 24 * time.Hour, Schedule: ScheduleDays,
		Statuses: []string{"3xx", "4xx"}, Certificates: true,
	}
}

// Validate checks r as New does. It joins all faults, each a *ConfigError, with errors.Join.
func (r *Retries) Validate() error {
	var wrong check.Faults
	r.check("Retries", &wrong)
	return configError(wrong)
}

// check adds the faults of r, whose path is field, to wrong.
func (r *Retries) check(field string, wrong *check.Faults) {
	if r == nil {
		return
	}
	timeout, window := r.Timeout, r.Window // check.Range sets defaults, but r may be the caller's
	check.Range(wrong, field+".Timeout", &timeout, 0, MaxTimeout, 0)
	check.Range(wrong, field+".Window", &window, 0, MaxWindow, 0)
	r.Schedule.check(field+".Schedule", wrong)
	for i, s := range r.Statuses {
		n, err := strconv.Atoi(s)
		known := s == "3xx" || s == "4xx" || err == nil && 300 <= n && n <= 499
		wrong.Refuse(!known, fmt.Sprintf("%s.Statuses[%d]", field, i), `is no status from 300 to 499, nor "3xx" or "4xx"`)
	}
}

// checkWindow is check.Range for a retry window, and says what allows a longer one.
func checkWindow(wrong *check.Faults, window *time.Duration, most time.Duration) {
	if most < *window && *window <= MaxWindow {
		wrong.Refuse(true, "Window", "is %v; up to %v is allowed, and up to %v if Retries.Window allows it", *window, most, MaxWindow)
		*window = 0
	}
	check.Range(wrong, "Window", window, 0, most, most)
}

// bounds returns the limits of Destination.Timeout and Destination.Window.
func (r *Retries) bounds(c *Config) (timeout, window time.Duration) {
	timeout, window = c.Timeout, c.Window
	if r != nil && r.Timeout > 0 {
		timeout = r.Timeout
	}
	if r != nil && r.Window > 0 {
		window = r.Window
	}
	return timeout, window
}

// outcome returns the outcome of a request that had this outcome and reason without r. status is that
// of the answer, 0 if there was none.
func (r *Retries) outcome(out Outcome, reason Reason, status int) Outcome {
	if r == nil || out != OutcomePermanent {
		return out
	}
	if status == 0 && reason == ReasonCertificate && r.Certificates {
		return OutcomeRetryable
	}
	for _, s := range r.Statuses {
		hundred := s == "3xx" && status/100 == 3 || s == "4xx" && status/100 == 4 && status != http.StatusGone
		if hundred || s == strconv.Itoa(status) {
			return OutcomeRetryable
		}
	}
	return out
}
