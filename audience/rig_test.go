package audience_test

import (
	"context"
	"iter"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/hookferry/analytics/audience"
	"github.com/hookferry/analytics/audience/memroster"
	"github.com/hookferry/analytics/internal/testkit"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/memqueue"
	"github.com/hookferry/analytics/webhook/webhooktest"
)

// A rig is an Announcer with a running forwarder on a network in memory.
type rig struct {
	*webhook.Forwarder
	*audience.Announcer
	t       *testing.T
	network *webhooktest.Network
	queue   *memqueue.Store
	roster  *memroster.Roster
	run     chan error
}

// inBubble calls test in a synctest bubble with a new network and a new queue. Afterwards it
// stops the forwarder that test has started.
func inBubble(t *testing.T, test func(t *testing.T, r *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := &rig{
			t: t, network: webhooktest.NewNetwork(),
			queue: testkit.Must(memqueue.Open(memqueue.Config{})), roster: memroster.New(1 << 30),
		}
		defer r.network.Close()
		defer func() {
			if r.run != nil {
				r.stop()
			}
			r.queue.Close()
		}()
		test(t, r)
	})
}

// start starts a forwarder with the queue and the network. stop ends it.
func (r *rig) start(destinations ...webhook.Destination) {
	r.t.Helper()
	r.open(destinations...)
	r.run = make(chan error, 1)
	go func() { r.run <- r.Run(context.Background()) }() // stop ends Run
}

// open makes a forwarder, and does not run it.
func (r *rig) open(destinations ...webhook.Destination) {
	r.t.Helper()
	f, err := webhook.New(webhook.Config{
		Store: r.queue, Destinations: destinations,
		DialContext: r.network.DialContext, TLSClientConfig: r.network.TLSClientConfig(),
	})
	if err != nil {
		r.t.Fatal(err)
	}
	r.Forwarder, r.Announcer = f, audience.New(f, r.roster)
}

func (r *rig) stop() {
	r.t.Helper()
	if err := r.Shutdown(context.Background()); err != nil {
		r.t.Errorf("Shutdown: %v", err)
	}
	if err := <-r.run; err != nil {
		r.t.Errorf("Run: %v", err)
	}
}

func (r *rig) audience(destination, name string) *audience.Audience {
	r.t.Helper()
	a, err := r.Audience(destination, name)
	if err != nil {
		r.t.Fatal(err)
	}
	return a
}

func (r *rig) waiting() int {
	r.t.Helper()
	c, err := r.queue.Count(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	return c.Waiting
}

const hook = "http://crm.example/hook"

func destination(id, url string) webhook.Destination {
	return webhook.Destination{ID: id, Secret: "shh", Endpoints: []webhook.Endpoint{{URL: url}}}
}

var crm = destination("crm", hook)

func users(ids ...string) iter.Seq2[string, error] { return audience.Users(slices.Values(ids)) }

func collect[T any](t *testing.T, seq iter.Seq2[T, error]) []T {
	t.Helper()
	var vs []T
	for v, err := range seq {
		if err != nil {
			t.Fatal(err)
		}
		vs = append(vs, v)
	}
	return vs
}
