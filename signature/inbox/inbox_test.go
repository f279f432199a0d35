package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hookferry/analytics/internal/testkit"
	"github.com/hookferry/analytics/internal/testkit/memdb"
	"github.com/hookferry/analytics/signature"
	"github.com/hookferry/analytics/signature/inbox"
)

var secret = signature.NewStandardSecret()

func config() inbox.Config {
	return inbox.Config{Dialect: inbox.PostgreSQL, Scheme: signature.StandardWebhooks, Secrets: []signature.Secret{secret}}
}

// A receiver has an Inbox whose function fails for some events.
type receiver struct {
	http.Handler
	db     *memdb.DB
	client *memdb.Client
	log    strings.Builder
	fail   func(signature.Event) error // nil fails none
}

func newReceiver(t *testing.T, c inbox.Config) *receiver {
	t.Helper()
	r := &receiver{db: memdb.New()}
	r.client = r.db.Client()
	c.Logger = slog.New(slog.NewTextHandler(&r.log, nil))
	box, err := inbox.New(r.client, c, func(_ context.Context, tx *memdb.Tx, e signature.Event) error {
		if err := tx.Apply(e.ID); err != nil || r.fail == nil {
			return err
		}
		return r.fail(e)
	})
	if err != nil {
		t.Fatal(err)
	}
	r.Handler = box
	return r
}

// post sends a body with an id, signed by Standard Webhooks at a time, and returns the status.
func (r *receiver) post(ctx context.Context, id, body string, at time.Time) int {
	signed := testkit.Must(signature.SignStandard([]byte(body), id, at, secret))
	request := httptest.NewRequestWithContext(ctx, http.MethodPost, "/", strings.NewReader(body))
	request.Header.Set(signature.StandardID, id)
	request.Header.Set(signature.StandardTimestamp, strconv.FormatInt(at.Unix(), 10))
	request.Header.Set(signature.StandardSignature, signed)
	answer := httptest.NewRecorder()
	r.ServeHTTP(answer, request)
	return answer.Code
}

var errBroken = errors.New("broken")

// The answers of an Inbox, and how often the event e and the event f are applied then.
func TestInbox(t *testing.T) {
	batch := func(ids ...string) string {
		var events []string
		for _, id := range ids {
			events = append(events, fmt.Sprintf(`{"id":%q,"event":{"type":%q}}`, id, id))
		}
		return "[" + strings.Join(events, ",") + "]"
	}
	failF := func(err error) func(signature.Event) error {
		return func(e signature.Event) error {
			if e.ID == "f" {
				return err
			}
			return nil
		}
	}
	fault := func(operation string, after bool, times int) func(string, string, bool) error {
		return func(name, _ string, late bool) error {
			if name != operation || late != after || times == 0 {
				return nil
			}
			times--
			return errBroken
		}
	}
	type request struct {
		id, body string
		status   int
	}
	for _, tt := range []struct {
		name     string
		fail     func(signature.Event) error
		fault    func(string, string, bool) error
		requests []request
		e, f     int
	}{
		{"an event", nil, nil, []request{{"e", "{}", 204}}, 1, 0},
		{"a repetition", nil, nil, []request{{"e", "{}", 204}, {"f", "{}", 204}, {"e", "{}", 204}}, 1, 1},
		{"a function that fails", failF(errBroken), nil, []request{{"f", "{}", 500}, {"f", "{}", 500}, {"e", "{}", 204}}, 1, 0},
		{"an event that is refused", failF(fmt.Errorf("no: %w", inbox.ErrRefused)), nil, []request{{"f", "{}", 422}}, 0, 0},
		{"a batch", nil, nil, []request{{"b", batch("f", "e"), 204}, {"b", batch("f", "e"), 204}, {"e", "{}", 204}}, 1, 1},
		{"a batch with events that were applied", nil, nil, []request{{"e", "{}", 204}, {"b", batch("e", "f"), 204}}, 1, 1},
		{"a batch with one event twice", nil, nil, []request{{"b", batch("e", "f", "e"), 204}}, 1, 1},
		{"a batch with an event that fails", failF(errBroken), nil, []request{{"b", batch("e", "f"), 500}, {"e", "{}", 204}}, 1, 0},
		{"a batch with an event that is refused", failF(inbox.ErrRefused), nil, []request{{"b", batch("e", "f"), 422}}, 0, 0},
		{"an empty batch", nil, nil, []request{{"b", "[]", 204}}, 0, 0},
		{"an array of something else", nil, nil, []request{{"e", `["e"]`, 400}}, 0, 0},
		{"a database that is down", nil, fault("begin", false, -1), []request{{"e", "{}", 503}}, 0, 0},
		{"a victim of a deadlock", nil, fault("insert", false, 4), []request{{"e", "{}", 204}}, 1, 0},
		{"an id that cannot be recorded", nil, fault("insert", true, 5), []request{{"e", "{}", 503}, {"e", "{}", 204}}, 1, 0},
		{"a commit that fails", nil, fault("commit", false, 1), []request{{"e", "{}", 503}, {"e", "{}", 204}}, 1, 0},
		{"a commit whose answer is lost", nil, fault("commit", true, 1), []request{{"e", "{}", 503}, {"e", "{}", 204}}, 1, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newReceiver(t, config())
			r.fail, r.client.Fault = tt.fail, tt.fault
			for i, request := range tt.requests {
				if got := r.post(t.Context(), request.id, request.body, time.Now()); got != request.status {
					t.Errorf("request %d: answered %d, want %d", i, got, request.status)
				}
			}
			if e, f := r.db.Applied("e"), r.db.Applied("f"); e != tt.e || f != tt.f {
				t.Errorf("the events were applied %d and %d times, want %d and %d", e, f, tt.e, tt.f)
			}
			if _, there := r.db.Rows()["e"]; there != (tt.e > 0) {
				t.Errorf("the id is recorded: %t, want %t", there, tt.e > 0)
			}
		})
	}
}

