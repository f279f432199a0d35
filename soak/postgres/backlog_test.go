package postgres

import (
	"context"
	"fmt"
	"testing"

	"github.com/hookferry/analytics/internal/pgtest"
	"github.com/hookferry/analytics/internal/soakenv"
	"github.com/hookferry/analytics/internal/testkit"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/pgqueue"
	keep "github.com/hookferry/analytics/webhook/store"
)

// Two forwarders on one database bury what exceeds BacklogMaxBytes of a destination: each delivery
// once, and no more than needed. Their first looks begin together, after ten seconds.
func TestTwoForwardersBoundBacklog(t *testing.T) {
	soakenv.Only(t, "postgres-bounds")
	db := pgtest.New(t, "fsync=off")
	const n, size = 50_000, 1000
	var nodes []*pgqueue.Store
	for range 2 {
		q := testkit.Must(pgqueue.Open(t.Context(), poolOf(t, db), pgqueue.Config{}))
		defer q.Close()
		nodes = append(nodes, q)
	}
	for from := 0; from < n; from += 1000 {
		ps := make([]keep.Put, 1000)
		for i := range ps {
			id := fmt.Sprint(from + i)
			ps[i].Delivery = webhook.Delivery{Destination: "crm", ID: id, Body: fmt.Appendf(nil, `{"pad":"%*s"}`, size, id), Accepted: nodes[0].Now(), Due: nodes[0].Now()}
		}
		if err := nodes[0].Put(t.Context(), ps, make([]keep.Result, len(ps))); err != nil {
			t.Fatal(err)
		}
	}
	counts := func() (all keep.Counts, c keep.DestinationCounts) {
		for c = range nodes[0].CountByDestination(t.Context(), "crm") {
		}
		return testkit.Must(nodes[0].Count(t.Context())), c
	}
	_, before := counts()
	c := webhook.Config{BacklogMaxBytes: before.Bytes / 3, Destinations: []webhook.Destination{{ID: "crm", Endpoints: []webhook.Endpoint{{URL: "http://127.0.0.1:1"}}}}}
	var fs []*webhook.Forwarder
	ended := make(chan error, 2)
	for _, q := range nodes {
		c.Store = q
		f := testkit.Must(webhook.New(c))
		if err := f.Pause(t.Context(), "crm"); err != nil {
			t.Fatal(err)
		}
		fs = append(fs, f)
	}
	for _, f := range fs {
		go func() { ended <- f.Run(context.Background()) }()
	}
	testkit.Until(t, "the backlog is within its bound", func() bool { _, c := counts(); return c.Bytes <= before.Bytes/3 })
	for _, f := range fs {
		if err := f.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	all, left := counts()
	buried := fs[0].Stats().Dead[webhook.ReasonBacklog] + fs[1].Stats().Dead[webhook.ReasonBacklog]
	t.Logf("%d of %d deliveries are left, with %d bytes; the forwarders buried %d and %d", left.Waiting, n, left.Bytes, fs[0].Stats().Dead[webhook.ReasonBacklog], fs[1].Stats().Dead[webhook.ReasonBacklog])
	if all.Dead+all.Waiting != n || buried != int64(all.Dead) {
		t.Errorf("%d dead letters and %d that wait, of %d; the forwarders have counted %d", all.Dead, all.Waiting, n, buried)
	}
	if least := c.BacklogMaxBytes * 98 / 100; left.Bytes < least {
		t.Errorf("%d bytes are left, want at least %d of %d", left.Bytes, least, c.BacklogMaxBytes)
	}
}
