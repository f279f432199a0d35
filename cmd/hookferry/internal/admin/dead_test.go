package admin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/memqueue"
	"github.com/hookferry/analytics/webhook/store"
)

// bury puts n dead letters of a destination into the store, with the ids m0, m1 and so on. The
// first died at the time died, and each other one a second after the one before.
func (s *server) bury(destination, reason string, n int, died time.Time) {
	s.t.Helper()
	ps := make([]store.Put, n)
	for i := range ps {
		ps[i].Delivery = webhook.Delivery{
			Destination: destination, ID: fmt.Sprint("of shop m", i), MessageID: fmt.Sprint("m", i), Source: "shop", User: "u1", Event: "Signed Up", Type: "track", Body: []byte(`{"n":1}`),
			Accepted: died.Add(-time.Hour), Due: died.Add(-time.Hour),
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

func TestDeadListsDeadLetters(t *testing.T) {
	s := newServer(t, nil)
	s.bury("crm", "refused", 3, noon)
	s.bury("shop/eu", "expired", 2, noon.Add(time.Hour))
	tests := []struct {
		query string
		want  []string
	}{
		{"", []string{"crm m0", "crm m1", "crm m2", "shop/eu m0", "shop/eu m1"}},
		{"?destination=shop%2Feu", []string{"shop/eu m0", "shop/eu m1"}},
		{"?reason=refused&limit=2", []string{"crm m0", "crm m1"}},
		{"?type=page", nil},
		{"?user=u1&order=newest&limit=3", []string{"shop/eu m1", "shop/eu m0", "crm m2"}},
		{"?user=u2", nil},
		{"?from=1999-12-31T12:00:01Z&to=1999-12-31T13:00:01Z", []string{"crm m1", "crm m2", "shop/eu m0"}},
	}
	for _, tt := range tests {
		var got []string
		page := ask[api.Page[api.Delivery]](s, 200, "GET", api.DeadPath+tt.query, nil)
		for _, d := range page.Items {
			got = append(got, d.Destination+" "+d.ID)
			if d.Body != nil || len(d.Attempts) != 1 || d.Attempts[0].Try != 3 {
				t.Errorf("GET dead%s: dead letter %+v, want no body and only the last attempt", tt.query, d)
			}
		}
		diff(t, "dead"+tt.query, got, tt.want)
	}

	var got []string
	after, pages := "", 0
	for {
		page := ask[api.Page[api.Delivery]](s, 200, "GET", api.DeadPath+"?limit=2&after="+after, nil)
		for _, d := range page.Items {
			got = append(got, d.Destination+" "+d.ID)
		}
		pages++
		if after = page.After; after == "" {
			break
		}
	}
	diff(t, "page by page", got, tests[0].want)
	if pages != 3 {
		t.Errorf("%d pages of 2 for 5 dead letters, want 3", pages)
	}
	for query, want := range map[string]int{"": 5, "?destination=crm": 3, "?reason=expired&to=1999-12-31T13:00:01Z": 1} {
		if got := ask[api.Count](s, 200, "GET", api.DeadCountPath+query, nil).Count; got != want {
			t.Errorf("count%s: %d, want %d", query, got, want)
		}
	}

	first := ask[api.Page[api.Delivery]](s, 200, "GET", api.DeadPath+"?limit=1", nil).Items[0]
	one := ask[api.Delivery](s, 200, "GET", "/api/v1/dead/"+first.Key, nil)
	if string(one.Body) != `{"n":1}` || len(one.Attempts) != 3 || !one.Ended.Equal(noon) || one.Reason != "refused" {
		t.Errorf("dead letter %+v, want the body, all 3 attempts, the time and the reason", one)
	}
	ask[api.Error](s, 404, "GET", "/api/v1/dead/0123", nil)
}

func TestReplayAndDiscard(t *testing.T) {
	s := newServer(t, nil)
	s.bury("crm", "refused", 10, noon)
	keys := func() (keys []string) {
		for _, d := range ask[api.Page[api.Delivery]](s, 200, "GET", api.DeadPath, nil).Items {
			keys = append(keys, d.Key)
		}
		return keys
	}
	all := keys()
	to := noon.Add(6 * time.Second)
	tests := []struct {
		name      string
		path      string
		selection api.Selection
		done      int
		total     int
		left      int
	}{
		{"replay by key", api.ReplayPath, api.Selection{Keys: all[:2]}, 2, 2, 8},
		{"replay again", api.ReplayPath, api.Selection{Keys: all[:3]}, 1, 3, 7},
		{"replay by filter", api.ReplayPath, api.Selection{Filter: &webhook.EndedFilter{To: to}}, 3, 3, 4},
		{"discard by key", api.DiscardPath, api.Selection{Keys: all[9:]}, 1, 1, 3},
		{"discard by filter that selects nothing", api.DiscardPath, api.Selection{Filter: &webhook.EndedFilter{Type: "page"}}, 0, 0, 3},
		{"discard all", api.DiscardPath, api.Selection{Filter: &webhook.EndedFilter{}}, 3, 3, 0},
	}
	for _, tt := range tests {
		diff(t, tt.name, s.work("POST", tt.path, tt.selection), api.Progress{Done: tt.done, Total: tt.total, Ended: true})
		if left := len(keys()); left != tt.left {
			t.Errorf("%s: %d dead letters are left, want %d", tt.name, left, tt.left)
		}
	}
	if got := ask[api.Status](s, 200, "GET", api.StatusPath, nil); got.Waiting != 6 || got.Dead != 0 {
		t.Errorf("%d deliveries wait, and %d are dead letters, want 6 and 0", got.Waiting, got.Dead)
	}
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

func TestReplayTenThousandDeadLetters(t *testing.T) {
	s := newServer(t, nil)
	s.bury("crm", "expired", 10_000, noon)
	diff(t, "replay", s.work("POST", api.ReplayPath, api.Selection{Filter: &webhook.EndedFilter{Destination: "crm"}}),
		api.Progress{Done: 10_000, Total: 10_000, Ended: true})
	if got := ask[api.Status](s, 200, "GET", api.StatusPath, nil); got.Waiting != 10_000 || got.Dead != 0 {
		t.Errorf("%d deliveries wait, and %d are dead letters, want 10000 and 0", got.Waiting, got.Dead)
	}
}

// A slowStore reports each Revive, which lasts as long as its context.
type slowStore struct {
	*memqueue.Store
	reviving chan struct{}
	ended    chan error
}

func (q *slowStore) Revive(ctx context.Context, keys ...string) (int, error) {
	q.reviving <- struct{}{}
	<-ctx.Done()
	q.ended <- ctx.Err()
	return 0, ctx.Err()
}

// TestReplayEndsWithClientAndServer shows that a replay ends if its client leaves, or if the server
// stops.
func TestReplayEndsWithClientAndServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, end := range []string{"client", "server"} {
			store := &slowStore{reviving: make(chan struct{}, 1), ended: make(chan error, 1)}
			s := newServer(t, func(c *Config) {
				store.Store = c.Store.(*memqueue.Store)
				f, err := webhook.New(webhook.Config{Store: store, Destinations: []webhook.Destination{*c.Settings().Destinations[0].Webhook}})
				if err != nil {
					t.Fatal(err)
				}
				c.Forwarder, c.Store = f, store
			})
			s.bury("crm", "refused", 3, noon)
			resp, err := s.client.Do(s.request("POST", api.ReplayPath, api.Selection{Filter: &webhook.EndedFilter{}}))
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			<-store.reviving
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
				t.Errorf("the %s ends: Revive ended with %v, want context.Canceled", end, err)
			}
			synctest.Wait()
			if !s.handler.works.TryAcquire(maxWorks) {
				t.Errorf("the %s ends: work goes on, want none", end)
			}
			if n, err := s.handler.config.Forwarder.CountDead(t.Context(), webhook.EndedFilter{}); n != 3 || err != nil {
				t.Errorf("the %s ends: %d dead letters are left, %v, want 3", end, n, err)
			}
		}
	})
}

