package receivertest_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/hookferry/analytics/internal/testkit"
	"github.com/hookferry/analytics/internal/testkit/memdb"
	"github.com/hookferry/analytics/signature"
	"github.com/hookferry/analytics/signature/inbox"
	"github.com/hookferry/analytics/signature/receivertest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var secrets = []signature.Secret{signature.NewStandardSecret(), signature.NewStandardSecret()}

// newInbox returns an Inbox over db, and a function that makes its effects fail.
func newInbox(db *memdb.DB, c inbox.Config, key func(signature.Event) string) (http.Handler, func(bool)) {
	var mu sync.Mutex
	failing := false
	c.Dialect = inbox.SQLite
	box := testkit.Must(inbox.New(db.Client(), c, func(_ context.Context, tx *memdb.Tx, e signature.Event) error {
		mu.Lock()
		defer mu.Unlock()
		if failing {
			return errors.New("the effect fails")
		}
		return tx.Apply(key(e))
	}))
	return box, func(fail bool) {
		mu.Lock()
		defer mu.Unlock()
		failing = fail
	}
}

// An Inbox is a good receiver, for which no check is left out.
func TestInboxIsGood(t *testing.T) {
	db := memdb.New()
	c := inbox.Config{Scheme: signature.StandardWebhooks, Secrets: secrets}
	byID := func(e signature.Event) string { return e.ID }
	box, fail := newInbox(db, c, byID)
	receivertest.Run(t, box, receivertest.Config{
		Secrets: secrets, Scheme: signature.StandardWebhooks, Batches: true, Fail: func(on bool) { fail(on) },
		Applied: func(_ context.Context, e signature.Event) (int, error) { return db.Applied(e.ID), nil },
		Restart: func() http.Handler {
			var again http.Handler
			again, fail = newInbox(db, c, byID)
			return again
		},
	})
}

// An Inbox with X-Signature is a good receiver, too, as far as the checks of X-Signature can show.
func TestInboxWithXSignatureIsGood(t *testing.T) {
	db := memdb.New()
	byBody := func(e signature.Event) string { return string(e.Body) }
	box, fail := newInbox(db, inbox.Config{Secrets: []signature.Secret{"new", "old"}}, byBody)
	receivertest.Run(t, box, receivertest.Config{
		Secrets: []signature.Secret{"new", "old"}, Batches: true, Fail: fail,
		Applied: func(_ context.Context, e signature.Event) (int, error) { return db.Applied(byBody(e)), nil },
	})
}

// maxBody is the limit of a receiver: less than the default, for the sake of time.
const maxBody = 260 << 10

// A receiver is like many that people write by hand. A fault makes it do one thing wrong.
type receiver struct {
	fault  string
	db     *memdb.DB
	client *memdb.Client
	fails  bool

	mu   sync.Mutex
	seen []string
}

func (r *receiver) is(fault string) bool { return r.fault == fault }

func (r *receiver) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	limit := int64(maxBody)
	switch {
	case r.is("takes bodies of any size"):
		limit *= 100
	case r.is("takes small bodies only"):
		limit = 64 << 10
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, q.Body, limit))
	switch {
	case err != nil:
		w.WriteHeader(http.StatusRequestEntityTooLarge)
	case r.verify(body, q.Header) != nil:
		status := http.StatusUnauthorized
		if r.is("takes a wrong signature for its own failure") {
			status = http.StatusInternalServerError
		}
		w.WriteHeader(status)
	default:
		w.WriteHeader(r.receive(w, q.Header.Get(signature.StandardID), body))
	}
}

