package feed

import (
	"context"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
	"github.com/hookferry/analytics/internal/testkit"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/memqueue"
	"github.com/hookferry/analytics/webhook/store"
)

// A recorder reports to a feed what happens to deliveries.
type recorder struct{ *Feed }

func newDelivery(destination, id string) webhook.Delivery {
	return webhook.Delivery{
		Destination: destination, ID: id, MessageID: id, Source: "shop", User: "u1", Event: "Signed Up", Type: "track",
		Body: []byte(`{"type":"track","event":"Signed Up","messageId":"` + id + `"}`), Accepted: time.Now().UTC(),
	}
}

func (t recorder) accepts(ds ...webhook.Delivery) {
	t.Accepted(accepted(ds...))
}

// accepted describes a call that has stored ds.
func accepted(ds ...webhook.Delivery) webhook.Accepted {
	a := webhook.Accepted{Stored: len(ds)}
	for _, d := range ds {
		a.Puts, a.Results = append(a.Puts, store.Put{Delivery: d}), append(a.Results, store.Result{Stored: true})
	}
	return a
}

func (t recorder) succeeds(d webhook.Delivery, took time.Duration) {
	t.Attempted(webhook.Attempted{
		Delivery: d, Outcome: webhook.OutcomeDelivered,
		Attempt: webhook.Attempt{At: time.Now().Add(-took).UTC(), Took: webhook.Millis(took), Try: d.Tries + 1, Endpoint: "https://a.example/", Status: 200},
	})
	t.Ended(webhook.Record{Delivery: d, At: time.Now().UTC()})
}

// fails reports a failed attempt of d. The next attempt is due after wait. If wait is 0, d
// becomes a dead letter.
func (t recorder) fails(d *webhook.Delivery, wait time.Duration) {
	d.Tries++
	a := webhook.Attempt{
		At: time.Now().UTC(), Took: webhook.Millis(time.Millisecond), Try: d.Tries, Endpoint: "https://a.example/",
		Status: 503, Reason: webhook.ReasonServerError, Answer: "try later",
	}
	d.Attempts = append(d.Attempts, a)
	attempted := webhook.Attempted{Delivery: *d, Attempt: a, Outcome: webhook.OutcomeRetryable}
	if wait > 0 {
		attempted.Due = time.Now().Add(wait).UTC()
	}
	t.Attempted(attempted)
	if wait == 0 {
		t.Ended(webhook.Record{Delivery: *d, Reason: webhook.ReasonExpired, At: time.Now().UTC()})
	}
}

func kinds(events []api.Event) (s []string) {
	for _, e := range events {
		s = append(s, e.ID+" "+e.Kind)
	}
	return s
}

// latest returns the latest events that match the filter.
func (t recorder) latest(filter Filter, limit int) []api.Event {
	events, _ := t.Feed.Events(filter, limit)
	return events
}

func diff(t *testing.T, what string, got, want any) {
	t.Helper()
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("%s (-want +got):\n%s", what, d)
	}
}

func TestStoryFollowsADelivery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := recorder{New()}
		begin := time.Now().UTC()
		d := newDelivery("crm", "m1")
		f.accepts(d)
		time.Sleep(time.Second)
		f.fails(&d, 2*time.Second)
		s, ok := f.Story("crm", "", "m1")
		due := begin.Add(3 * time.Second)
		names := api.Names{Destination: "crm", ID: "m1", Source: "shop", User: "u1", Event: "Signed Up", Type: "track"}
		want := api.Delivery{
			Names: names, State: webhook.StateWaiting, Accepted: begin, Due: due, Tries: 1,
			Attempts: []webhook.Attempt{{
				At: begin.Add(time.Second), Took: webhook.Millis(time.Millisecond), Try: 1, Endpoint: "https://a.example/", Status: 503,
				Reason: "server_error", Answer: "try later",
			}},
			Body: d.Body,
		}
		if !ok {
			t.Fatal("Story of a waiting delivery = false, want true")
		}
		diff(t, "story while it waits", s, want)

		time.Sleep(2 * time.Second)
		f.fails(&d, 0)
		s, _ = f.Story("crm", "", "m1")
		ended := begin.Add(3 * time.Second)
		want.State, want.Reason, want.Due, want.Ended, want.Tries = webhook.StateDead, "expired", time.Time{}, ended, 2
		want.Attempts = append(want.Attempts, want.Attempts[0])
		want.Attempts[1].At, want.Attempts[1].Try = ended, 2
		diff(t, "story of the dead letter", s, want)

		events := f.latest(Filter{}, 10)
		diff(t, "events", kinds(events), []string{"m1 dead", "m1 attempt", "m1 attempt", "m1 accepted"})
		diff(t, "event accepted", events[3], api.Event{
			Seq: 1, At: begin, Kind: KindAccepted, Names: names, Body: d.Body,
		})
		diff(t, "the latest two", kinds(f.latest(Filter{}, 2)), []string{"m1 dead", "m1 attempt"})
		if _, ok := f.Story("crm", "", "m2"); ok {
			t.Error("Story of an unknown delivery = true, want false")
		}
	})
}

