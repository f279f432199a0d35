package admin

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http/httptest"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
	"github.com/hookferry/analytics/cmd/hookferry/internal/config"
	"github.com/hookferry/analytics/cmd/hookferry/internal/feed"
	"github.com/hookferry/analytics/internal/testkit"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/memqueue"
	"github.com/hookferry/analytics/webhook/store"
)

// bury puts n dead letters of a destination into the store, with the ids m0, m1 and so on. The
// first died at the time died, an hour after it was accepted, and each other one a second after the
// one before.
func (s *server) bury(destination, reason string, n int, died time.Time) {
	s.t.Helper()
	ps := make([]store.Put, n)
	for i := range ps {
		accepted := died.Add(time.Duration(i)*time.Second - time.Hour)
		ps[i].Delivery = webhook.Delivery{
			Destination: destination, ID: fmt.Sprint("of shop m", i), MessageID: fmt.Sprint("m", i), Source: "shop", User: "u1", Event: "Signed Up", Type: "track", Body: []byte(`{"n":1}`),
			Accepted: accepted, Due: accepted,
		}
	}
	for part := range slices.Chunk(ps, 1000) {
		if err := s.store.Put(s.t.Context(), part, make([]store.Result, len(part))); err != nil {
			s.t.Fatal(err)
		}
		claimed := claim(s.t, s.store, destination)
		if len(claimed) != len(part) {
			s.t.Fatalf("claimed %d of %d deliveries", len(claimed), len(part))
		}
		var settled []store.Settlement
		for i, d := range claimed {
			for try := range 3 {
				d.Attempts = append(d.Attempts, webhook.Attempt{
					At: died.Add(-time.Minute), Took: webhook.Millis(time.Millisecond), Try: try + 1, Endpoint: "https://a.example/", Status: 500, Reason: "server_error",
				})
			}
			d.Tries = 3
			settled = append(settled, store.Settlement{Verdict: store.Bury, Delivery: d, Reason: webhook.Reason(reason), At: died.Add(time.Duration(i) * time.Second)})
		}
		if _, err := s.store.Settle(s.t.Context(), settled); err != nil {
			s.t.Fatal(err)
		}
	}
}

// noon is a time before the clock of a bubble begins.
var noon = time.Date(1999, 12, 31, 12, 0, 0, 0, time.UTC)

// listed returns the destinations and ids of a page of deliveries, and the cursor of the next page.
func (s *server) listed(query string) (ids []string, after string) {
	s.t.Helper()
	page := ask[api.Page[api.Delivery]](s, 200, "GET", api.DeliveriesPath+query, nil)
	for _, d := range page.Items {
		ids = append(ids, d.Destination+" "+d.ID)
		if d.Body != nil || len(d.Attempts) > 1 || d.Tries > 0 && d.Attempts[0].Try != d.Tries {
			s.t.Errorf("GET deliveries%s: %+v, want no body and only the last attempt", query, d)
		}
	}
	return ids, page.After
}

