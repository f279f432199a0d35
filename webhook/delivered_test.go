package webhook_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hookferry/analytics"
	"github.com/hookferry/analytics/internal/disk"
	"github.com/hookferry/analytics/internal/simdisk"
	"github.com/hookferry/analytics/signature"
	"github.com/hookferry/analytics/step"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/filequeue"
	"github.com/hookferry/analytics/webhook/memqueue"
)

// A store that keeps a History keeps the attempt that succeeded, behind those that failed.
func TestHistoryHasTheAttemptThatSucceeded(t *testing.T) {
	for _, age := range []time.Duration{time.Hour, 0} {
		inBubble(t, func(t *testing.T, r *rig) {
			r.queue.Close()
			s, err := filequeue.Open(disk.Mount(simdisk.New(1)), filequeue.Config{HistoryAge: age})
			must(t, err)
			r.queue = s
			r.network.Receiver("http://crm.example/", "", step.Answer(503), step.Answer(202))
			log := &endedLog{attempts: func(webhook.Attempted) {}}
			r.start(webhook.Config{Observers: []webhook.Observer{log}, Destinations: []webhook.Destination{{ID: "crm", Endpoints: []webhook.Endpoint{{URL: "http://crm.example/"}}}}})
			must(t, r.Forward(t.Context(), "crm", &analytics.Track{UserId: "u1", Event: "Paid", MessageId: "m1"}))
			time.Sleep(time.Minute)
			synctest.Wait()
			kept := 0
			for d, err := range r.Deliveries(t.Context(), webhook.Query{States: []webhook.State{webhook.StateDelivered}}) {
				must(t, err)
				kept++
				if n := len(d.Attempts); d.Tries != 2 || n != 2 || d.Attempts[0].Status != 503 || d.Attempts[1].Status != 202 || d.Attempts[1].Reason != "" || d.Attempts[1].Try != 2 {
					t.Errorf("Delivered: %d tries, attempts %+v, want 2, answered by 503 and 202", d.Tries, d.Attempts)
				}
			}
			want := kept + 1 // without a history, the attempt that failed
			if kept == 1 != (age > 0) || len(log.ended) != 1 || log.ended[0].Tries != want || len(log.ended[0].Attempts) != want {
				t.Errorf("HistoryAge %v: kept %d, the observer got %+v, want %d tries", age, kept, log.ended, want)
			}
		})
	}
}

// Stats counts deliveries that were delivered and are too large for the history.
func TestStatsCountWhatTheHistoryLacks(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		r.queue.Close()
		s, err := memqueue.Open(memqueue.Config{HistoryBytes: 2000})
		must(t, err)
		r.queue = s
		r.network.Receiver("http://crm.example/", "", step.Answer(200))
		r.start(webhook.Config{Destinations: []webhook.Destination{{ID: "crm", Endpoints: []webhook.Endpoint{{URL: "http://crm.example/"}}}}})
		for _, name := range []string{"Paid", strings.Repeat("long", 500), "Paid"} {
			must(t, r.Forward(t.Context(), "crm", &analytics.Track{UserId: "u1", Event: name}))
		}
		synctest.Wait()
		if got := r.Stats(); got.Delivered != 3 || got.Unkept != 1 {
			t.Errorf("Stats has %d delivered, %d unkept, want 3, 1", got.Delivered, got.Unkept)
		}
	})
}

// An endedLog is an observer that keeps what has ended.
type endedLog struct {
	attempts
	ended []webhook.Record
}

func (l *endedLog) Ended(e webhook.Record) { l.ended = append(l.ended, e) }

// RetryAll sends each delivered event that the query selects again, with the same body and a new ID.
// It does not send these copies again.
func TestRetryOfDeliveredOnesGivesNewIDsAndSkipsCopies(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		r.queue.Close()
		var err error
		if r.queue, err = filequeue.Open(disk.Mount(simdisk.New(1)), filequeue.Config{HistoryAge: time.Hour}); err != nil {
			t.Fatal(err)
		}
		const secret = "whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5"
		recv := r.network.Receiver("http://crm.example/", "")
		r.start(webhook.Config{Destinations: []webhook.Destination{{
			ID: "crm", Endpoints: []webhook.Endpoint{{URL: "http://crm.example/"}}, StandardSecrets: []signature.Secret{secret},
		}}})
		for _, id := range []string{"m1", "m2", "m3"} {
			must(t, r.Forward(t.Context(), "crm", &analytics.Track{UserId: "u1", Event: "Paid", MessageId: id}))
			time.Sleep(time.Minute)
		}
		resend := func(q webhook.Query) int {
			t.Helper()
			q.States = []webhook.State{webhook.StateDelivered}
			n, err := last(r.RetryAll(t.Context(), q))
			must(t, err)
			time.Sleep(time.Minute)
			synctest.Wait()
			return n
		}
		for _, test := range []struct {
			query webhook.Query
			want  int
		}{{webhook.Query{ID: "m2"}, 1}, {webhook.Query{ID: "m2"}, 1}, {webhook.Query{User: "u2"}, 0}, {webhook.Query{Destinations: []string{"crm"}}, 3}} {
			if n := resend(test.query); n != test.want {
				t.Errorf("RetryAll(%+v) sent %d again, want %d", test.query, n, test.want)
			}
		}
		var got []string // sorted below, because several attempts run at once
		ids := make(map[string]bool)
		for _, req := range recv.Requests() {
			got = append(got, fmt.Sprint(req.JSON["messageId"]))
			ids[req.Header.Get("webhook-id")] = true
		}
		slices.Sort(got)
		if diff := cmp.Diff([]string{"m1", "m1", "m2", "m2", "m2", "m2", "m3", "m3"}, got); diff != "" || len(ids) != len(got) {
			t.Errorf("got %d different webhook-ids, want %d; received messageIds (-want +got):\n%s", len(ids), len(got), diff)
		}
		if s := r.Stats(); s.Accepted != 8 || s.Delivered != 8 {
			t.Errorf("got %d accepted and %d delivered, want 8 of each", s.Accepted, s.Delivered)
		}
		must(t, r.Shutdown(t.Context()))
		if n, err := last(r.RetryAll(t.Context(), webhook.Query{States: []webhook.State{webhook.StateDelivered}})); n != 0 || !errors.Is(err, webhook.ErrClosed) {
			t.Errorf("RetryAll after Shutdown yields %d, %v; want 0, ErrClosed", n, err)
		}
	})
}