func (r *receiver) verify(body []byte, header http.Header) error {
	tolerance, trusted := signature.DefaultTolerance, secrets
	switch {
	case r.is("does not verify"):
		return nil
	case r.is("verifies only if there is a signature") && header.Get(signature.StandardSignature) == "":
		return nil
	case r.is("verifies a body that it encodes again"):
		var v any
		if err := json.Unmarshal(body, &v); err != nil {
			return err
		}
		body, _ = json.Marshal(v)
	case r.is("has no tolerance"):
		tolerance = 1 << 62
	case r.is("takes only the time that its own clock shows"):
		tolerance = time.Minute
	case r.is("verifies the first signature only"):
		first, _, _ := strings.Cut(header.Get(signature.StandardSignature), " ")
		header.Set(signature.StandardSignature, first)
	case r.is("knows the new secret only"):
		trusted = secrets[:1]
	}
	return signature.VerifyStandard(body, header, tolerance, trusted...)
}

func (r *receiver) receive(w http.ResponseWriter, id string, body []byte) (status int) {
	if r.is("answers before the commit") {
		w.WriteHeader(http.StatusNoContent)
	}
	var message struct{ Type, MessageID string }
	events, err := signature.Events(id, body)
	if err != nil || json.Unmarshal(events[0].Body, &message) != nil {
		return http.StatusBadRequest
	}
	switch {
	case r.is("refuses types that it does not know") && strings.HasPrefix(message.Type, "test."):
		return http.StatusBadRequest
	case r.is("refuses fields that it does not know") && bytes.Contains(body, []byte("testField")):
		return http.StatusUnprocessableEntity
	case r.is("takes a batch for one event"):
		events = []signature.Event{{ID: id, Body: body}}
	case r.is("redirects"):
		return http.StatusFound
	case r.is("goes by messageId") && message.MessageID != "":
		events[0].ID = message.MessageID
	}
	ctx := context.Background()
	if r.inMemory(id) {
		return http.StatusOK
	}
	tx := testkit.Must(r.client.Begin(ctx))
	defer r.client.Rollback(ctx, tx)
	for _, e := range events {
		fresh := r.record(ctx, tx, e.ID)
		if !fresh && r.is("answers a repetition with 409") {
			return http.StatusConflict
		}
		if fresh {
			if r.fails && !r.is("hides failures") {
				return http.StatusInternalServerError
			}
			if !r.fails && tx.Apply(e.ID) != nil {
				return http.StatusServiceUnavailable
			}
		}
	}
	if r.client.Commit(ctx, tx) != nil {
		return http.StatusServiceUnavailable
	}
	return http.StatusNoContent
}

// inMemory reports whether a receiver that deduplicates in memory has seen the id.
func (r *receiver) inMemory(id string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	again := slices.Contains(r.seen, id)
	r.seen = append(r.seen, id)
	if r.is("remembers the last ten events") {
		r.seen = r.seen[max(0, len(r.seen)-10):]
	}
	return again && (r.is("deduplicates in memory") || r.is("remembers the last ten events"))
}

// record reports whether the id is new.
func (r *receiver) record(ctx context.Context, tx *memdb.Tx, id string) bool {
	record := func(tx *memdb.Tx) bool {
		return testkit.Must(r.client.Exec(ctx, tx, "INSERT", id, int64(0))) == 1
	}
	switch {
	case r.is("does not deduplicate") || r.is("deduplicates in memory") || r.is("remembers the last ten events"):
		return true
	case r.is("records in a transaction of its own"):
		own := testkit.Must(r.client.Begin(ctx))
		fresh := record(own)
		return r.client.Commit(ctx, own) == nil && fresh
	case r.is("looks first and records later"):
		_, there := r.db.Rows()[id]
		time.Sleep(time.Millisecond)
		record(tx)
		return !there
	}
	return record(tx)
}

