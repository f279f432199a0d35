package webhook_test

import (
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hookferry/analytics/event"
	"github.com/hookferry/analytics/step"
	"github.com/hookferry/analytics/webhook"
)

// An observerLog is an Observer that records every call as a line of text.
type observerLog struct {
	mu    sync.Mutex
	lines []string
}

func (j *observerLog) add(format string, args ...any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lines = append(j.lines, fmt.Sprintf(format, args...))
}

func (j *observerLog) Accepted(a webhook.Accepted) {
	for i, p := range a.Puts {
		j.add("accepted %s/%s %s, stored: %v", p.Destination, p.ID, p.Type, a.Results[i].Stored)
	}
}

func (j *observerLog) Attempted(a webhook.Attempted) {
	due := "never"
	if !a.Due.IsZero() {
		due = "later"
		if !a.Due.After(a.At) {
			due = "before"
		}
	}
	j.add("attempted %s/%s %s try %d at %s: %d %s %q in %v, due %s", a.Destination, a.ID, a.Type, a.Try, a.Endpoint, a.Status, a.Outcome, a.Reason, a.Took, due)
}

func (j *observerLog) Ended(e webhook.Record) {
	j.add("ended %s/%s %q with %d attempts kept", e.Delivery.Destination, e.Delivery.ID, e.Reason, len(e.Delivery.Attempts))
}

// take returns the lines since the last take.
func (j *observerLog) take() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	lines := j.lines
	j.lines = nil
	return lines
}

func TestObserverIsToldOfEverything(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		var seen observerLog
		r.network.Receiver(hook, "", step.Answer(503).After(time.Second), step.Answer(200).After(20*time.Millisecond), step.Answer(404))
		r.start(webhook.Config{Observers: []webhook.Observer{&seen}, Destinations: []webhook.Destination{{
			ID: "crm", Endpoints: []webhook.Endpoint{{URL: "http://user:hunter2@crm.example/hook?key=hunter2"}},
		}}})
		expect := func(want ...string) {
			t.Helper()
			synctest.Wait()
			if diff := cmp.Diff(want, seen.take()); diff != "" {
				t.Errorf("calls of the Observer (-want +got):\n%s", diff)
			}
		}
		r.track("m1")
		time.Sleep(time.Minute)
		expect(
			"accepted crm/m1 track, stored: true",
			`attempted crm/m1 track try 1 at http://crm.example/hook: 503 retryable "server_error" in 1s, due later`,
			`attempted crm/m1 track try 2 at http://crm.example/hook: 200 delivered "" in 20ms, due never`,
			`ended crm/m1 "" with 1 attempts kept`,
		)
		r.track("m2")
		expect(
			"accepted crm/m2 track, stored: true",
			`attempted crm/m2 track try 1 at http://crm.example/hook: 404 permanent "refused" in 0s, due never`,
			`ended crm/m2 "refused" with 1 attempts kept`,
		)
		r.track("m2")
		expect("accepted crm/m2 track, stored: false")
	})
}

// When one endpoint has answered 200, the delivery is done, and the requests to its other endpoints
// are no longer needed. The Observer is told of them, whether they run to their end or are cut off.
// With a Key they are not cut off, since a receiver might read them after the next delivery.
func TestObserverIsToldOfRequestsThatAreNoLongerNeeded(t *testing.T) {
	const slow, hung = "http://slow.example/hook", "http://hung.example/hook"
	for _, tt := range []struct {
		name     string
		limit    int
		key      string
		want     map[string]string
		requests int64 // to both deliveries' endpoints, without those cut off
	}{
		{"requests run to their end", 8, "", map[string]string{slow: "delivered", hung: "retryable"}, 6},
		{"requests are cut off", 1, "", map[string]string{slow: "cut_off", hung: "cut_off"}, 4},
		{"requests with a Key", 1, "b", map[string]string{slow: "delivered", hung: "retryable"}, 6},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, r *rig) {
				var mu sync.Mutex
				outcomes := map[string]string{}
				r.network.Receiver(hook, "")
				r.network.Receiver(slow, "", step.Answer(200).After(time.Second))
				r.network.Receiver(hung, "", step.Hang())
				r.start(webhook.Config{
					Destinations: []webhook.Destination{{
						ID: "crm", MaxConcurrent: tt.limit, Endpoints: []webhook.Endpoint{{URL: hook}, {URL: slow}, {URL: hung}},
					}},
					Observers: []webhook.Observer{attempts(func(a webhook.Attempted) {
						mu.Lock()
						defer mu.Unlock()
						if a.ID == "m2" {
							outcomes[a.Endpoint] = string(a.Outcome)
						}
					})},
				})
				r.track("m1")
				synctest.Wait()
				m2 := &event.Custom{Type: "tested", ID: "m2", Key: tt.key, Data: 1}
				must(t, r.Forward(t.Context(), "crm", m2))
				time.Sleep(time.Minute)
				mu.Lock()
				defer mu.Unlock()
				tt.want[hook] = "delivered"
				if diff := cmp.Diff(tt.want, outcomes); diff != "" {
					t.Errorf("outcomes by endpoint (-want +got):\n%s", diff)
				}
				if got := r.Stats().Latency.Requests; got != tt.requests {
					t.Errorf("Stats().Latency has %d requests, want %d", got, tt.requests)
				}
			})
		})
	}
}

// attempts is an Observer that only takes calls of Attempted.
type attempts func(webhook.Attempted)

func (attempts) Accepted(webhook.Accepted)       {}
func (f attempts) Attempted(a webhook.Attempted) { f(a) }
func (attempts) Ended(webhook.Record)            {}

// panicking is an Observer whose methods panic.
type panicking struct{}

func (panicking) Accepted(webhook.Accepted)   { panic("accepted") }
func (panicking) Attempted(webhook.Attempted) { panic("attempted") }
func (panicking) Ended(webhook.Record)        { panic("ended") }

func TestObserverPanicsAreCountedAndLoggedOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		crm := r.network.Receiver(hook, "")
		var log lines
		behind := &endedLog{attempts: func(webhook.Attempted) {}} // is told nevertheless
		r.start(webhook.Config{
			Observers:    []webhook.Observer{panicking{}, behind},
			Destinations: []webhook.Destination{{ID: "crm", Endpoints: []webhook.Endpoint{{URL: hook}}}},
			Logger:       slog.New(slog.NewTextHandler(&log, nil)),
		})
		r.track("m1")
		r.track("m2")
		synctest.Wait()
		if s := r.Stats(); s.Delivered != 2 || s.ObserverPanics != 6 || len(crm.Requests()) != 2 || len(behind.ended) != 2 {
			t.Errorf("Stats() = %+v with %d requests, and the next observer is told of %d; want 2 delivered and 6 panics", s, len(crm.Requests()), len(behind.ended))
		}
		if n := strings.Count(log.String(), "an Observer panicked"); n != 1 {
			t.Errorf("got %d log lines about panics, want 1:\n%s", n, log.String())
		}
	})
}