func TestDeliveriesAreListed(t *testing.T) {
	s := newServer(t, nil)
	s.bury("crm", "refused", 3, noon)
	s.bury("shop/eu", "expired", 2, noon.Add(time.Hour))
	put(t, s.store, "crm", "w1")
	put(t, s.store, "crm", "c1")
	claim(t, s.store, "crm")
	put(t, s.store, "shop/eu", "w2")
	all := []string{"shop/eu w2", "crm c1", "crm w1", "shop/eu m1", "shop/eu m0", "crm m2", "crm m1", "crm m0"}
	tests := []struct {
		query string
		want  []string
	}{
		{"", all},
		{"?state=dead&state=&destination=", all[3:]},
		{"?state=waiting&state=claimed&destination=crm", []string{"crm c1", "crm w1"}},
		{"?state=waiting", all[:1]},
		{"?destination=shop%2Feu&destination=none&state=dead", []string{"shop/eu m1", "shop/eu m0"}},
		{"?reason=refused&order=oldest&limit=2", []string{"crm m0", "crm m1"}},
		{"?type=page", nil},
		{"?type=tra*&event=Signed*&id=m0", []string{"shop/eu m0", "crm m0"}},
		{"?id=of+shop+m2", []string{"crm m2"}},
		{"?user=u1&limit=3&state=dead", all[3:6]},
		{"?user=u2", nil},
		{"?from=1999-12-31T11:00:01Z&to=1999-12-31T12:00:01Z&state=dead", all[4:7]},
	}
	for _, tt := range tests {
		got, _ := s.listed(tt.query)
		diff(t, "deliveries"+tt.query, got, tt.want)
	}

	var got []string
	after, pages := "", 0
	for pages == 0 || after != "" {
		var page []string
		page, after = s.listed("?limit=3&after=" + after)
		got = append(got, page...)
		pages++
	}
	diff(t, "page by page", got, all)
	if pages != 3 {
		t.Errorf("%d pages of 3 for 8 deliveries, want 3", pages)
	}
	for query, want := range map[string]int{"": 8, "?state=dead": 5, "?destination=crm&state=dead": 3, "?reason=expired&to=1999-12-31T12:00:01Z": 1} {
		if got := ask[api.Count](s, 200, "GET", api.CountPath+query, nil); got != (api.Count{Count: want}) {
			t.Errorf("count%s: %+v, want %d", query, got, want)
		}
	}

	first := ask[api.Page[api.Delivery]](s, 200, "GET", api.DeliveriesPath+"?destination=shop/eu&state=dead&order=oldest&limit=1", nil).Items[0]
	one := ask[api.Delivery](s, 200, "GET", api.Path(api.DeliveryPath, first.Key), nil)
	if string(one.Body) != `{"n":1}` || len(one.Attempts) != 3 || !one.Ended.Equal(noon.Add(time.Hour)) || one.Reason != "expired" || !one.Due.IsZero() {
		t.Errorf("delivery %+v, want the body, all 3 attempts, the time and the reason", one)
	}
	ask[api.Error](s, 404, "GET", api.Path(api.DeliveryPath, "crm:zzz"), nil)
}

func TestRetryAndDiscard(t *testing.T) {
	s := newServer(t, nil)
	s.bury("crm", "refused", 10, noon)
	keys := func() (keys []string) {
		for _, d := range ask[api.Page[api.Delivery]](s, 200, "GET", api.DeliveriesPath+"?state=dead&order=oldest", nil).Items {
			keys = append(keys, d.Key)
		}
		return keys
	}
	all := keys()
	to := noon.Add(6*time.Second - time.Hour)
	tests := []struct {
		name      string
		path      string
		selection api.Selection
		done      int
		total     int
		left      int
	}{
		{"retry by key", api.RetryPath, api.Selection{Keys: all[:2]}, 2, 2, 8},
		{"retry again", api.RetryPath, api.Selection{Keys: all[:3]}, 1, 3, 7},
		{"retry by query", api.RetryPath, api.Selection{Query: &webhook.Query{To: to}}, 3, 3, 4},
		{"discard by key", api.DiscardPath, api.Selection{Keys: all[9:]}, 1, 1, 3},
		{"discard by query that selects nothing", api.DiscardPath, api.Selection{Query: &webhook.Query{Type: "page"}}, 0, 0, 3},
		{"discard all dead letters", api.DiscardPath, api.Selection{Query: &webhook.Query{}}, 3, 3, 0},
		{"discard what waits", api.DiscardPath, api.Selection{Query: &webhook.Query{ID: "m1", States: []webhook.State{webhook.StateWaiting}}}, 1, 1, 0},
	}
	for _, tt := range tests {
		diff(t, tt.name, s.work("POST", tt.path, tt.selection), api.Progress{Done: tt.done, Total: tt.total, Ended: true})
		if left := len(keys()); left != tt.left {
			t.Errorf("%s: %d dead letters are left, want %d", tt.name, left, tt.left)
		}
	}
	if got := ask[api.Status](s, 200, "GET", api.StatusPath, nil); got.Waiting != 5 || got.Dead != 0 || got.Totals.Discarded != 1 {
		t.Errorf("status %+v, want 5 waiting deliveries, no dead letter and 1 discarded", got)
	}
	claim(t, s.store, "crm")
	skipped := api.Selection{Query: &webhook.Query{States: []webhook.State{webhook.StateClaimed}}}
	diff(t, "discard of claimed deliveries", s.work("POST", api.DiscardPath, skipped), api.Progress{Total: 5, Claimed: 5, Ended: true})
}

