package webhook_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hookferry/analytics/step"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/store"
)

// bury forwards n deliveries, with the given time between them, and checks that all become dead
// letters. The endpoint must refuse them.
func (r *rig) bury(n int, spacing time.Duration) {
	r.t.Helper()
	for i := range n {
		r.track(fmt.Sprint("dead-", i))
		if spacing > 0 {
			time.Sleep(spacing)
		}
	}
	time.Sleep(time.Second) // outcomes are stored together
	if got := len(r.dead()); got != n {
		r.t.Fatalf("got %d dead letters, want %d", got, n)
	}
}

func TestDeadLetterHasBodyAndAttempts(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		r.network.Receiver(hook, "", step.Answer(503).WithBody("come back"), step.Answer(404).WithBody("no such user"))
		r.start(webhook.Config{Destinations: crm(hook)})
		began := time.Now().UTC()
		r.bury(1, time.Minute)
		all := r.dead()
		got, err := r.Delivery(t.Context(), all[0].Ref())
		must(t, err)
		if diff := cmp.Diff(all[0], got); diff != "" {
			t.Errorf("Delivery() differs from what Deliveries yields (-Deliveries +Delivery)\n%s", diff)
		}
		if !strings.Contains(string(got.Body), `"dead-0"`) || got.Reason != webhook.ReasonRefused || len(got.Attempts) != 2 {
			t.Fatalf("Delivery() = %+v, want the body of dead-0, the reason %q and 2 attempts", got, webhook.ReasonRefused)
		}
		for i, want := range []webhook.Attempt{
			{Try: 1, Endpoint: hook, Status: 503, Reason: webhook.ReasonServerError, Answer: "come back"},
			{Try: 2, Endpoint: hook, Status: 404, Reason: webhook.ReasonRefused, Answer: "no such user"},
		} {
			a := got.Attempts[i]
			if a.At.Before(began) || i == 0 && !a.At.Equal(began) {
				t.Errorf("attempt %d was at %v, want the first at %v and the second not before", i, a.At, began)
			}
			a.At, a.Took = time.Time{}, 0
			if diff := cmp.Diff(want, a); diff != "" {
				t.Errorf("attempt %d (-want +got)\n%s", i, diff)
			}
		}
		if _, err := r.Discard(t.Context(), got.Ref()); err != nil {
			t.Fatal(err)
		}
		if _, err := r.Delivery(t.Context(), got.Ref()); !errors.Is(err, webhook.ErrNoDelivery) {
			t.Errorf("Delivery() of a discarded one = %v, want ErrNoDelivery", err)
		}
	})
}

// last returns the last number of changed deliveries that seq yields.
func last(seq iter.Seq2[webhook.Progress, error]) (n int, err error) {
	var p webhook.Progress
	for p, err = range seq {
	}
	return p.Changed, err
}

// A delivery that is being attempted while its destination is deleted is discarded when it comes back.
func TestDiscardWaitingDiscardsWhatComesBack(t *testing.T) {
	for _, tt := range []struct {
		took time.Duration
		want webhook.Progress
	}{{300 * time.Millisecond, webhook.Progress{Changed: 2}}, {3 * time.Second, webhook.Progress{Changed: 1, Claimed: 1}}} {
		inBubble(t, func(t *testing.T, r *rig) {
			r.network.Receiver(hook, "", step.Answer(503).After(tt.took))
			r.start(webhook.Config{Destinations: []webhook.Destination{{ID: "crm", MaxConcurrent: 1, Endpoints: []webhook.Endpoint{{URL: hook}}}}})
			r.track("m1")
			r.track("m2")
			synctest.Wait()
			if got, err := r.DiscardWaiting(t.Context(), "crm"); got != tt.want || err != nil {
				t.Errorf("beside an attempt of %v, DiscardWaiting = %+v, %v, want %+v", tt.took, got, err, tt.want)
			}
		})
	}
}