// TestSourcesHaveStoriesOfTheirOwn shows that calls of two sources with the same messageId have two
// stories.
func TestSourcesHaveStoriesOfTheirOwn(t *testing.T) {
	f := recorder{New()}
	shop, browser := newDelivery("crm", "m1"), newDelivery("crm", "m1")
	shop.ID, browser.ID, browser.Source = "id of shop", "id of browser", "browser"
	f.accepts(shop)
	f.accepts(browser)
	f.fails(&shop, 0)
	for _, tt := range []struct{ source, id, want string }{
		{"shop", "m1", "shop dead"},
		{"browser", "m1", "browser waiting"},
		{"", "m1", "browser waiting"}, // the latest
		{"", "id of shop", "shop dead"},
		{"backend", "m1", " "},
	} {
		if s, _ := f.Story("crm", tt.source, tt.id); s.Source+" "+string(s.State) != tt.want {
			t.Errorf("Story of %q from %q: %s %s, want %s", tt.id, tt.source, s.Source, s.State, tt.want)
		}
	}
}

// TestStoryIsCompletedByItsEnd: if another process accepted a delivery, the feed sees only its
// later attempts. The delivery at the end has the earlier attempts, which complete the story.
func TestStoryIsCompletedByItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := recorder{New()}
		d := newDelivery("crm", "m1")
		before := webhook.Attempt{At: time.Now().Add(-time.Minute).UTC(), Try: 1, Endpoint: "https://a.example/", Reason: webhook.ReasonTimeout}
		d.Attempts, d.Tries = []webhook.Attempt{before}, 1
		f.succeeds(d, time.Millisecond)
		s, _ := f.Story("crm", "", "m1")
		if s.State != webhook.StateDelivered || len(s.Attempts) != 2 || s.Attempts[0].Reason != "timeout" || s.Attempts[1].Status != 200 || s.Body == nil {
			t.Errorf("story %+v, want two attempts, the first of them a timeout, and the body", s)
		}
	})
}

func TestDuplicatesAreNotAccepted(t *testing.T) {
	f := recorder{New()}
	one, two := newDelivery("crm", "m1"), newDelivery("crm", "m2")
	f.accepts(one)
	again := accepted(one, two)
	again.Results[0].Stored, again.Stored = false, 1
	f.Accepted(again)
	again.Results[1].Stored, again.Stored = false, 0
	f.Accepted(again)
	f.Accepted(webhook.Accepted{Stored: 7}) // a sync
	diff(t, "events", kinds(f.latest(Filter{}, 10)), []string{"m2 accepted", "m1 accepted"})
	last := func(vs []*float64) (sum float64) {
		for _, v := range vs {
			if v != nil {
				sum += *v
			}
		}
		return sum
	}
	if of, all := last(f.Series("crm", FiveMinutes).Accepted), last(f.Series("", FiveMinutes).Accepted); of != 2 || all != 9 {
		t.Errorf("the series have %v accepted of crm and %v in all, want 2 and 9", of, all)
	}
}

func TestFilter(t *testing.T) {
	f := recorder{New()}
	for _, d := range []webhook.Delivery{newDelivery("crm", "Alpha"), newDelivery("shop", "beta")} {
		f.accepts(d)
		f.succeeds(d, 0)
	}
	tests := []struct {
		name   string
		filter Filter
		want   int
	}{
		{"all", Filter{}, 6},
		{"destination", Filter{Destination: "crm"}, 3},
		{"unknown destination", Filter{Destination: "cr"}, 0},
		{"type", Filter{Type: "track"}, 6},
		{"other type", Filter{Type: "page"}, 0},
		{"kinds", Filter{Kinds: []string{KindAccepted, KindDelivered}}, 4},
		{"id", Filter{Query: "ALPH"}, 3},
		{"body", Filter{Query: "signed up"}, 6},
		{"all fields", Filter{Destination: "shop", Type: "track", Kinds: []string{KindAttempt}, Query: "eta"}, 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := len(f.latest(tt.filter, 100)); got != tt.want {
				t.Errorf("Events(%+v): %d events, want %d", tt.filter, got, tt.want)
			}
		})
	}
}

func TestBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := defaultBounds
		b.events, b.bytes = 40, 30_000
		f := recorder{newFeed(b)}
		for i := range 2000 {
			d := newDelivery("crm", fmt.Sprint("m", i))
			d.Body = []byte(`"` + strings.Repeat("x", i%2000) + `"`)
			f.accepts(d)
			for range 20 {
				f.fails(&d, time.Second)
			}
			time.Sleep(time.Second)
			if n := len(f.events); n > b.events || f.bytes > b.bytes || len(f.deliveries) > n {
				t.Fatalf("the feed has %d events of %d deliveries in %d bytes, over its bounds", n, len(f.deliveries), f.bytes)
			}
			s, ok := f.Story("crm", "", d.ID)
			if !ok || len(s.Attempts) != store.MaxAttempts || s.Attempts[1].Try != 2 || s.Attempts[2].Try != 7 {
				t.Fatalf("the latest delivery has a story: %v, with %d attempts; want a story with the second try, followed by try 7", ok, len(s.Attempts))
			}
		}
		sum, events := 0, make(map[*delivery]int)
		for _, e := range f.events {
			sum += e.size()
			events[e.of]++
		}
		for d, n := range events {
			sum += d.size()
			if d.events != n || f.deliveries[d.key] != d {
				t.Errorf("the delivery %s has %d events, want %d", d.ID, d.events, n)
			}
		}
		if sum != f.bytes || len(events) != len(f.deliveries) {
			t.Errorf("%d deliveries have events, which take %d bytes in all; the feed has %d deliveries and counts %d bytes", len(events), sum, len(f.deliveries), f.bytes)
		}
	})
}

// TestBudgetPrefersQuietDestinations shows that a feed leaves out events over its budget, and
// counts them. It leaves out events of a busy destination before those of a quiet one.
func TestBudgetPrefersQuietDestinations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := recorder{New()}
		r := f.Follow(Filter{}, Now)
		const seconds = 6
		read, skipped := 0, int64(0)
		quiet := 0
		for i := range seconds * 1000 {
			for range 10 {
				d := newDelivery("busy", fmt.Sprint("b", i))
				f.accepts(d)
				f.succeeds(d, 0)
			}
			if i%500 == 0 {
				d := newDelivery("quiet", fmt.Sprint("q", i))
				f.accepts(d)
				f.succeeds(d, 0)
			}
			time.Sleep(time.Millisecond)
			events, n := r.Next()
			read += len(events)
			skipped += n
			for _, e := range events {
				if e.Destination == "quiet" {
					quiet++
				}
			}
		}
		if least, most := (seconds-2)*eventRate, seconds*eventRate+eventBurst; read < least || read > most {
			t.Errorf("the reader got %d events in %d s, want %d to %d", read, seconds, least, most)
		}
		if want := seconds * 2 * 3; quiet != want {
			t.Errorf("the reader got %d events of the quiet destination, want %d", quiet, want)
		}
		if f.total.leftOut != skipped || skipped < 1000 {
			t.Errorf("the reader skipped %d events, and the feed left out %d, want the same number and at least 1000", skipped, f.total.leftOut)
		}
	})
}

// TestRetriesDoNotHideNewDeliveries shows that the events of a new delivery are kept within about a
// second after a burst of retries, all of which are kept.
func TestRetriesDoNotHideNewDeliveries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := recorder{New()}
		var busy []webhook.Delivery
		for i := range 5000 {
			busy = append(busy, newDelivery("busy", fmt.Sprint("b", i)))
			f.accepts(busy[i])
			time.Sleep(time.Millisecond)
		}
		for i := range busy {
			f.fails(&busy[i], time.Second)
		}
		if n := len(f.latest(Filter{Kinds: []string{KindAttempt}}, 10_000)); n != len(busy) {
			t.Errorf("%d of %d retries are kept, want all", n, len(busy))
		}
		time.Sleep(1100 * time.Millisecond)
		f.accepts(newDelivery("quiet", "q"))
		if got := f.latest(Filter{Destination: "quiet"}, 1); len(got) != 1 {
			t.Error("a new delivery is left out, want it kept")
		}
	})
}

func TestFollowReadsEventsInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := defaultBounds
		b.events = 300
		f := recorder{newFeed(b)}
		f.accepts(newDelivery("crm", "m0"), newDelivery("crm", "m1"))
		r := f.Follow(Filter{Destination: "crm"}, Now)
		if _, seq := f.Events(Filter{}, 1); seq != 2 {
			t.Errorf("the latest event has the seq %d, want 2", seq)
		}
		again := f.Follow(Filter{}, 1)
		if events, skipped := r.Next(); len(events) != 0 || skipped != 0 {
			t.Errorf("Next without new events: %q and %d skipped, want none", kinds(events), skipped)
		}
		f.accepts(newDelivery("shop", "s1")) // the filter leaves this event out
		f.accepts(newDelivery("crm", "m2"))
		events, _ := r.Next()
		diff(t, "Next", kinds(events), []string{"m2 accepted"})

		events, _ = again.Next()
		diff(t, "Next from the first on", kinds(events), []string{"m1 accepted", "s1 accepted", "m2 accepted"})
		if events, _ = f.Follow(Filter{}, 0).Next(); len(events) != 4 {
			t.Errorf("%d events from the start, want 4", len(events))
		}

		late := f.Follow(Filter{}, 99) // a number from another process
		for i := range 500 {
			f.accepts(newDelivery("crm", fmt.Sprint("n", i)))
		}
		read, skipped := 0, int64(0)
		for range 3 {
			events, n := late.Next()
			read, skipped = read+len(events), skipped+n
		}
		if read != 300 || skipped != 200 {
			t.Errorf("a slow reader got %d events and skipped %d, want 300 and 200", read, skipped)
		}
	})
}

// TestSkippedCountsTheReadersDestination shows that a reader of one destination gets the number of
// events that the feed left out of that destination.
func TestSkippedCountsTheReadersDestination(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := recorder{New()}
		quiet, busy := f.Follow(Filter{Destination: "quiet"}, Now), f.Follow(Filter{Destination: "busy"}, Now)
		for i := range 5000 {
			f.accepts(newDelivery("busy", fmt.Sprint("b", i)))
		}
		f.accepts(newDelivery("quiet", "q"))
		if events, skipped := quiet.Next(); len(events) != 1 || skipped != 0 {
			t.Errorf("quiet: %d events, %d skipped, want 1 and 0", len(events), skipped)
		}
		read, skipped := 0, int64(0)
		for range 5000/maxNext + 1 {
			events, n := busy.Next()
			read, skipped = read+len(events), skipped+n
		}
		if read+int(skipped) != 5000 || read < eventBurst-eventReserve {
			t.Errorf("busy: %d events, %d skipped, want 5000 together and at least %d events", read, skipped, eventBurst-eventReserve)
		}
	})
}

// TestCountingAllocatesNothing shows that a feed allocates nothing for events that it only counts.
func TestCountingAllocatesNothing(t *testing.T) {
	f := recorder{New()}
	ds := make([]webhook.Delivery, 100)
	for i := range ds {
		ds[i] = newDelivery("crm", fmt.Sprint("m", i))
	}
	failed := webhook.Attempted{
		Delivery: webhook.Delivery{Destination: "crm", ID: "m1", Type: "track"}, Outcome: webhook.OutcomeRetryable, Due: time.Now(),
		Attempt: webhook.Attempt{At: time.Now(), Took: webhook.Millis(time.Millisecond), Try: 1, Status: 503, Reason: webhook.ReasonServerError},
	}
	call := accepted(ds...)
	work := func() {
		f.tokens = -1000 // so that nothing is kept
		f.Accepted(call)
		f.Attempted(failed)
		f.succeeds(ds[0], time.Millisecond)
	}
	work()
	if n := testing.AllocsPerRun(100, work); n > 0 {
		t.Errorf("%v allocations, want none", n)
	}
	if len(f.deliveries) > 0 {
		t.Errorf("the feed has events of %d deliveries, want none", len(f.deliveries))
	}
}