// TestRetryMakesWaitingDeliveriesDue retries deliveries between two attempts.
func TestRetryMakesWaitingDeliveriesDue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t, nil)
		s.receiver.answers(503)
		s.track("crm", "a1", "a2")
		s.run()
		synctest.Wait()
		for _, d := range ask[api.Page[api.Delivery]](s, 200, "GET", api.DeliveriesPath, nil).Items {
			if d.State != webhook.StateWaiting || d.Tries == 0 || d.Attempts[0].Status != 503 || d.Expires.IsZero() || !d.Due.After(d.Attempts[0].At) || !d.Ended.IsZero() {
				t.Errorf("delivery %+v, want one that waits after an attempt with the status 503", d)
			}
		}
		s.receiver.answers(200)
		p := s.work("POST", api.RetryPath, `{"query":{"destination":["crm"],"state":["waiting"]}}`)
		diff(t, "retry", p, api.Progress{Done: 2, Total: 2, Ended: true})
		synctest.Wait()
		if got := ask[api.Status](s, 200, "GET", api.StatusPath, nil); got.Totals.Delivered != 2 {
			t.Errorf("%d deliveries at once after the retry, want 2", got.Totals.Delivered)
		}
	})
}

// TestDeliveredIsListedAndRetried lists past deliveries, and sends one again.
func TestDeliveredIsListedAndRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServerWith(t, func(c *config.Settings) { c.History.MaxAge = time.Hour })
		s.run()
		for _, id := range []string{"a1", "a2", "a3"} {
			s.track("crm", id)
			time.Sleep(time.Minute)
		}
		const delivered = "?state=delivered&destination=crm"
		for _, d := range ask[api.Page[api.Delivery]](s, 200, "GET", api.DeliveriesPath+delivered, nil).Items {
			if d.Key == "" || d.Tries != 1 || d.Attempts[0].Reason != "" || d.Type != "track" || d.Ended.Before(d.Accepted) {
				t.Errorf("delivery %+v, want a key, the type, both times and the attempt", d)
			}
		}
		for range 2 { // the second retry does not repeat the delivery of the first
			if p := s.work("POST", api.RetryPath, `{"query":{"destination":["crm"],"id":"a2","state":["delivered"]}}`); p.Done != 1 {
				t.Errorf("retry: %+v, want 1 done", p)
			}
			time.Sleep(time.Minute)
		}
		got, _ := s.listed(delivered)
		diff(t, "what was delivered", got, []string{"crm a2", "crm a2", "crm a3", "crm a2", "crm a1"})
	})
}

// work makes a request whose answer is a stream of Progress, and returns the last one.
func (s *server) work(method, path string, body any) (last api.Progress) {
	s.t.Helper()
	resp, text := s.do(s.request(method, path, body))
	if resp.StatusCode != 200 || resp.Header.Get("Content-Type") != api.StreamType {
		s.t.Fatalf("%s %s: %s, %s: %s", method, path, resp.Status, resp.Header.Get("Content-Type"), text)
	}
	next := lines[api.Progress](s.t, bytes.NewReader(text))
	n := 0
	for {
		p, ok := next()
		if !ok {
			break
		}
		if p.Done < last.Done || last.Ended {
			s.t.Errorf("%s %s: progress %+v comes after %+v, want no step back and nothing after the end", method, path, p, last)
		}
		last = p
		n++
	}
	if n < 2 || !last.Ended {
		s.t.Errorf("%s %s: %d lines, the last is %+v, want at least 2 lines and an end", method, path, n, last)
	}
	return last
}