// A failingStore fails to list dead letters. If byAfter is set, it fails only after a key.
type failingStore struct {
	*memqueue.Store
	err     error
	byAfter bool
}

func (q *failingStore) Dead(ctx context.Context, filter webhook.EndedFilter, after string) iter.Seq2[webhook.Ended, error] {
	if q.byAfter && after == "" {
		return q.Store.Dead(ctx, filter, after)
	}
	return func(yield func(webhook.Ended, error) bool) { yield(webhook.Ended{}, q.err) }
}

// TestDeadReportsErrorsOfTheStore shows which status and code the client gets for an error of the
// store. The server logs only errors that are its own fault.
func TestDeadReportsErrorsOfTheStore(t *testing.T) {
	away := errors.New("the disk is away")
	for _, tt := range []struct {
		name  string
		store func(*memqueue.Store) webhook.Store
		path  string
		want  int
		code  string
		field string
	}{
		{"the store is closed", func(q *memqueue.Store) webhook.Store { return &failingStore{q, webhook.ErrClosed, false} }, api.DeadPath, 503, api.CodeUnavailable, ""},
		{"the store is full", func(q *memqueue.Store) webhook.Store {
			return &failingStore{q, fmt.Errorf("now: %w", webhook.ErrQueueFull), false}
		}, api.DeadPath, 503, api.CodeUnavailable, ""},
		{"the store fails", func(q *memqueue.Store) webhook.Store { return &failingStore{q, away, false} }, api.DeadPath, 500, api.CodeInternal, ""},
		{"the store fails with and without a key", func(q *memqueue.Store) webhook.Store { return &failingStore{q, away, false} }, api.DeadPath + "?after=k", 500, api.CodeInternal, ""},
		{"the store does not know the key", func(q *memqueue.Store) webhook.Store { return &failingStore{q, away, true} }, api.DeadPath + "?after=k", 400, api.CodeBadRequest, "after"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var log bytes.Buffer
			s := newServer(t, func(c *Config) {
				c.Store = tt.store(c.Store.(*memqueue.Store))
				c.Logger = slog.New(slog.NewTextHandler(&log, nil))
			})
			got := ask[api.Error](s, tt.want, "GET", tt.path, nil)
			if got.Code != tt.code || got.Field != tt.field || got.Message == "" {
				t.Errorf("the error is %+v, want the code %s and the field %q", got, tt.code, tt.field)
			}
			if logged := log.Len() > 0; logged != (tt.want == 500) {
				t.Errorf("the log of an answer %[2]d is %[1]q, want a log of 500 only", log.String(), tt.want)
			}
		})
	}
}

