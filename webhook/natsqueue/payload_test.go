package natsqueue

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/hookferry/analytics/webhook/store"
)

// setMaxPayload changes max_payload while the server runs, and waits until clients know it.
func (s *testServer) setMaxPayload(t *testing.T, bytes int32, qs ...*Store) {
	t.Helper()
	options := s.options.Clone()
	options.MaxPayload = bytes
	if err := s.ReloadOptions(options); err != nil {
		t.Fatal(err)
	}
	for _, q := range qs {
		q.conn.nc.ForceReconnect()
		until(t, "the client knows max_payload", func() bool { return q.conn.nc.IsConnected() && q.conn.nc.MaxPayload() == int64(bytes) })
	}
}

// max_payload is lowered below a waiting delivery. All other deliveries go on, the large one is
// retried from memory, and it is buried once max_payload is raised again.
func TestMaxPayloadLoweredBelowADelivery(t *testing.T) {
	bubble(t, func(t *testing.T, s *testServer) {
		log := new(lines)
		q := ready(s.open(t, Config{Partitions: 1, Logger: slog.New(slog.NewTextHandler(log, nil))}))
		defer q.Close()
		large := deliveries("large", 0, 1)
		large[0].Body = bytes.Repeat([]byte{'x'}, 1<<20)
		small := deliveries("small", 1, 200)
		for i := range small {
			small[i].Body = make([]byte, 1000)
		}
		mustPut(t, q, append(large, small...)...)
		s.setMaxPayload(t, 64<<10, q)

		retry := append(fetch(t, q, 1, "large"), fetch(t, q, 200, "small")...)
		for i := range retry {
			retry[i].Tries, retry[i].Expires, retry[i].Due = 7, time.Now().Add(time.Hour), time.Now().Add(time.Minute)
		}
		settle(t, q, store.Retry, retry...)
		mustPut(t, q, deliveries("small", 1000, 300)...)
		time.Sleep(time.Minute)
		settle(t, q, store.Done, fetch(t, q, 500, "small")...)
		q.index.cacheRoom = 0 // so that it is read from the stream
		again := fetch(t, q, 1, "large")
		if d := again[0]; d.Tries != 7 || !d.Expires.Equal(retry[0].Expires.Truncate(time.Microsecond)) && !d.Expires.Equal(retry[0].Expires) || len(d.Body) != 1<<20 {
			t.Errorf("the large delivery has %d tries, expires %v and has %d bytes; want 7, %v and a megabyte", d.Tries, d.Expires, len(d.Body), retry[0].Expires)
		}
		settle(t, q, store.Bury, again...)
		for i := range 3 {
			mustPut(t, q, deliveries("small", 2000+50*i, 50)...)
			settle(t, q, store.Done, fetch(t, q, 50, "small")...)
			time.Sleep(2 * DefaultDedupWindow)
		}
		if n := log.count("max_payload"); n == 0 || len(q.Failing()) != 0 {
			t.Errorf("%d lines about max_payload, failing steps %v; want some, and none", n, q.Failing())
		}

		s.setMaxPayload(t, maxPayload, q)
		settle(t, q, store.Bury, fetch(t, q, 1, "large")...)
		dead := 0
		for _, d := range list(t, q, store.Query{}) {
			if d.State != store.StateDead || len(d.Body) != 1<<20 {
				t.Errorf("a delivery of %d bytes, %s; want a dead letter of a megabyte", len(d.Body), d.State)
			}
			dead++
		}
		q.index.mu.Lock()
		left := len(q.index.unfit)
		q.index.mu.Unlock()
		if dead != 1 || left != 0 {
			t.Errorf("%d dead letters, and %d deliveries with changes in memory; want 1 and 0", dead, left)
		}
	})
}