func TestRetryOfTenThousandDeadLetters(t *testing.T) {
	s := newServer(t, nil)
	s.bury("crm", "expired", 10_000, noon)
	diff(t, "retry", s.work("POST", api.RetryPath, api.Selection{Query: &webhook.Query{Destinations: []string{"crm"}}}),
		api.Progress{Done: 10_000, Total: 10_000, Ended: true})
	if got := ask[api.Status](s, 200, "GET", api.StatusPath, nil); got.Waiting != 10_000 || got.Dead != 0 {
		t.Errorf("%d deliveries wait, and %d are dead letters, want 10000 and 0", got.Waiting, got.Dead)
	}
}

// over returns a change of a Config: it wraps the store, and makes a Forwarder for the wrapped
// store.
func over(t *testing.T, wrap func(*memqueue.Store) webhook.Store) func(*Config) {
	return func(c *Config) {
		c.Store = wrap(c.Store.(*memqueue.Store))
		c.Forwarder = testkit.Must(webhook.New(webhook.Config{Store: c.Store, Destinations: []webhook.Destination{*c.Settings().Destinations[0].Webhook}}))
	}
}

// A slowStore reports each Revive, which lasts as long as its context.
type slowStore struct {
	*memqueue.Store
	retrying chan struct{}
	ended    chan error
}

func (q *slowStore) Revive(ctx context.Context, _ ...webhook.Ref) (n int, err error) {
	q.retrying <- struct{}{}
	<-ctx.Done()
	q.ended <- ctx.Err()
	return 0, ctx.Err()
}

// TestRetryEndsWithClientAndServer shows that a retry ends if its client leaves, or if the server
// stops.
func TestRetryEndsWithClientAndServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, end := range []string{"client", "server"} {
			store := &slowStore{retrying: make(chan struct{}, 1), ended: make(chan error, 1)}
			s := newServer(t, over(t, func(q *memqueue.Store) webhook.Store { store.Store = q; return store }))
			s.bury("crm", "refused", 3, noon)
			resp, err := s.client.Do(s.request("POST", api.RetryPath, api.Selection{Query: &webhook.Query{}}))
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			<-store.retrying
			if end == "client" {
				resp.Body.Close()
			} else {
				s.handler.Close()
				text, err := io.ReadAll(resp.Body)
				if err != nil || !strings.Contains(string(text), `"ended":true`) || !strings.Contains(string(text), api.CodeUnavailable) {
					t.Errorf("the answer when the server stops is %s, error %v, want an end with the code %s", text, err, api.CodeUnavailable)
				}
			}
			if err := <-store.ended; !errors.Is(err, context.Canceled) {
				t.Errorf("the %s ends: Retry ended with %v, want context.Canceled", end, err)
			}
			synctest.Wait()
			if !s.handler.works.TryAcquire(maxWorks) {
				t.Errorf("the %s ends: work goes on, want none", end)
			}
			if n, err := s.handler.config.Forwarder.Count(t.Context(), webhook.Query{States: []webhook.State{webhook.StateDead}}); n != 3 || err != nil {
				t.Errorf("the %s ends: %d dead letters are left, %v, want 3", end, n, err)
			}
		}
	})
}

// A failingStore fails to list deliveries.
type failingStore struct {
	*memqueue.Store
	err error
}

func (q *failingStore) List(context.Context, webhook.Query, uint64, int) ([]webhook.Record, uint64, error) {
	return nil, 0, q.err
}