// sumOf returns the sum of a line of a series, and the number of its known steps.
func sumOf(vs []*float64) (sum float64, known int) {
	for _, v := range vs {
		if v != nil {
			sum, known = sum+*v, known+1
		}
	}
	return sum, known
}

func TestSeriesSumsItsSteps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := recorder{New()}
		// Two deliveries a second for ten minutes. One of the two fails once.
		for i := range 600 {
			d := newDelivery("crm", fmt.Sprint("m", i))
			e := newDelivery("shop", fmt.Sprint("s", i))
			f.accepts(d, e)
			f.fails(&d, time.Second)
			f.succeeds(d, 100*time.Millisecond)
			f.succeeds(e, 10*time.Millisecond)
			time.Sleep(time.Second)
		}
		d, e := newDelivery("erp", "m1"), newDelivery("erp", "m2")
		refused := webhook.Attempt{At: time.Now(), Try: 1, Status: 413, Reason: webhook.ReasonRefused}
		f.Attempted(webhook.Attempted{Delivery: d, Batch: []*webhook.Delivery{&d, &e}, Attempt: refused, Outcome: webhook.OutcomePermanent, Due: time.Now()})
		if sum, _ := sumOf(f.Series("erp", FiveMinutes).Retried); sum != 0 {
			t.Errorf("%v deliveries of a batch that was divided are retried, want 0", sum)
		}
		tests := []struct {
			name            string
			of              string
			length          int
			delivered, dead float64
			steps           int
			p50, p99        float64
		}{
			{"five minutes", "crm", FiveMinutes, 299, 0, 300, 0, 0},
			{"hour", "crm", Hour, 600, 0, 61, 1, 100.663},
			{"day", "crm", Day, 600, 0, 3, 1, 100.663},
			{"all, day", "", Day, 1200, 0, 3, 10.485, 100.663},
			{"nothing happened", "other", Hour, 0, 0, 61, 0, 0},
		}
		for _, tt := range tests {
			s := f.Series(tt.of, tt.length)
			if sum, known := sumOf(s.Delivered); sum != tt.delivered || known != tt.steps {
				t.Errorf("%s: %v delivered in %d known steps, want %v in %d", tt.name, sum, known, tt.delivered, tt.steps)
			}
			if sum, _ := sumOf(s.Retried); tt.of == "crm" && sum != tt.delivered {
				t.Errorf("%s: %v retried, want %v", tt.name, sum, tt.delivered)
			}
			if step := time.Duration(s.Step) * time.Millisecond; time.Until(s.Start.Add(step*time.Duration(len(s.Dead)))) > step {
				t.Errorf("%s: starts at %v with %d steps of %v, which end after now", tt.name, s.Start, len(s.Dead), step)
			}
			if tt.p50 == 0 {
				continue
			}
			n := len(s.P50) - 2 // the last step is empty
			if s.P50[n] == nil || math.Abs(*s.P50[n]-tt.p50) > tt.p50/8 || math.Abs(*s.P99[n]-tt.p99) > 1 {
				t.Errorf("%s: latency %v and %v, want about %v and %v", tt.name, *s.P50[n], *s.P99[n], tt.p50, tt.p99)
			}
		}
		diff(t, "rates", f.Rates("crm"), api.Rates{Accepted: 1, Delivered: 1, Retried: 1})
		diff(t, "rates of all", f.Rates(""), api.Rates{Accepted: 2, Delivered: 2, Retried: 1})
		diff(t, "errors", f.Errors("crm"), map[string]int64{"server_error": 600})
		diff(t, "errors of the other", f.Errors("shop"), map[string]int64{})

		time.Sleep(30 * time.Minute)
		diff(t, "errors after half an hour", f.Errors("crm"), map[string]int64{"server_error": 600})
		time.Sleep(30 * time.Minute)
		diff(t, "errors after an hour", f.Errors("crm"), map[string]int64{})
		diff(t, "rates after an hour", f.Rates("crm"), api.Rates{})
		if sum, known := sumOf(f.Series("crm", Hour).Delivered); sum != 0 || known != 360 {
			t.Errorf("after an hour: %v delivered in %d known steps, want 0 in 360", sum, known)
		}
		if sum, _ := sumOf(f.Series("crm", Day).Delivered); sum != 600 {
			t.Errorf("after an hour: %v delivered in a day, want 600", sum)
		}
		time.Sleep(48 * time.Hour)
		if sum, known := sumOf(f.Series("crm", Day).Delivered); sum != 0 || known != 288 {
			t.Errorf("after two days: %v delivered in %d known steps, want 0 in 288", sum, known)
		}
	})
}