// While a record waits for the server, max_payload is lowered below it. The node divides the record,
// and what fits into no message stays in memory.
func TestMaxPayloadLoweredBelowARecord(t *testing.T) {
	bubble(t, func(t *testing.T, s *testServer) {
		var c cable
		s.wrap = c.wrap
		q := ready(s.open(t, Config{Partitions: 1}))
		defer q.Close()
		const n = 30
		ds := deliveries("d", 0, n)
		for i := range ds {
			ds[i].Body = make([]byte, 3000)
		}
		ds[n-1].Body = make([]byte, 40<<10)
		mustPut(t, q, ds...)
		retry := fetch(t, q, n, "d")
		for i := range retry {
			retry[i].Tries, retry[i].Expires, retry[i].Due = 1, time.Now().Add(time.Hour), time.Now().Add(time.Minute)
		}
		c.cut(true)
		if _, err := q.Settle(t.Context(), settlements(store.Retry, retry...)); err == nil {
			t.Fatal("Settle without a server is no error")
		}
		options := s.options.Clone()
		options.MaxPayload = 32 << 10
		if err := s.ReloadOptions(options); err != nil {
			t.Fatal(err)
		}
		c.cut(false)
		until(t, "the retries are due", func() bool { return time.Since(retry[0].Due) > 0 })
		for _, d := range fetch(t, q, n, "d") {
			if d.Tries != 1 {
				t.Errorf("delivery %s has %d tries, want 1", d.ID, d.Tries)
			}
		}
	})
}

// Somebody has changed max_msg_size of the stream. The node divides its records. If the server refuses
// even the outcome of one delivery, that is a failing step, until max_msg_size is raised again.
func TestRecordsBeyondMaxMsgSize(t *testing.T) {
	bubble(t, func(t *testing.T, s *testServer) {
		log := new(lines)
		q := ready(s.open(t, Config{Partitions: 1, Logger: slog.New(slog.NewTextHandler(log, nil))}))
		defer q.Close()
		limit := func(bytes int32) {
			t.Helper()
			stream := q.conn.stream.CachedInfo().Config
			stream.MaxMsgSize = bytes
			if _, err := q.conn.js.UpdateStream(t.Context(), stream); err != nil {
				t.Fatal(err)
			}
		}
		const n = 30
		for i := range n {
			d := deliveries("d", i, 1)
			d[0].Body = make([]byte, 3000)
			mustPut(t, q, d...)
		}
		limit(10_000)
		if _, err := q.tryPut(t.Context(), store.Delivery{Destination: "d", ID: "large", Type: "track", Body: make([]byte, 20_000)}); !errors.Is(err, store.ErrTooLarge) {
			t.Errorf("Put beyond max_msg_size = %v, want ErrTooLarge", err)
		}
		settle(t, q, store.Retry, fetch(t, q, n, "d")...)
		if log.count("keeps failing") > 0 || len(q.Failing()) > 0 {
			t.Errorf("after records were divided, %v fails; want nothing", q.Failing())
		}
		limit(2000)
		if _, err := q.Settle(t.Context(), settlements(store.Retry, fetch(t, q, n, "d")...)); err == nil {
			t.Error("Settle beyond max_msg_size is no error")
		}
		until(t, "the step fails", func() bool { return !q.Failing()["record"].IsZero() })
		until(t, "there is a warning", func() bool { return log.count("step=record") > 0 }) // which follows
		limit(-1)
		until(t, "the step works again", func() bool { return len(q.Failing()) == 0 })
		settle(t, q, store.Done, fetch(t, q, n, "d")...)
	})
}

// Questions about many destinations with long names, and their answers, are divided if the server takes
// only small messages.
func TestQuestionsFitIntoASmallMaxPayload(t *testing.T) {
	bubble(t, func(t *testing.T, s *testServer) {
		c := Config{Partitions: 1}
		a := ready(s.open(t, c))
		defer a.Close()
		b := s.open(t, c)
		defer b.Close()
		const n = 1500
		for i := range n {
			mustPut(t, a, deliveries(fmt.Sprint(strings.Repeat("n", 250), i), 0, 1)...)
		}
		s.setMaxPayload(t, 64<<10, a, b)
		for i, q := range []*Store{a, b} { // one of them is not the owner
			got := 0
			for c, err := range q.CountByDestination(t.Context()) {
				if err != nil {
					t.Fatal(err)
				}
				got += c.Waiting
			}
			var refs []store.Ref
			for _, r := range list(t, q, store.Query{}) {
				refs = append(refs, r.Ref())
			}
			if want := n - i*n/2; got != want || len(refs) != want {
				t.Errorf("CountByDestination counts %d deliveries, and List returns %d, want %d", got, len(refs), want)
			}
			if removed, _, err := q.Discard(t.Context(), refs[:n/2]...); removed != n/2 || err != nil {
				t.Errorf("Discard = %d, %v; want %d", removed, err, n/2)
			}
		}
	})
}