// Each fault fails the check that is about it.
func TestPlantedFaultsAreFound(t *testing.T) {
	for _, tt := range []struct{ fault, check string }{
		{"none", ""},
		{"answers before the commit", "the answer comes after the effect"},
		{"verifies a body that it encodes again", "the bytes that came are verified"},
		{"has no tolerance", "an event that was signed too long ago is refused"},
		{"takes only the time that its own clock shows", "an event whose sender's clock is a little wrong is accepted"},
		{"deduplicates in memory", "an event that comes again after a restart is applied once"},
		{"remembers the last ten events", "an event that comes again after many others is applied once"},
		{"does not deduplicate", "an event that comes twice is applied once"},
		{"looks first and records later", "an event that comes several times at once is applied once"},
		{"records in a transaction of its own", "an event whose effect fails is applied when it comes again"},
		{"hides failures", "an event whose effect fails is applied when it comes again"},
		{"answers a repetition with 409", "an event that comes twice is accepted twice"},
		{"goes by messageId", "two events with one messageId are both applied"},
		{"does not verify", "a signature of another body is refused"},
		{"verifies only if there is a signature", "an event without a signature is refused"},
		{"takes a wrong signature for its own failure", "a signature with another secret is refused"},
		{"verifies the first signature only", "one good signature among several is enough"},
		{"knows the new secret only", "each secret is accepted while one replaces another"},
		{"refuses types that it does not know", "types and fields that the receiver does not know are accepted"},
		{"refuses fields that it does not know", "types and fields that the receiver does not know are accepted"},
		{"takes small bodies only", "a large event is accepted"},
		{"takes bodies of any size", "a body over the limit is refused"},
		{"takes a batch for one event", "each event of a batch is applied once"},
		{"redirects", "a signed event is accepted"},
	} {
		inBubble(t, tt.fault, func(t *testing.T) {
			db := memdb.New()
			start := func() *receiver { return &receiver{fault: tt.fault, db: db, client: db.Client()} }
			r := start()
			failed := map[string]error{}
			for _, c := range receivertest.Checks() {
				config := receivertest.Config{
					Secrets: secrets, Scheme: signature.StandardWebhooks, Batches: true, MaxBody: maxBody,
					Applied: func(_ context.Context, e signature.Event) (int, error) { return db.Applied(e.ID), nil },
					Fail:    func(fail bool) { r.fails = fail },
					Restart: func() http.Handler { r = start(); return r },
				}
				if err := receivertest.RunCheck(t.Context(), c, r, config); errors.Is(err, receivertest.ErrSkipped) {
					t.Errorf("%s: %v", c.Name, err)
				} else if err != nil {
					failed[c.Name] = err
				}
			}
			if tt.check == "" && len(failed) > 0 {
				t.Errorf("a good receiver fails: %v", failed)
			}
			if tt.check != "" && failed[tt.check] == nil {
				t.Errorf("%q did not fail; failed: %v", tt.check, failed)
			}
			for name, err := range failed {
				t.Logf("%s: %v", name, err)
			}
		})
	}
}

func inBubble(t *testing.T, name string, test func(*testing.T)) {
	t.Run(name, func(t *testing.T) { synctest.Test(t, test) })
}

// With a URL, the checks that a receiver in another process cannot pass are left out, and the
// result says why.
func TestChecksOfURL(t *testing.T) {
	db := memdb.New()
	box, _ := newInbox(db, inbox.Config{Secrets: secrets[:1], Scheme: signature.StandardWebhooks}, func(e signature.Event) string { return e.ID })
	server := httptest.NewServer(box)
	defer server.Close()
	config := receivertest.Config{URL: server.URL, Transport: server.Client().Transport, Secrets: secrets[:1], Scheme: signature.StandardWebhooks}
	left := 0
	for _, c := range receivertest.Checks() {
		before := len(db.Rows())
		err := c.Run(t.Context(), config)
		switch {
		case errors.Is(err, receivertest.ErrSkipped):
			left++
		case err != nil:
			t.Errorf("%s: %v", c.Name, err)
		}
		if !c.Changes && len(db.Rows()) > before {
			t.Errorf("%s: an event was applied, want none in a check that changes nothing", c.Name)
		}
	}
	if left == 0 || left > 12 {
		t.Errorf("%d checks were left out, want some", left)
	}
	server.Close()
	if err := receivertest.Checks()[0].Run(t.Context(), config); err == nil || !strings.Contains(err.Error(), "no answer") {
		t.Errorf("a receiver that is down: %v, want an error that says so", err)
	}
	config.Secrets = nil
	if err := receivertest.Checks()[0].Run(t.Context(), config); !errors.Is(err, signature.ErrNoSecret) {
		t.Errorf("no secret: %v, want ErrNoSecret", err)
	}
}