// A request that must not be applied reaches neither the function nor the database.
func TestInboxRefuses(t *testing.T) {
	now := time.Now()
	c := config()
	c.MaxBody = 100
	r := newReceiver(t, c)
	for _, tt := range []struct {
		name, body string
		at         time.Time
		status     int
	}{
		{"a stale signature", "{}", now.Add(-time.Hour), 401},
		{"a body over the limit", strings.Repeat(" ", 101), now, 413},
	} {
		if got := r.post(t.Context(), "e", tt.body, tt.at); got != tt.status {
			t.Errorf("%s: answered %d, want %d", tt.name, got, tt.status)
		}
	}
	other := newReceiver(t, config())
	secret = signature.NewStandardSecret()
	if got := other.post(t.Context(), "e", "{}", now); got != 401 {
		t.Errorf("a wrong signature: answered %d, want 401", got)
	}
	if got := other.log.String(); !strings.Contains(got, `status=401 reason="the signature does not match" id=e requests=1`) {
		t.Errorf("a wrong signature: logged %q, want the status, the reason and the id", got)
	}
	if n := len(r.db.Rows()) + len(other.db.Rows()); n > 0 {
		t.Errorf("%d events are recorded, want none", n)
	}
}

// With X-Signature, a body is applied once, whatever unsigned headers say.
func TestInboxOfXSignature(t *testing.T) {
	c := config()
	c.Scheme, c.Secrets = signature.XSignature, []signature.Secret{"secret"}
	r := newReceiver(t, c)
	for i, body := range []string{`{"messageId":"1"}`, `{"messageId":"1"}`, `{"messageId":"2"}`} {
		request := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(body))
		request.Header.Set(signature.Header, testkit.Must(signature.Sign([]byte(body), "secret")))
		request.Header.Set(signature.StandardID, strconv.Itoa(i))
		answer := httptest.NewRecorder()
		if r.ServeHTTP(answer, request); answer.Code != 204 {
			t.Errorf("request %d: answered %d, want 204", i, answer.Code)
		}
	}
	if n := len(r.db.Rows()); n != 2 {
		t.Errorf("%d events are recorded, want 2", n)
	}
}

// Of simultaneous requests with the same id, one calls the function. If the function fails, another
// request calls it.
func TestInboxAtOnce(t *testing.T) {
	for _, failures := range []int{0, 1, 3} {
		synctest.Test(t, func(t *testing.T) {
			r := newReceiver(t, config())
			calls := 0 // never two at the same time
			r.fail = func(signature.Event) error {
				if calls++; calls <= failures {
					time.Sleep(time.Second)
					return errBroken
				}
				return nil
			}
			var mu sync.Mutex
			statuses := map[int]int{}
			var running sync.WaitGroup
			for range 8 {
				running.Go(func() {
					status := r.post(t.Context(), "e", "{}", time.Now())
					mu.Lock()
					defer mu.Unlock()
					statuses[status]++
				})
			}
			running.Wait()
			want := map[int]int{204: 8 - failures, 500: failures}
			if failures == 0 {
				delete(want, 500)
			}
			if diff := cmp.Diff(want, statuses); diff != "" || calls != failures+1 || r.db.Applied("e") != 1 {
				t.Errorf("%d failures: %d calls, applied %d times, want %d and 1; statuses (-want +got):\n%s", failures, calls, r.db.Applied("e"), failures+1, diff)
			}
		})
	}
}

// A sender that gives up does not end the transaction, but Timeout does.
func TestInboxOfSlowFunction(t *testing.T) {
	for _, tt := range []struct {
		takes   time.Duration
		applied int
	}{{10 * time.Second, 1}, {time.Minute, 0}} {
		synctest.Test(t, func(t *testing.T) {
			r := newReceiver(t, config())
			box, err := inbox.New(r.client, config(), func(ctx context.Context, tx *memdb.Tx, e signature.Event) error {
				select {
				case <-ctx.Done():
					return ctx.Err()
				case <-time.After(tt.takes):
					return tx.Apply(e.ID)
				}
			})
			if err != nil {
				t.Fatal(err)
			}
			r.Handler = box
			ctx, giveUp := context.WithTimeout(t.Context(), 5*time.Second)
			defer giveUp()
			begin := time.Now()
			r.post(ctx, "e", "{}", begin)
			if got := r.db.Applied("e"); got != tt.applied || time.Since(begin) > inbox.DefaultTimeout {
				t.Errorf("a function that takes %v: applied %d times after %v, want %d", tt.takes, got, time.Since(begin), tt.applied)
			}
		})
	}
}

