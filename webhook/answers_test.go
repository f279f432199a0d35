package webhook_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hookferry/analytics/event"
	"github.com/hookferry/analytics/internal/testkit"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/memqueue"
)

// A directory answers from rows. It is a LiveDirectory, and with txDirectory a TxDirectory.
type directory struct {
	mu     sync.Mutex
	rows   []webhook.Destination
	err    error
	asked  int           // number of questions
	slow   time.Duration // how long each takes
	follow func(ctx context.Context, changed func(tenant, destination string)) error
}

func (d *directory) ask(ctx context.Context, want func(*webhook.Destination) bool) (got []webhook.Destination, err error) {
	d.mu.Lock()
	d.asked++
	for _, row := range d.rows {
		if want(&row) {
			got = append(got, row)
		}
	}
	slow, err := d.slow, d.err
	d.mu.Unlock()
	select {
	case <-time.After(slow):
	case <-ctx.Done():
		err = ctx.Err()
	}
	return got, err
}

func (d *directory) Destination(ctx context.Context, id string) (webhook.Destination, error) {
	ds, err := d.ask(ctx, func(d *webhook.Destination) bool { return d.ID == id })
	switch {
	case err != nil:
		return webhook.Destination{}, err
	case len(ds) == 0:
		return webhook.Destination{}, webhook.ErrUnknownDestination
	}
	return ds[0], nil
}

func (d *directory) Destinations(ctx context.Context, tenant string) ([]webhook.Destination, error) {
	return d.ask(ctx, func(d *webhook.Destination) bool { return d.Tenant == tenant })
}

func (d *directory) Follow(ctx context.Context, changed func(tenant, destination string)) error {
	if d.follow == nil {
		return errors.ErrUnsupported
	}
	return d.follow(ctx, changed)
}

func (d *directory) set(rows ...webhook.Destination) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.rows = rows
}

// questions returns how many questions were asked since the last call.
func (d *directory) questions() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	defer func() { d.asked = 0 }()
	return d.asked
}

func at(id, url string) webhook.Destination {
	return webhook.Destination{ID: id, Tenant: "acme", Endpoints: []webhook.Endpoint{{URL: url}}}
}

func TestAnswersOfADirectoryAreUsedForAWhile(t *testing.T) {
	for _, tt := range []struct {
		name string
		rows []webhook.Destination
		err  error
		age  time.Duration
	}{
		{"known", []webhook.Destination{at("crm", hook)}, nil, webhook.DefaultAnswerAge},
		{"unknown", nil, nil, time.Second},
		{"gone", nil, webhook.ErrTakesNothing, time.Second},
		{"failing", nil, errAway, 100 * time.Millisecond},
	} {
		synctest.Test(t, func(t *testing.T) {
			d := &directory{rows: tt.rows, err: tt.err}
			f, err := webhook.New(webhook.Config{Store: testkit.Must(memqueue.Open(memqueue.Config{})), Directory: d})
			must(t, err)
			for i, wait := range []time.Duration{0, tt.age - 1, 1} {
				time.Sleep(wait)
				for range 100 {
					if err := f.Forward(t.Context(), "crm", call("m")); (err != nil) != (tt.err == errAway) {
						t.Errorf("%s: Forward() = %v", tt.name, err)
					}
				}
				if n := d.questions(); n != []int{1, 0, 1}[i] {
					t.Errorf("%s: after %v more: %d questions for 100 calls, want %d", tt.name, wait, n, []int{1, 0, 1}[i])
				}
			}
			f.Recheck("", "other")
			f.Recheck("another tenant")
			_ = f.Forward(t.Context(), "crm", call("m")) // fails if the Directory does
			if n := d.questions(); n != 0 {
				t.Errorf("%s: %d questions after a Recheck of another destination, want none", tt.name, n)
			}
			for _, recheck := range [][]string{{"", "other", "crm"}, {""}, {"acme", "crm"}} {
				f.Recheck(recheck[0], recheck[1:]...)
				_ = f.Forward(t.Context(), "crm", call("m")) // fails if the Directory does
				if n := d.questions(); n != 1 {
					t.Errorf("%s: %d questions after Recheck of %q, want 1", tt.name, n, recheck)
				}
			}
		})
	}
}

// What Send asks about a tenant also serves the deliveries to its destinations, unless these are many.
func TestAnAnswerAboutATenantServesItsDeliveries(t *testing.T) {
	for n, want := range map[int]int{3: 1, 10: 1, 11: 12} {
		inBubble(t, func(t *testing.T, r *rig) {
			r.network.Receiver(hook, "")
			d := &directory{}
			for i := range n {
				d.rows = append(d.rows, at(fmt.Sprint("d", i), hook))
			}
			r.start(webhook.Config{Directory: d})
			for range 2 {
				if _, err := r.Send(t.Context(), "acme", &event.Custom{Type: "a.b"}); err != nil {
					t.Fatal(err)
				}
				time.Sleep(webhook.DefaultAnswerAge)
				if got := d.questions(); got != want {
					t.Errorf("an event to %d destinations asked %d questions, want %d", n, got, want)
				}
			}
			if s := r.Stats(); s.Delivered != int64(2*n) {
				t.Errorf("%d of %d were delivered", s.Delivered, 2*n)
			}
		})
	}
}