func TestRetryAllYieldsItsProgress(t *testing.T) {
	const n = 1100 // more than a store lists in one call
	inBubble(t, func(t *testing.T, r *rig) {
		crm := r.network.Receiver(hook, "", step.Answer(404))
		r.start(webhook.Config{Destinations: []webhook.Destination{{ID: "crm", Endpoints: []webhook.Endpoint{{URL: hook}}}}})
		r.bury(n, 0)
		time.Sleep(time.Second)
		for _, tt := range []struct {
			query webhook.Query
			want  int
		}{
			{webhook.Query{}, n},
			{webhook.Query{States: []webhook.State{webhook.StateDead}}, n},
			{webhook.Query{Destinations: []string{"crm"}}, n},
			{webhook.Query{Destinations: []string{"other"}}, 0},
			{webhook.Query{Reason: webhook.ReasonExpired}, 0},
			{webhook.Query{Type: "track"}, n},
			{webhook.Query{From: time.Now()}, 0},
		} {
			if got, err := r.Count(t.Context(), tt.query); got != tt.want || err != nil {
				t.Errorf("Count(%+v) = %d, %v; want %d", tt.query, got, err, tt.want)
			}
		}

		// RetryAll may be stopped after its first commit. Another call retries the rest.
		for done, err := range r.RetryAll(t.Context(), webhook.Query{}) {
			if done.Changed != 256 || err != nil {
				t.Fatalf("RetryAll yields %+v, %v first; want 256", done, err)
			}
			break
		}
		time.Sleep(time.Second)
		if got := len(r.dead()); got != n {
			t.Errorf("got %d dead letters after 256 were retried and refused again, want %d", got, n)
		}
		before := len(crm.Requests())
		var steps []int
		for done, err := range r.RetryAll(t.Context(), webhook.Query{}) {
			must(t, err)
			steps = append(steps, done.Changed)
			time.Sleep(time.Second) // the retried deliveries become dead letters again
		}
		if diff := cmp.Diff([]int{256, 512, 768, 1024, n}, steps); diff != "" {
			t.Errorf("numbers that RetryAll yields (-want +got)\n%s", diff)
		}
		if got := len(crm.Requests()) - before; got != n {
			t.Errorf("got %d requests for the retry of %d dead letters, want one for each", got, n)
		}

		// When its context ends, DiscardAll yields how many it has discarded.
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var latest int
		var latestErr error
		for done, err := range r.DiscardAll(ctx, webhook.Query{}) {
			latest, latestErr = done.Changed, err
			cancel()
		}
		if latest != 256 || !errors.Is(latestErr, context.Canceled) {
			t.Errorf("DiscardAll with a canceled context yields %d, %v last; want 256, context.Canceled", latest, latestErr)
		}
		if got, err := last(r.DiscardAll(t.Context(), webhook.Query{})); got != n-256 || err != nil {
			t.Errorf("DiscardAll of the rest yields %d, %v last; want %d", got, err, n-256)
		}
	})
}

// A lateStore buries the due deliveries of "crm" before each Hasten, as a worker may after the caller
// has listed them.
type lateStore struct{ webhook.Store }

func (s lateStore) Hasten(ctx context.Context, refs ...store.Ref) (n, claimed int, err error) {
	ds, err := s.Fetch(ctx, []store.Want{{Destination: "crm", Max: 10}}, 1<<20, nil)
	ss := make([]store.Settlement, len(ds))
	for i := range ds {
		ss[i] = store.Settlement{Verdict: store.Bury, Delivery: ds[i], Reason: store.ReasonRefused, At: s.Now()}
	}
	if err == nil {
		_, err = s.Settle(ctx, ss)
	}
	if err != nil {
		return 0, 0, err
	}
	return s.Store.Hasten(ctx, refs...)
}

// A retry of what waits leaves alone what was given up meanwhile. Otherwise it would come again behind
// the next one with its key.
func TestRetryOfWaitingLeavesWhatWasBuriedMeanwhile(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		r.queue = lateStore{r.queue}
		r.start(webhook.Config{Destinations: crm(hook)})
		must(t, r.Pause(t.Context(), "crm"))
		must(t, r.ForwardEvents(t.Context(), []string{"crm"}, keyed(3, "a")...))
		waiting := webhook.Query{States: []webhook.State{webhook.StateWaiting}}
		if n, err := last(r.RetryAll(t.Context(), waiting)); n != 0 || err != nil {
			t.Errorf("RetryAll of a delivery that was buried after it was listed yields %d, %v; want 0", n, err)
		}
		for w := range r.Deliveries(t.Context(), waiting) {
			if n, err := r.Retry(t.Context(), w.Ref()); n.Changed != 0 || err != nil {
				t.Errorf("Retry of a delivery that was buried meanwhile = %+v, %v; want 0", n, err)
			}
		}
		if c := r.counts(); c.Waiting != 1 || c.Behind != 0 || c.Dead != 2 {
			t.Errorf("Count() = %+v, want 1 waiting and 2 dead", c)
		}
	})
}

