package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hookferry/analytics"
	"github.com/hookferry/analytics/signature"
	"github.com/hookferry/analytics/signature/inbox"
	"github.com/hookferry/analytics/tenants"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/natsqueue"
	"github.com/hookferry/analytics/webhook/pgqueue"
	"github.com/hookferry/analytics/webhook/portal"
)

// TestGuidesHaveTheDefaultsOfTheLibrary shows that the guides say what the constants are. Another
// test compares the keys of the configuration with docs/configuration.md.
func TestGuidesHaveTheDefaultsOfTheLibrary(t *testing.T) {
	days := func(d time.Duration) int { return int(d / (24 * time.Hour)) }
	hours := func(d time.Duration) int { return int(d / time.Hour) }
	seconds := func(d time.Duration) int { return int(d / time.Second) }
	patient := webhook.StandardRetries()
	for _, tt := range []struct{ guide, want string }{
		{"portal.md", fmt.Sprintf("| endpoints of a tenant | %d |", tenants.DefaultMaxDestinations)},
		{"portal.md", fmt.Sprintf("| tests of a tenant in a minute | %d |", portal.DefaultTestsPerMinute)},
		{"portal.md", fmt.Sprintf("send again, in a minute | %d |", portal.DefaultResendsPerMinute)},
		{"portal.md", fmt.Sprintf("beside the new one, %d hours by default", hours(tenants.DefaultOverlap))},
		{"security.md", fmt.Sprintf("for an overlap, %d hours by default", hours(tenants.DefaultOverlap))},
		{"security.md", fmt.Sprintf("Dead letters are kept for %d days", days(webhook.DefaultDeadMaxAge))},
		{"embed.md", fmt.Sprintf("| time of an attempt | %d s | %d s |", seconds(webhook.DefaultTimeout), seconds(patient.Timeout))},
		{"embed.md", fmt.Sprintf("| retries for | %d h | %d days |", hours(webhook.DefaultWindow), days(patient.Window))},
		{"../README.md", fmt.Sprintf("A call has %d KB, a batch %d KB and %s calls", analytics.MaxCallSize>>10, analytics.MaxBatchSize>>10, thousands(analytics.MaxBatchCalls))},
		{"embed.md", fmt.Sprintf("`Config.AnswerAge`: %d s", seconds(webhook.DefaultAnswerAge))},
		{"embed.md", fmt.Sprintf("wait for %d days, or `BacklogMaxAge`", days(webhook.DefaultBacklogMaxAge))},
		{"embed.md", fmt.Sprintf("package `inbox` keeps them for %d days", days(inbox.DefaultKeep))},
		{"receivers.md", fmt.Sprintf("Remove ids after %d days", days(inbox.DefaultKeep))},
		{"receivers.md", fmt.Sprintf("gets up to %s events in one request", thousands(signature.MaxBatch))},
		{"scaling.md", fmt.Sprintf("| `MaxConcurrent` of a destination | %d,", webhook.DefaultMaxConcurrent)},
		{"scaling.md", fmt.Sprintf("| `MaxInFlight` | %s,", thousands(webhook.DefaultMaxInFlight))},
		{"scaling.md", fmt.Sprintf("up to `Config.Partitions`, %d", natsqueue.DefaultPartitions)},
		{"scaling.md", fmt.Sprintf("within `Config.Claim`, %d s", seconds(pgqueue.DefaultClaim))},
		{"migrating.md", fmt.Sprintf("`FlushAt`, default %d.", analytics.DefaultFlushAt)},
		{"migrating.md", fmt.Sprintf("| `MaxMemory`, %d MB by default |", analytics.DefaultMaxMemory>>20)},
		{"migrating.md", fmt.Sprintf("here is `%s`", analytics.DefaultEndpoint)},
	} {
		if text := strings.Join(strings.Fields(guide(t, tt.guide)), " "); !strings.Contains(text, tt.want) {
			t.Errorf("docs/%s does not say %q", tt.guide, tt.want)
		}
	}
}

// thousands writes a number of at most six digits as the guides do.
func thousands(n int) string {
	if n < 1000 {
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%d,%03d", n/1000, n%1000)
}