func TestSeriesIncludesUnfinishedSteps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := recorder{New()}
		for length := range levels {
			d := newDelivery("crm", fmt.Sprint(length))
			f.succeeds(d, time.Millisecond)
			if sum, _ := sumOf(f.Series("crm", length).Delivered); sum != float64(length+1) {
				t.Errorf("levels[%d]: %v delivered, want %d", length, sum, length+1)
			}
			s := f.Series("crm", length)
			if s.P50[len(s.P50)-1] == nil {
				t.Errorf("levels[%d]: the unfinished step has no latency", length)
			}
		}
	})
}

func TestIdleDestinationsMakeRoomForOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := defaultBounds
		b.destinations = 2
		f := recorder{newFeed(b)}
		f.accepts(newDelivery("a", "1"), newDelivery("b", "2"), newDelivery("c", "3"))
		if _, known := sumOf(f.Series("c", Hour).Accepted); known != 1 || len(f.destinations) != 2 {
			t.Errorf("the third destination has %d known steps, and %d destinations have series, want 1 and 2", known, len(f.destinations))
		}
		time.Sleep(b.idle - time.Second)
		f.accepts(newDelivery("b", "4"))
		time.Sleep(time.Second)
		f.waits(nil)
		f.accepts(newDelivery("c", "5"))
		sum, known := sumOf(f.Series("c", Hour).Accepted)
		if sum != 1 || known != 1 || f.destinations["a"] != nil || len(f.destinations) != 2 {
			t.Errorf("the third destination has %v accepted in %d known steps, want 1 in 1, in the place of the first destination", sum, known)
		}
		if sum, _ := sumOf(f.Series("", Hour).Accepted); sum != 5 {
			t.Errorf("%v accepted in all, want 5", sum)
		}
	})
}

func TestRunRecordsWaitingDeliveries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := testkit.Must(memqueue.Open(memqueue.Config{}))
		defer q.Close()
		f := recorder{New()}
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { f.Run(ctx, q) })
		time.Sleep(3 * time.Second)
		for _, id := range []string{"1", "2"} {
			ps := []store.Put{{Delivery: newDelivery("crm", id)}, {Delivery: newDelivery("shop", id)}}
			if err := q.Put(ctx, ps, make([]store.Result, len(ps))); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(15 * time.Second)
		for _, tt := range []struct {
			of   string
			want float64
		}{{"", 4}, {"crm", 2}, {"shop", 2}} {
			for length := range levels {
				w := f.Series(tt.of, length).Waiting
				if v := w[len(w)-1]; v == nil || *v != tt.want {
					t.Errorf("waiting deliveries of %q, levels[%d]: %v, want %v", tt.of, length, v, tt.want)
				}
			}
		}
		if w := f.Series("", FiveMinutes).Waiting; *w[len(w)-17] != 0 || w[len(w)-25] != nil {
			t.Error("the earlier steps are wrong, want 0 after the start and nothing before")
		}
		cancel()
		wg.Wait()
	})
}

func TestConcurrentUse(t *testing.T) {
	b := defaultBounds
	b.events, b.destinations = 64, 8
	f := recorder{newFeed(b)}
	ctx, cancel := context.WithCancel(t.Context())
	var readers, recorders sync.WaitGroup
	for range 3 {
		readers.Go(func() {
			r := f.Follow(Filter{Query: "5"}, 1)
			for ctx.Err() == nil {
				r.Next()
				f.latest(Filter{}, 10)
				f.Series("d1", Hour)
				f.Errors("d1")
				f.Rates("")
				f.Story("d1", "", "5")
				f.waits(map[string]int{"d1": 1, "d9": 1})
			}
		})
	}
	for n := range 4 {
		recorders.Go(func() {
			for i := range 3000 {
				d := newDelivery(fmt.Sprint("d", i%10), fmt.Sprint(n, i))
				f.accepts(d)
				f.fails(&d, time.Second)
				f.succeeds(d, time.Millisecond)
			}
		})
	}
	recorders.Wait()
	cancel()
	readers.Wait()
}