// A searchedStore has more dead letters than a search can read in time.
type searchedStore struct {
	*memqueue.Store
	left chan time.Duration // receives the time that a search has left
}

func (q *searchedStore) Dead(ctx context.Context, _ webhook.EndedFilter, _ string) iter.Seq2[webhook.Ended, error] {
	return func(yield func(webhook.Ended, error) bool) {
		end, ok := ctx.Deadline()
		if !ok {
			q.left <- -1
			yield(webhook.Ended{}, errors.New("the search has no end"))
			return
		}
		q.left <- time.Until(end)
		yield(webhook.Ended{}, fmt.Errorf("reading: %w", context.DeadlineExceeded))
	}
}

// TestStorySearchHasADeadline shows that a search for a delivery ends even if it finds nothing.
// Without a deadline, it would read all dead letters that the filter leaves out.
func TestStorySearchHasADeadline(t *testing.T) {
	store := &searchedStore{left: make(chan time.Duration, 1)}
	s := newServer(t, func(c *Config) {
		store.Store = c.Store.(*memqueue.Store)
		f, err := webhook.New(webhook.Config{Store: store, Destinations: []webhook.Destination{*c.Settings().Destinations[0].Webhook}})
		if err != nil {
			t.Fatal(err)
		}
		c.Forwarder, c.Store = f, store
	})
	ask[api.Error](s, 404, "GET", api.StoryPath+"?destination=crm&id=other", nil)
	if left := <-store.left; left < 0 || left > findTime {
		t.Errorf("the search has the time limit %v, want at most %v", left, findTime)
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
		if d := ask[api.Delivery](s, 200, "GET", "/api/v1/dead/"+first.Key, nil); d.ID != ".." {
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
		if d := ask[api.Page[api.Delivery]](s, 200, "GET", api.DeadPath, nil).Items[0]; d.ID != "m0" || d.Source != "shop" || d.User != "u1" || d.Event != "Signed Up" {
			t.Errorf("dead letter %+v, want m0 with its source, user and event", d)
		}
		ask[api.Error](s, 404, "GET", api.StoryPath+"?destination=crm&id=other", nil)
	})
}

// A readingStore takes some time to read each dead letter.
type readingStore struct {
	*memqueue.Store
	each time.Duration
}

func (q *readingStore) Dead(ctx context.Context, filter webhook.EndedFilter, after string) iter.Seq2[webhook.Ended, error] {
	return func(yield func(webhook.Ended, error) bool) {
		for d, err := range q.Store.Dead(ctx, filter, after) {
			time.Sleep(q.each)
			if !yield(d, err) {
				return
			}
		}
	}
}

// TestDestinationsCountDeadLetters shows that the list of destinations has the number of dead
// letters in the store, including those from before the start. The number may be some seconds old.
// If counting takes too long, the list has no numbers, and is late by at most countTime.
func TestDestinationsCountDeadLetters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &readingStore{}
		s := newServer(t, func(c *Config) {
			store.Store = c.Store.(*memqueue.Store)
			f, err := webhook.New(webhook.Config{Store: store, Destinations: []webhook.Destination{*c.Settings().Destinations[0].Webhook}})
			if err != nil {
				t.Fatal(err)
			}
			c.Forwarder = f
		})
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
		s := newServer(t, func(c *Config) {
			store.Store = c.Store.(*memqueue.Store)
			f, err := webhook.New(webhook.Config{Store: store, Destinations: []webhook.Destination{*c.Settings().Destinations[0].Webhook}})
			if err != nil {
				t.Fatal(err)
			}
			c.Forwarder = f
		})
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
		s := newServer(t, func(c *Config) {
			store.Store = c.Store.(*memqueue.Store)
			f, err := webhook.New(webhook.Config{Store: erasingStore{store}, Destinations: []webhook.Destination{*c.Settings().Destinations[0].Webhook}})
			if err != nil {
				t.Fatal(err)
			}
			c.Forwarder = f
		})
		s.bury("crm", "refused", 1, time.Now())
		if got := ask[api.Erased](s, 200, "POST", api.ErasuresPath, api.Erasure{User: "u1"}); got.Erased != 3 {
			t.Errorf("an erasure erased %d, want 3", got.Erased)
		}
		if got := ask[api.Count](s, 200, "GET", api.DeadCountPath, nil); got.Count != 1 {
			t.Errorf("%d dead letters are counted, want 1", got.Count)
		}
	})
}
