package webhook_test

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hookferry/analytics/step"
	"github.com/hookferry/analytics/webhook"
)

// The deliveries are sent one after another, and the receiver answers them in the order of answers.
func TestDestinationStatsShowOutcomeAndLatestFailure(t *testing.T) {
	taken, refused, busy := step.Answer(200), step.Answer(422).WithBody("unknown plan"), step.Answer(503).WithBody("come back later")
	times := func(n int, each step.Step) []step.Step {
		return slices.Repeat([]step.Step{each}, n)
	}
	for _, tt := range []struct {
		name     string
		answers  []step.Step
		outcome  webhook.Outcome
		refusing bool
		status   int  // of the latest failure; 0 if there was none
		again    bool // the failed delivery is to be retried
	}{
		{"nothing was sent", nil, "", false, 0, false},
		{"taken", times(1, taken), webhook.OutcomeDelivered, false, 0, false},
		{"refused", times(1, refused), webhook.OutcomePermanent, true, 422, false},
		{"refused after many were taken", append(times(9, taken), refused), webhook.OutcomePermanent, true, 422, false},
		{"one of nine refused", slices.Concat(times(4, taken), times(1, refused), times(4, taken)), webhook.OutcomeDelivered, false, 422, false},
		{"every other one refused", slices.Repeat([]step.Step{refused, taken}, 4), webhook.OutcomeDelivered, true, 422, false},
		{"all taken since", slices.Concat(times(8, refused), times(5, taken)), webhook.OutcomeDelivered, false, 422, false},
		{"redirected", times(1, step.Answer(302)), webhook.OutcomePermanent, true, 302, false},
		{"busy", times(1, busy), webhook.OutcomeRetryable, false, 503, true},
		{"busy, having refused", append(times(1, refused), busy), webhook.OutcomeRetryable, true, 503, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, r *rig) {
				r.network.Receiver(hook, "", append(tt.answers, busy)...)
				r.start(webhook.Config{Destinations: []webhook.Destination{{ID: "crm", Endpoints: []webhook.Endpoint{{URL: hook}}}}})
				for range tt.answers {
					r.track("")
					time.Sleep(time.Millisecond)
					synctest.Wait()
				}
				var got webhook.DestinationStats
				all, err := r.DestinationStats(t.Context())
				must(t, err)
				if len(all) > 0 {
					got = all[0]
				}
				if got.Outcome != tt.outcome || got.Refusing != tt.refusing {
					t.Errorf("got the outcome %q, refusing %v; want %q, %v", got.Outcome, got.Refusing, tt.outcome, tt.refusing)
				}
				f := got.Failure
				if f == nil {
					f = new(webhook.Failure)
				}
				if f.Attempt.Status != tt.status || f.Due.IsZero() == tt.again || (tt.status == 0) != (f.MessageID == "") {
					t.Errorf("got the failure %+v; want the status %d, a retry is due: %v", f, tt.status, tt.again)
				}
			})
		})
	}
}

// The latest failure has the answer of the receiver and the time of the next retry. After the last
// attempt of the retry window, it has no time.
func TestFailureHasTheReceiversAnswer(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		r.network.Receiver(hook, "", step.Answer(503).WithBody("come back later"))
		r.start(webhook.Config{Window: time.Minute, Destinations: []webhook.Destination{{ID: "crm", Endpoints: []webhook.Endpoint{{URL: hook}}}}})
		failure := func() *webhook.Failure {
			synctest.Wait()
			all, err := r.DestinationStats(t.Context())
			if err != nil || len(all) != 1 || all[0].Failure == nil {
				t.Fatalf("DestinationStats() = %+v, %v; want a failure", all, err)
			}
			return all[0].Failure
		}
		r.track("m1")
		time.Sleep(5 * time.Millisecond)
		first := failure()
		if first.MessageID != "m1" || first.Attempt.Try != 1 || first.Attempt.Answer != "come back later" || first.Attempt.Reason != webhook.ReasonServerError || !first.Due.After(time.Now()) {
			t.Errorf("the first failure is %+v, want the first attempt of m1, its answer, and a retry that is due later", first)
		}
		time.Sleep(2 * time.Minute)
		last := failure()
		if last.Attempt.Try <= first.Attempt.Try || !last.Due.IsZero() {
			t.Errorf("the last failure is %+v, want a later attempt, and no retry due", last)
		}
		if all, _ := r.DestinationStats(t.Context()); all[0].Outcome != webhook.OutcomeRetryable || all[0].Refusing {
			t.Errorf("after the retry window: %+v, want the outcome %q and not refusing", all[0], webhook.OutcomeRetryable)
		}
	})
}