// TestListReportsErrorsOfTheStore shows which status and code the client gets for an error of the
// store. The server logs only errors that are its own fault.
func TestListReportsErrorsOfTheStore(t *testing.T) {
	for _, tt := range []struct {
		name string
		err  error
		want int
		code string
	}{
		{"the store is closed", webhook.ErrClosed, 503, api.CodeUnavailable},
		{"the store is full", fmt.Errorf("now: %w", webhook.ErrQueueFull), 503, api.CodeUnavailable},
		{"the store fails", errors.New("the disk is away"), 500, api.CodeInternal},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var log bytes.Buffer
			s := newServer(t, func(c *Config) {
				over(t, func(q *memqueue.Store) webhook.Store { return &failingStore{q, tt.err} })(c)
				c.Logger = slog.New(slog.NewTextHandler(&log, nil))
			})
			got := ask[api.Error](s, tt.want, "GET", api.DeliveriesPath, nil)
			if got.Code != tt.code || got.Field != "" || got.Message == "" {
				t.Errorf("the error is %+v, want the code %s and no field", got, tt.code)
			}
			if logged := log.Len() > 0; logged != (tt.want == 500) {
				t.Errorf("the log of an answer %[2]d is %[1]q, want a log of 500 only", log.String(), tt.want)
			}
		})
	}
}

// A searchedStore has more deliveries than a search can read in time.
type searchedStore struct {
	*memqueue.Store
	left chan time.Duration // receives the time that a search has left
}

func (q *searchedStore) List(ctx context.Context, _ webhook.Query, _ uint64, _ int) ([]webhook.Record, uint64, error) {
	end, ok := ctx.Deadline()
	if !ok {
		q.left <- -1
		return nil, 0, errors.New("the search has no end")
	}
	q.left <- time.Until(end)
	return nil, 0, fmt.Errorf("reading: %w", context.DeadlineExceeded)
}

// TestStorySearchHasADeadline shows that a search for a delivery ends even if it finds nothing.
// Without a deadline, it would read all deliveries that the query leaves out.
func TestStorySearchHasADeadline(t *testing.T) {
	store := &searchedStore{left: make(chan time.Duration, 1)}
	s := newServer(t, over(t, func(q *memqueue.Store) webhook.Store { store.Store = q; return store }))
	ask[api.Error](s, 404, "GET", api.StoryPath+"?destination=crm&id=other", nil)
	if left := <-store.left; left < 0 || left > lookTime {
		t.Errorf("the search has the time limit %v, want at most %v", left, lookTime)
	}
}

func TestStoryTellsOutcomeOfADelivery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t, nil)
		s.bury("shop/eu", "refused", 3, noon)
		s.receiver.answers(410)
		s.track("crm", "..")
		s.run()
		const story = api.StoryPath + "?destination=crm&id=.."
		synctest.Wait() // the receiver has refused the delivery
		first := ask[api.Delivery](s, 200, "GET", story, nil)
		if first.State != "dead" || first.Key == "" || first.Reason != "refused" || len(first.Attempts) != 1 || first.Attempts[0].Answer != "answered" || first.Body == nil || first.ID != ".." {
			t.Errorf("story %+v, want a dead letter with its key, reason, attempt and body", first)
		}
		if d := ask[api.Delivery](s, 200, "GET", api.Path(api.DeliveryPath, first.Key), nil); d.ID != ".." {
			t.Errorf("the key of the story belongs to the dead letter %+v, want the id ..", d)
		}

		// The story of a discarded dead letter has no key. Its fate is unknown.
		s.work("POST", api.DiscardPath, api.Selection{Keys: []string{first.Key}})
		if again := ask[api.Delivery](s, 200, "GET", story, nil); again.Key != "" || again.State != "dead" {
			t.Errorf("story of a discarded dead letter: %+v, want the state dead and no key", again)
		}

		// A dead letter of an earlier process is only in the store. Its webhook-id finds it,
		// and so does its messageId.
		for _, id := range []string{"m1", "m1&source=shop", "of+shop+m1"} {
			old := ask[api.Delivery](s, 200, "GET", api.StoryPath+"?destination=shop/eu&id="+id, nil)
			died := noon.Add(time.Second)
			if old.State != "dead" || old.Key == "" || !old.Ended.Equal(died) || len(old.Attempts) != 3 || string(old.Body) != `{"n":1}` ||
				old.ID != "m1" || old.Source != "shop" || old.User != "u1" || old.Event != "Signed Up" {
				t.Errorf("story of %s: %+v, want the dead letter m1 with all its fields", id, old)
			}
		}
		ask[api.Error](s, 404, "GET", api.StoryPath+"?destination=shop/eu&id=m1&source=browser", nil)
		if d := ask[api.Page[api.Delivery]](s, 200, "GET", api.DeliveriesPath+"?order=oldest", nil).Items[0]; d.ID != "m0" || d.Source != "shop" || d.User != "u1" || d.Event != "Signed Up" {
			t.Errorf("dead letter %+v, want m0 with its source, user and event", d)
		}
		ask[api.Error](s, 404, "GET", api.StoryPath+"?destination=crm&id=other", nil)
	})
}