// A function that panics leaves nothing behind.
func TestInboxOfPanic(t *testing.T) {
	r := newReceiver(t, config())
	r.fail = func(signature.Event) error { panic("broken") }
	func() {
		defer func() { _ = recover() }()
		r.post(t.Context(), "e", "{}", time.Now())
	}()
	r.fail = nil
	if got := r.post(t.Context(), "e", "{}", time.Now()); got != 204 || r.db.Applied("e") != 1 {
		t.Errorf("the next attempt: answered %d, applied %d times, want 204 and once", got, r.db.Applied("e"))
	}
}

// Ids are removed after Keep. The program calls nothing for that.
func TestInboxRemovesOldIDs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReceiver(t, config())
		most := 0
		for i := range 2400 {
			if got := r.post(t.Context(), fmt.Sprint("e", i), "{}", time.Now()); got != 204 {
				t.Fatalf("event %d: answered %d, want 204", i, got)
			}
			if i%50 == 0 {
				most = max(most, len(r.db.Rows()))
			}
			time.Sleep(inbox.DefaultKeep / 1000)
		}
		oldest := time.Now().Add(-inbox.DefaultKeep)
		rows := r.db.Rows()
		for i := range 1000 {
			if id := fmt.Sprint("e", 2399-i); rows[id] == 0 {
				t.Fatalf("%s was removed although it is not older than %v", id, oldest)
			}
		}
		if most > 1300 {
			t.Errorf("%d ids were kept, want about those of %v: 1000", most, inbox.DefaultKeep)
		}
		r.client.Fault = func(operation, _ string, _ bool) error {
			if operation == "delete" {
				return errBroken
			}
			return nil
		}
		for i := range 200 {
			if got := r.post(t.Context(), fmt.Sprint("f", i), "{}", time.Now()); got != 204 {
				t.Fatalf("a removal that fails: answered %d, want 204", got)
			}
		}
		if !strings.Contains(r.log.String(), "old ids") || strings.Contains(r.log.String(), string(secret)) {
			t.Errorf("a removal that fails: logged %q", r.log.String())
		}
	})
}

func TestConfig(t *testing.T) {
	use := func(c inbox.Config) error {
		_, err := inbox.New(memdb.New().Client(), c, func(context.Context, *memdb.Tx, signature.Event) error { return nil })
		return err
	}
	if _, err := inbox.New[*memdb.Tx](nil, config(), nil); err == nil || err.Error() != "inbox: db: is nil\ninbox: apply: is nil" {
		t.Errorf("without a database and a function: %v, want an error that names both", err)
	}
	testkit.Negative(t, config(), use)
	for _, tt := range []struct {
		name   string
		change func(*inbox.Config)
	}{
		{"Dialect", func(c *inbox.Config) { c.Dialect = 0 }},
		{"Dialect", func(c *inbox.Config) { c.Dialect = 4 }},
		{"Table", func(c *inbox.Config) { c.Table = "a; DROP TABLE b" }},
		{"Table", func(c *inbox.Config) { c.Table = "a.b.c" }},
		{"Table", func(c *inbox.Config) { c.Table = strings.Repeat("a", 51) }},
		{"Secrets", func(c *inbox.Config) { c.Secrets = nil }},
		{"Secrets", func(c *inbox.Config) { c.Secrets = []signature.Secret{"short"} }},
		{"Secrets", func(c *inbox.Config) { c.Scheme, c.Secrets = signature.XSignature, []signature.Secret{""} }},
		{"Secrets", func(c *inbox.Config) { c.Scheme = signature.XSignature }}, // it begins with whsec_
		{"Scheme", func(c *inbox.Config) { c.Scheme = 7 }},
		{"Keep", func(c *inbox.Config) { c.Keep = time.Minute }},
		{"Timeout", func(c *inbox.Config) { c.Timeout = time.Millisecond }},
	} {
		c := config()
		tt.change(&c)
		if err := use(c); err == nil || !strings.HasPrefix(err.Error(), "inbox: "+tt.name+":") {
			t.Errorf("%s: got the error %v, want one that names the field alone", tt.name, err)
		}
	}
}

func TestSchema(t *testing.T) {
	want := []string{
		`CREATE TABLE IF NOT EXISTS app.inbox (id text COLLATE "C" PRIMARY KEY, received bigint NOT NULL)`,
		`CREATE INDEX IF NOT EXISTS app_inbox_received ON app.inbox (received)`,
	}
	if diff := cmp.Diff(want, inbox.PostgreSQL.Schema("app.inbox")); diff != "" {
		t.Errorf("Schema (-want +got):\n%s", diff)
	}
}