func TestShutdownRefusesRetryButAllowsDiscard(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		r.network.Receiver(hook, "", step.Answer(404))
		r.start(webhook.Config{Destinations: crm(hook)})
		r.bury(2, time.Second)
		must(t, r.Shutdown(t.Context()))
		all := r.dead()
		if n, err := r.Retry(t.Context(), all[0].Ref()); n.Changed != 0 || !errors.Is(err, webhook.ErrClosed) {
			t.Errorf("Retry() = %+v, %v; want 0, ErrClosed", n, err)
		}
		if n, err := last(r.RetryAll(t.Context(), webhook.Query{})); n != 0 || !errors.Is(err, webhook.ErrClosed) {
			t.Errorf("RetryAll yields %d, %v; want 0, ErrClosed", n, err)
		}
		if n, err := r.Discard(t.Context(), all[0].Ref()); n.Changed != 1 || err != nil {
			t.Errorf("Discard() = %+v, %v; want 1", n, err)
		}
		if got := r.dead(); len(got) != 1 || got[0].Seq != all[1].Seq {
			t.Errorf("got %d dead letters, want the one that was not discarded", len(got))
		}
		r.queue.Close()
		for _, query := range []webhook.Query{{States: []webhook.State{webhook.StateDead}}, {Destinations: []string{"crm"}}} {
			if n, err := r.Count(t.Context(), query); n != 0 || !errors.Is(err, webhook.ErrClosed) {
				t.Errorf("Count(%+v) of a closed store = %d, %v; want 0, ErrClosed", query, n, err)
			}
		}
	})
}

// The forwarder discards dead letters beyond the age or size bound, oldest first. It counts and
// logs them.
func TestDeadLettersBeyondTheBoundsAreDiscardedOldestFirst(t *testing.T) {
	for _, tt := range []struct {
		name   string
		config webhook.Config
		want   []string
		forgot webhook.Forgotten
		logged string
	}{
		{"default bounds keep recent ones", webhook.Config{}, []string{"dead-0", "dead-1", "dead-2", "dead-3"}, webhook.Forgotten{}, ""},
		{"by age", webhook.Config{DeadMaxAge: 3 * time.Hour}, []string{"dead-2", "dead-3"}, webhook.Forgotten{Age: 2}, "bound=age"},
		{"by size", webhook.Config{DeadMaxBytes: 400}, []string{"dead-3"}, webhook.Forgotten{Size: 3}, "bound=size"},
		{"unlimited", webhook.Config{DeadMaxAge: webhook.Unlimited, DeadMaxBytes: webhook.Unlimited}, []string{"dead-0", "dead-1", "dead-2", "dead-3"}, webhook.Forgotten{}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, r *rig) {
				r.network.Receiver(hook, "", step.Answer(404))
				var log lines
				c := tt.config
				c.Destinations = crm(hook)
				c.Logger = slog.New(slog.NewTextHandler(&log, nil))
				r.start(c)
				for i := range 4 {
					r.track(fmt.Sprint("dead-", i))
					time.Sleep(time.Hour)
				}
				time.Sleep(time.Hour)
				synctest.Wait()
				var got []string
				for _, d := range r.dead() {
					got = append(got, d.ID)
				}
				if diff := cmp.Diff(tt.want, got); diff != "" {
					t.Errorf("dead letters that are kept (-want +got)\n%s", diff)
				}
				if s := r.Stats(); s.Forgotten != tt.forgot {
					t.Errorf("Stats().Forgotten = %+v, want %+v", s.Forgotten, tt.forgot)
				}
				if !strings.Contains(log.String(), tt.logged) || tt.logged == "" && strings.Contains(log.String(), "bound=") {
					t.Errorf("the log has no %q, or has a line about a bound that was not reached:\n%s", tt.logged, log.String())
				}
			})
		})
	}
}

// By default, the forwarder discards a dead letter after 30 days and not earlier.
func TestDeadLettersAreKeptFor30Days(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		r.network.Receiver(hook, "", step.Answer(404))
		r.start(webhook.Config{Destinations: crm(hook), Poll: time.Hour}) // a poll each second would make 30 days slow
		r.bury(1, time.Second)
		time.Sleep(30*24*time.Hour - time.Minute)
		synctest.Wait()
		if n := len(r.dead()); n != 1 {
			t.Errorf("got %d dead letters before 30 days have passed, want 1", n)
		}
		time.Sleep(time.Hour + time.Minute)
		synctest.Wait()
		if n := len(r.dead()); n != 0 {
			t.Errorf("got %d dead letters after 30 days, want none", n)
		}
	})
}