// A readingStore takes some time to read each delivery.
type readingStore struct {
	*memqueue.Store
	each time.Duration
}

func (q *readingStore) List(ctx context.Context, query webhook.Query, after uint64, max int) ([]webhook.Record, uint64, error) {
	page, next, err := q.Store.List(ctx, query, after, max)
	for range page {
		if time.Sleep(q.each); ctx.Err() != nil {
			return nil, 0, ctx.Err()
		}
	}
	return page, next, err
}

// TestDestinationsCountDeadLetters shows that the list of destinations has the number of dead
// letters in the store, including those from before the start. The number may be some seconds old.
// If counting takes too long, the list has no numbers, and is late by at most countTime.
func TestDestinationsCountDeadLetters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &readingStore{}
		s := newServer(t, over(t, func(q *memqueue.Store) webhook.Store { store.Store = q; return store }))
		stored := func(crm, shop any) {
			t.Helper()
			var got []any
			for _, d := range ask[api.Destinations](s, 200, "GET", api.DestinationsPath, nil).Items {
				var n any
				if d.DeadLetters != nil {
					n = *d.DeadLetters
				}
				got = append(got, n)
			}
			diff(t, "the dead letters of destinations", got, []any{crm, shop})
		}
		s.bury("crm", "refused", 3, time.Now())
		stored(3, 0)
		s.bury("shop/eu", "expired", 2, time.Now())
		stored(3, 0)
		time.Sleep(countEvery)
		stored(3, 2)

		time.Sleep(countEvery)
		store.each = countTime / 4
		began := time.Now()
		stored(nil, nil)
		if took := time.Since(began); took > countTime+store.each {
			t.Errorf("the list took %v, want at most %v", took, countTime+store.each)
		}
		store.each = countTime / 10
		time.Sleep(countEvery)
		stored(nil, nil)
		time.Sleep(2 * countRest * countTime) // counting may have taken one dead letter longer
		stored(3, 2)
	})
}

// TestClientThatDisconnectsEndsNoCount shows that the other clients get the numbers of a count even
// if the client that caused it disconnects.
func TestClientThatDisconnectsEndsNoCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &readingStore{each: countTime / 10}
		s := newServer(t, over(t, func(q *memqueue.Store) webhook.Store { store.Store = q; return store }))
		s.bury("crm", "refused", 3, time.Now())
		ctx, cancel := context.WithTimeout(t.Context(), store.each)
		defer cancel()
		if _, err := s.client.Do(s.request("GET", api.DestinationsPath, nil).WithContext(ctx)); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("the request of the list ended with %v, want %v", err, context.DeadlineExceeded)
		}
		time.Sleep(countTime)
		for _, d := range ask[api.Destinations](s, 200, "GET", api.DestinationsPath, nil).Items {
			if d.DeadLetters == nil {
				t.Errorf("the number of dead letters of %s is unknown", d.ID)
			}
		}
	})
}

// An erasingStore takes two minutes for an erasure.
type erasingStore struct{ *readingStore }