// Callers with the same question wait for one answer. If the caller that asks gives up, another one
// asks. A change while somebody asks makes the answer worthless for later calls.
func TestTheSameQuestionIsAskedOnceAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &directory{rows: []webhook.Destination{at("crm", hook)}, slow: time.Second}
		f, err := webhook.New(webhook.Config{Store: testkit.Must(memqueue.Open(memqueue.Config{})), Directory: d})
		must(t, err)
		first, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		var calls sync.WaitGroup
		calls.Go(func() {
			if err := f.Forward(first, "crm", call("first")); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("Forward() that gives up = %v, want that its time is over", err)
			}
		})
		synctest.Wait()
		for i := range 50 {
			calls.Go(func() {
				if err := f.Forward(t.Context(), "crm", call(fmt.Sprint("m", i))); err != nil {
					t.Errorf("Forward() = %v", err)
				}
			})
		}
		calls.Wait()
		if n := d.questions(); n != 2 {
			t.Errorf("%d questions for 51 calls, want 2", n)
		}
		f.Recheck("", "crm")
		calls.Go(func() { must(t, f.Forward(t.Context(), "crm", call("before"))) })
		synctest.Wait()
		f.Recheck("", "crm")
		calls.Wait()
		must(t, f.Forward(t.Context(), "crm", call("after")))
		if n := d.questions(); n != 2 {
			t.Errorf("%d questions before and after a change, want 2", n)
		}
	})
}

// A Directory that hangs is asked once by all who wait, and they fail together.
func TestADirectoryThatHangsIsAskedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &directory{slow: time.Hour}
		f, err := webhook.New(webhook.Config{Store: testkit.Must(memqueue.Open(memqueue.Config{})), Directory: d})
		must(t, err)
		var calls sync.WaitGroup
		for range 50 {
			time.Sleep(time.Millisecond)
			calls.Go(func() {
				if err := f.Forward(t.Context(), "crm", call("m")); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("Forward() = %v, want that the time is over", err)
				}
			})
		}
		calls.Wait()
		if n := d.questions(); n != 1 {
			t.Errorf("%d questions for 50 calls, want 1", n)
		}
	})
}

// What is used often is kept, whatever else is asked for; the rest is forgotten at the bounds.
func TestAnswersAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, c := range []webhook.Config{{MaxAnswers: 100}, {MaxAnswerBytes: 100 << 10}} {
			d := &directory{rows: []webhook.Destination{at("crm", hook)}}
			const n = 1000
			for i := range n {
				d.rows = append(d.rows, at(fmt.Sprint(i), hook))
			}
			c.Store, c.Directory, c.AnswerAge = testkit.Must(memqueue.Open(memqueue.Config{})), d, time.Hour
			f, err := webhook.New(c)
			must(t, err)
			ask := func(id string) int {
				must(t, f.Forward(t.Context(), id, call("m")))
				return d.questions()
			}
			again := 0
			ask("crm")
			for i := range n {
				ask(fmt.Sprint(i))
				if i%10 == 0 {
					again += ask("crm")
				}
			}
			if again != 0 {
				t.Errorf("bounds %d and %d: the destination in use was asked for %d times again, want none", c.MaxAnswers, c.MaxAnswerBytes, again)
			}
			kept := 0
			for i := range n {
				kept += 1 - ask(fmt.Sprint(n-1-i))
			}
			if kept < 10 || kept > 100 {
				t.Errorf("bounds %d and %d: %d answers were kept, want 10 to 100", c.MaxAnswers, c.MaxAnswerBytes, kept)
			}
		}
	})
}

