package webhook_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hookferry/analytics/webhook"
)

// A slowLease is a queue whose first lease that hands out something takes so long.
type slowLease struct {
	webhook.Queue
	takes    time.Duration
	verdicts []webhook.Verdict
}

func (q *slowLease) Lease(ctx context.Context, req webhook.LeaseRequest, dst []webhook.Delivery) ([]webhook.Delivery, time.Time, error) {
	ds, next, err := q.Queue.Lease(ctx, req, dst)
	if len(ds) > len(dst) {
		time.Sleep(q.takes)
		q.takes = 0
	}
	return ds, next, err
}

func (q *slowLease) Settle(ctx context.Context, ss ...webhook.Settlement) error {
	for _, s := range ss {
		q.verdicts = append(q.verdicts, s.Verdict)
	}
	return q.Queue.Settle(ctx, ss...)
}

// An attempt that might outlast its lease is not begun: another would attempt it too.
func TestNoAttemptLateInALease(t *testing.T) {
	const timeout = time.Second
	for _, tt := range []struct {
		name string
		left time.Duration // of the lease, when the delivery comes
		want []webhook.Verdict
	}{
		{"two timeouts are left", 2 * timeout, []webhook.Verdict{webhook.Done}},
		{"less is left", 2*timeout - time.Microsecond, []webhook.Verdict{webhook.Retry, webhook.Done}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, r *rig) {
				recv := r.network.Receiver(hook, "shh")
				q := &slowLease{Queue: r.queue, takes: 12*timeout - tt.left}
				r.queue = q
				r.start(webhook.Config{Destinations: crm(hook), Timeout: timeout})
				r.track("1")
				time.Sleep(time.Minute)
				synctest.Wait()
				if n := len(recv.Requests()); n != 1 {
					t.Errorf("%d requests, want 1", n)
				}
				if !slices.Equal(q.verdicts, tt.want) {
					t.Errorf("verdicts %v, want %v", q.verdicts, tt.want)
				}
				if s := r.Stats(); s.Delivered != 1 || s.Retried != 0 {
					t.Errorf("Stats() = %+v, want 1 delivered, and no retry", s)
				}
			})
		})
	}
}