// At a wrong path a server answers 404 to everything, which no check takes for a refusal. The errors
// show the first line of the answer.
func TestWrongPathPassesNoCheck(t *testing.T) {
	for _, status := range []int{http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusFound} {
		h := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, " no page here\nline 2", status) })
		for _, c := range receivertest.Checks() {
			config := receivertest.Config{Secrets: secrets, Scheme: signature.StandardWebhooks, Batches: true}
			err := receivertest.RunCheck(t.Context(), c, h, config)
			if want := fmt.Sprintf(`answered %d "no page here": a sender`, status); !errors.Is(err, receivertest.ErrSkipped) && (err == nil || !strings.Contains(err.Error(), want)) {
				t.Errorf("%s: %v, want an error with %s", c.Name, err, want)
			}
		}
	}
}

// Without Applied, no check says that an event was applied.
func TestNothingCounts(t *testing.T) {
	box, _ := newInbox(memdb.New(), inbox.Config{Secrets: secrets[:1], Scheme: signature.StandardWebhooks}, func(e signature.Event) string { return e.ID })
	for _, c := range receivertest.Checks() {
		err := receivertest.RunCheck(t.Context(), c, box, receivertest.Config{Secrets: secrets[:1], Scheme: signature.StandardWebhooks})
		if strings.Contains(c.Name, "applied") && !errors.Is(err, receivertest.ErrSkipped) {
			t.Errorf("%s: %v, although nothing counts", c.Name, err)
		}
	}
}

// An event without a place for its id makes two requests equal, which looks like a hole in the
// verification.
func TestEventWithoutID(t *testing.T) {
	config := receivertest.Config{Secrets: secrets, Event: func(string) []byte { return []byte(`{"type":"invoice.paid"}`) }}
	err := receivertest.RunCheck(t.Context(), receivertest.Checks()[0], http.NotFoundHandler(), config)
	if want := "Config.Event returned one body for two ids"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want an error with %q", err, want)
	}
}

// A receiver may go by an id of its own in the data: then a second event with it is a repetition,
// whatever its webhook-id.
func TestEventWithAnIDOfItsOwn(t *testing.T) {
	db := memdb.New()
	own := func(body []byte) string {
		var paid struct{ Data struct{ Invoice string } }
		_ = json.Unmarshal(body, &paid)
		return paid.Data.Invoice
	}
	applied := map[string]bool{}
	client := db.Client()
	box := testkit.Must(inbox.New(client, inbox.Config{Dialect: inbox.SQLite, Secrets: secrets, Scheme: signature.StandardWebhooks},
		func(_ context.Context, tx *memdb.Tx, e signature.Event) error {
			if key := own(e.Body); !applied[key] {
				applied[key] = true
				return tx.Apply(key)
			}
			return nil
		}))
	for _, c := range receivertest.Checks() {
		if !strings.Contains(c.Name, "messageId") && !strings.Contains(c.Name, "twice is applied") {
			continue
		}
		err := receivertest.RunCheck(t.Context(), c, box, receivertest.Config{
			Secrets: secrets, Scheme: signature.StandardWebhooks,
			Event:   func(id string) []byte { return fmt.Appendf(nil, `{"type":"invoice.paid","data":{"invoice":%q}}`, id) },
			Applied: func(_ context.Context, e signature.Event) (int, error) { return db.Applied(own(e.Body)), nil },
		})
		if skipped := errors.Is(err, receivertest.ErrSkipped); skipped != strings.Contains(c.Name, "messageId") || !skipped && err != nil {
			t.Errorf("%s: %v", c.Name, err)
		}
	}
}