func (e erasingStore) Erase(ctx context.Context, user string) (erased, claimed int, err error) {
	select {
	case <-time.After(2 * time.Minute):
		return 3, 0, nil
	case <-ctx.Done():
		return 0, 0, ctx.Err()
	}
}

// TestSlowStoreIsAnsweredFor shows that a request gets its answer although the store takes longer
// than the server gives a client to send the request and to read the answer.
func TestSlowStoreIsAnsweredFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &readingStore{each: 2 * time.Minute}
		s := newServer(t, over(t, func(q *memqueue.Store) webhook.Store { store.Store = q; return erasingStore{store} }))
		s.bury("crm", "refused", 1, time.Now())
		if got := ask[api.Erased](s, 200, "POST", api.ErasuresPath, api.Erasure{User: "u1"}); got.Erased != 3 {
			t.Errorf("an erasure erased %d, want 3", got.Erased)
		}
		if got, _ := s.listed(""); len(got) != 1 {
			t.Errorf("the list has %q, want 1 delivery", got)
		}
		if got := ask[api.Count](s, 200, "GET", api.CountPath, nil); !got.Stopped || got.Count != 0 {
			t.Errorf("the count is %+v, want one that has stopped", got)
		}
		diff(t, "retry whose total is not known in time", s.work("POST", api.RetryPath, `{"query":{"type":"*"}}`), api.Progress{Done: 1, Ended: true})
	})
}

// TestStoryIsFoundInTheStore shows that the server finds a delivery in the store if its memory has
// lost the delivery, both a waiting delivery and a past one.
func TestStoryIsFoundInTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServerOn(t, inMemory(), func(c *config.Settings) { c.History.MaxAge = time.Hour }, func(c *Config) { c.Feed = feed.New() })
		s.run()
		s.track("crm", "a1")
		time.Sleep(time.Second)
		s.receiver.answers(503)
		s.track("crm", "a2")
		synctest.Wait()
		for _, tt := range []struct {
			query string
			state webhook.State
			tries int
		}{{"&id=a1", "delivered", 1}, {"&id=a2", "waiting", 1}} {
			got := ask[api.Delivery](s, 200, "GET", api.StoryPath+"?destination=crm"+tt.query, nil)
			if got.State != tt.state || got.Tries != tt.tries || got.Event != "Signed <Up>" || got.User != "u1" || len(got.Body) == 0 ||
				got.Due.IsZero() == (tt.state == "waiting") || got.Ended.IsZero() == (tt.state == "delivered") {
				t.Errorf("story%s: %+v, want the state %s with all fields", tt.query, got, tt.state)
			}
			ask[api.Error](s, 404, "GET", api.StoryPath+"?destination=crm&source=other"+tt.query, nil)
		}
		ask[api.Error](s, 404, "GET", api.StoryPath+"?destination=shop/eu&id=a2", nil)
	})
}

// Each parameter of a list of deliveries that the routes allow selects something.
func TestEachParameterOfAListSelects(t *testing.T) {
	for _, r := range routes() {
		if r.path != api.CountPath && r.path != api.DeliveriesPath {
			continue
		}
		for name := range strings.FieldsSeq(r.params) {
			name = strings.TrimSuffix(name, "*")
			value := map[string]string{api.ParamState: "dead", api.ParamFrom: "2026-01-31T12:00:00Z", api.ParamTo: "2026-01-31T12:00:00Z", api.ParamOrder: api.OrderOldest}[name]
			if name == api.ParamLimit || name == api.ParamAfter {
				continue // they are of the page
			}
			got, err := queryOf(&request{http: httptest.NewRequest("GET", "/", nil), query: url.Values{name: {cmp.Or(value, "x")}}})
			if err != nil || reflect.ValueOf(got).IsZero() {
				t.Errorf("%s: the parameter %s makes the query %+v, %v; want one that selects", r.path, name, got, err)
			}
		}
	}
}
