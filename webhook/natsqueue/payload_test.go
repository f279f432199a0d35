package natsqueue

import (
	"bytes"
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