// While Run follows a LiveDirectory, its changes count at once, and its answers are used for five
// minutes. When Follow ends, answers are used for as long as those of another Directory, and Run
// calls Follow again.
func TestChangesOfALiveDirectoryCountAtOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		old, moved := r.network.Receiver("http://old.example/", ""), r.network.Receiver("http://new.example/", "")
		reports := make(chan func(tenant, destination string))
		var followed atomic.Int32
		d := &directory{rows: []webhook.Destination{at("crm", "http://old.example/")}}
		stopped := make(chan struct{})
		d.follow = func(ctx context.Context, changed func(tenant, destination string)) error {
			followed.Add(1)
			changed("", "")
			for {
				select {
				case reports <- changed:
				case <-stopped:
					return errAway
				case <-ctx.Done():
					return nil
				}
			}
		}
		f, err := webhook.New(webhook.Config{
			Store: r.queue, Directory: d, DialContext: r.network.DialContext, Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
		})
		must(t, err)
		r.Forwarder, r.run = f, make(chan error, 1)
		go func() { r.run <- f.Run(context.Background()) }() // ended by stop
		report := <-reports
		for range 4 {
			r.track("to the old URL")
			time.Sleep(time.Minute)
		}
		if n := d.questions(); n != 1 {
			t.Errorf("%d questions in four minutes, want 1", n)
		}
		d.set(at("crm", "http://new.example/"))
		report("acme", "crm")
		r.track("to the new URL")
		synctest.Wait()
		if len(old.Requests()) != 1 || len(moved.Requests()) != 1 { // the others are duplicates
			t.Errorf("%d requests to the old URL and %d to the new one, want one each", len(old.Requests()), len(moved.Requests()))
		}
		off := at("crm", "http://new.example/")
		off.Disabled = true
		d.set(off)
		report("", "crm")
		r.track("while it is disabled")
		time.Sleep(time.Second)
		d.set(at("crm", "http://new.example/"))
		report("acme", "")
		synctest.Wait()
		if len(moved.Requests()) != 2 {
			t.Error("a destination that is enabled again waits after the change was reported")
		}
		close(stopped)
		time.Sleep(10 * time.Second)
		d.questions()
		if n := followed.Load(); n < 3 {
			t.Errorf("Follow was called %d times in ten seconds of failures, want at least 3", n)
		}
		time.Sleep(webhook.DefaultAnswerAge)
		r.track("after Follow has ended")
		if n := d.questions(); n == 0 {
			t.Error("an answer is used for longer than AnswerAge although no changes are reported")
		}
	})
}

// A txDirectory answers in a transaction from the rows of that transaction.
type txDirectory struct {
	*directory
	txs map[string]*directory
}

func (d *txDirectory) WithTx(tx any) webhook.Directory { return d.txs[tx.(string)] }

// In a transaction, a TxDirectory is asked through the transaction. The answer is not kept, because
// it may not be committed. An answer that is kept already is used.
func TestATxDirectoryIsAskedThroughTheTransaction(t *testing.T) {
	box := newOutbox()
	made := at("crm", hook)
	made.Filter.Exclude = []string{"*"}
	d := &txDirectory{&directory{err: errAway}, map[string]*directory{"tx": {rows: []webhook.Destination{made}}}}
	f, err := webhook.New(webhook.Config{Store: box, Directory: d, AnswerAge: time.Hour})
	must(t, err)
	for range 2 {
		must(t, f.ForwardTx(t.Context(), "tx", "crm", call("m")))
	}
	if n, direct := d.txs["tx"].questions(), d.questions(); n != 2 || direct != 0 {
		t.Errorf("%d questions through the transaction and %d beside it, want 2 and none", n, direct)
	}
	if s := f.Stats(); s.Filtered != 2 {
		t.Errorf("Stats() = %+v, want 2 filtered, as the transaction has it", s)
	}
	d.err = nil
	d.set(at("crm", hook))
	must(t, f.Forward(t.Context(), "crm", call("m")))
	d.txs["tx"].err = errAway
	must(t, f.ForwardTx(t.Context(), "tx", "crm", call("m2")))
	if got := box.last[0]; got.Tenant != "acme" {
		t.Errorf("the delivery has the tenant %q, want acme", got.Tenant)
	}
}

// A connection to an address that only a Trusted destination may reach is not used for others.
func TestTrustIsOfADestination(t *testing.T) {
	var paths []string
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { paths = append(paths, r.URL.Path) }))
	defer server.Close()
	trusted, other := at("trusted", server.URL+"/trusted"), at("other", server.URL+"/other")
	trusted.Trusted = true
	ended := make(ends, 2)
	f, err := webhook.New(webhook.Config{
		Store: testkit.Must(memqueue.Open(memqueue.Config{})), Retries: &webhook.Retries{Timeout: webhook.MaxTimeout}, Observers: []webhook.Observer{ended},
		Directory: &directory{rows: []webhook.Destination{trusted, other}},
	})
	must(t, err)
	run := make(chan error, 1)
	go func() { run <- f.Run(context.Background()) }() // ended below
	for _, id := range []string{"trusted", "other"} {
		must(t, f.Forward(t.Context(), id, call(id)))
		<-ended
	}
	must(t, f.Shutdown(t.Context()))
	must(t, <-run)
	if !slices.Equal(paths, []string{"/trusted"}) {
		t.Errorf("got requests for %q, want only that of the trusted destination", paths)
	}
	if dead := collect(t, f.Deliveries(t.Context(), webhook.Query{States: []webhook.State{webhook.StateDead}})); len(dead) != 1 || dead[0].Reason != webhook.ReasonAddress || !strings.HasSuffix(dead[0].Attempts[0].Endpoint, "/other") {
		t.Errorf("the dead letters are %+v, want that of the other destination", dead)
	}
}

// ends is an Observer of the deliveries that have ended.
type ends chan struct{}

func (ends) Accepted(webhook.Accepted)   {}
func (ends) Attempted(webhook.Attempted) {}
func (e ends) Ended(webhook.Record)      { e <- struct{}{} }
