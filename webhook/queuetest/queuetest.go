// Package queuetest is what a store for webhook.Forwarder has to pass: one case
// for each sentence of the contract of webhook.Queue, webhook.DeadLetters,
// webhook.Counter, webhook.DestinationCounter, webhook.Waker, webhook.Roster, webhook.Rosters,
// webhook.Pauses, webhook.Nodes and webhook.Releaser, and at the end random operations compared with a model.
//
//	func TestQueue(t *testing.T) {
//		queuetest.Run(t, open, queuetest.Traits{Durable: true})
//	}
//
// The optional interfaces are tested where the store implements them.
//
// The random operations have a fixed seed, so that every run is the same. Two flags run them, and
// nothing else, with other seeds: -soak.for=1m draws seeds for a minute, -soak.seed=42 takes that one.
//
// No case has a time limit of its own. If a store never does what a case waits for, the time limit of
// the test binary ends the wait (go test -timeout).
package queuetest

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/hookferry/analytics/internal/soak"
	"github.com/hookferry/analytics/internal/testkit"
	"github.com/hookferry/analytics/webhook"
)

// Open opens the store that is kept in dir, which is a new and empty folder of
// the test's own, or one that was opened and closed before. A store on a server
// uses the name as that of its schema or stream. Open fails the test if it
// cannot.
type Open func(t testing.TB, dir string) webhook.Queue

// Traits says what a store is.
type Traits struct {
	// Durable: what was stored is there when the same folder is opened again.
	Durable bool
	// Bubble: the cases may run in synctest bubbles, where hours pass at once,
	// because all goroutines of the store wait for nothing but channels, condition
	// variables and the time package. They may wait for a server, too, if that
	// tells the time of the bubble and always answers. Else the cases take as long
	// as their leases.
	Bubble bool
	// Lease is the length of the leases that the cases let expire, where time
	// really passes. No case fails because its calls take longer than that.
	// Zero means 100 milliseconds. In a bubble it is always a minute.
	Lease time.Duration
	// OpenFull opens a store whose bound is so low that it is reached within
	// 64 MB of bodies. Nil leaves the cases of ErrQueueFull out: the store has
	// no bound of its own.
	OpenFull Open
	// Share: the same folder may be open several times at once, as by several
	// processes.
	Share bool
	// Abandon leaves a store as the end of its process would: nothing is given
	// back. It is closed later. Nil leaves the case of that out.
	Abandon func(t testing.TB, q webhook.Queue)
	// Check is called with every store before it is closed, to look for
	// damage. May be nil.
	Check func(t testing.TB, q webhook.Queue)
}

// implements reports whether a store has an optional part of the contract.
func implements[Part any](q webhook.Queue) bool {
	_, ok := q.(Part)
	return ok
}

// Run runs all cases, each as a subtest with a store of its own.
func Run(t *testing.T, open Open, traits Traits) {
	if traits.Bubble {
		traits.Lease = time.Minute
	} else if traits.Lease <= 0 {
		traits.Lease = 100 * time.Millisecond
	}
	probe := open(t, t.TempDir())
	has := map[string]bool{ // what a case may need
		"DeadLetters":        implements[webhook.DeadLetters](probe),
		"Counter":            implements[webhook.Counter](probe),
		"DestinationCounter": implements[webhook.DestinationCounter](probe),
		"Roster":             implements[webhook.Roster](probe),
		"Rosters":            implements[webhook.Rosters](probe),
		"Waker":              implements[webhook.Waker](probe),
		"Pauses":             implements[webhook.Pauses](probe),
		"Nodes":              implements[webhook.Nodes](probe),
		"Releaser":           implements[webhook.Releaser](probe),
		"Durable":            traits.Durable,
		"Share":              traits.Share,
		"Abandon":            traits.Abandon != nil,
		"OpenFull":           traits.OpenFull != nil,
	}
	var run []testCase
	for _, c := range allCases() {
		all := c.random || !soak.On() || !traits.Bubble // repeating the others shows nothing new, but in real time
		for _, part := range c.needs {
			ok, known := has[part]
			if !known {
				panic("queuetest: unknown part " + part)
			}
			all = all && ok
		}
		if all {
			run = append(run, c)
		}
	}
	if err := probe.Close(); err != nil {
		t.Fatalf("Close of an empty store: %v", err)
	}
	for _, c := range run {
		t.Run(c.name, func(t *testing.T) {
			for seed := range soak.Seeds(t, 1) {
				body := func(t *testing.T) {
					k := &kit{T: t, ctx: t.Context(), open: open, traits: traits, dir: t.TempDir(), r: rand.New(rand.NewPCG(seed, 0))}
					defer func() {
						k.close()
						if t.Failed() {
							t.Logf("the contract: %s (-soak.seed=%d)", c.sentence, seed)
						}
					}()
					k.reopen()
					c.run(k)
				}
				if traits.Bubble {
					synctest.Test(t, body)
				} else {
					body(t)
				}
				if t.Failed() || !c.random {
					return
				}
			}
		})
	}
}

// A testCase is one sentence of the contract, and how it is checked.
type testCase struct {
	name     string
	sentence string
	needs    []string // interfaces and traits
	random   bool     // worth running with other seeds
	run      func(k *kit)
}

func allCases() []testCase {
	var all []testCase
	for _, part := range [][]testCase{putCases, leaseCases, settleCases, closeCases, deadCases, rosterCases, shareCases, nodeCases, randomCases} {
		all = append(all, part...)
	}
	return all
}

// A kit is a store under test and what the cases do with it.
type kit struct {
	*testing.T
	ctx    context.Context
	open   Open
	traits Traits
	dir    string
	q      webhook.Queue
	r      *rand.Rand
	told   atomic.Int64 // announcements made
	passed int          // calls of pass where time really passes
}

// reopen closes the store, if it is open, and opens it again.
func (k *kit) reopen() {
	k.Helper()
	k.close()
	k.q = k.open(k, k.dir)
}

func (k *kit) close() {
	k.Helper()
	if k.q == nil {
		return
	}
	if k.traits.Check != nil {
		k.traits.Check(k, k.q)
	}
	if err := k.q.Close(); err != nil {
		k.Errorf("Close: %v", err)
	}
	k.q = nil
}

// pass waits until d has passed by the clock of the store. Where time really passes, it puts a delivery
// that is due then, of a destination of its own, and waits until the store hands that out.
func (k *kit) pass(d time.Duration) {
	k.Helper()
	if k.traits.Bubble {
		time.Sleep(d)
		return
	}
	k.passed++
	mark := delivery("clock", fmt.Sprint(k.passed))
	mark.Due = now().Add(d + time.Microsecond) // now cuts off up to one
	k.put(mark)
	room := func(name string) int {
		if name == mark.Destination {
			return 1
		}
		return 0
	}
	testkit.Until(k, fmt.Sprintf("%v pass by the clock of the store", d), func() bool {
		ds, _ := k.leaseNext(webhook.LeaseRequest{Max: 1, Room: room})
		k.settle(webhook.Done, ds...)
		return len(ds) > 0
	})
}

// now returns the time, as exactly as stores keep it.
func now() time.Time { return time.Now().UTC().Truncate(time.Microsecond) }

// delivery returns a delivery that was due a moment ago.
func delivery(destination, id string) webhook.Delivery {
	at := now().Add(-time.Second)
	return webhook.Delivery{
		Destination: destination,
		ID:          id,
		Type:        "track",
		Body:        []byte(`{"messageId":"` + id + `"}`),
		Accepted:    at,
		Due:         at,
	}
}

// deliveries returns n deliveries of one destination, each due a microsecond
// after the one before.
func deliveries(destination string, n int) []webhook.Delivery {
	ds := make([]webhook.Delivery, n)
	for i := range ds {
		ds[i] = delivery(destination, fmt.Sprintf("%s-%06d", destination, i))
		ds[i].Due = ds[i].Due.Add(time.Duration(i-n) * time.Microsecond)
	}
	return ds
}

// full returns a delivery with something in every field.
func full(destination, id string) webhook.Delivery {
	d := delivery(destination, id)
	d.Body = []byte("{\"binary\":\"\x00\xff\xfe\"}")
	d.Expires = d.Due.Add(4 * time.Hour)
	d.Tries = 3
	d.Closed = []webhook.Closed{{Endpoint: 0xfedcba9876543210}, {Endpoint: 1, Until: d.Due.Add(time.Hour)}}
	d.Attempts = []webhook.Attempt{
		{At: d.Due.Add(-time.Minute), Took: 5 * time.Second, Try: 2, Endpoint: "https://example.com/a", Reason: webhook.ReasonTimeout, Error: "no answer in time"},
		{At: d.Due, Took: 1234 * time.Microsecond, Try: 3, Endpoint: "https://example.com/b", Status: 503, Reason: webhook.ReasonServerError, Answer: "out of <order>"},
	}
	d.MessageID, d.Source, d.User, d.Event = "message "+id, "source \x00\xff", "user "+id, "Event of "+id
	d.Trace = webhook.Trace{Parent: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", State: "vendor=value"}
	return d
}

func (k *kit) put(ds ...webhook.Delivery) {
	k.Helper()
	n, err := k.q.Put(k.ctx, ds...)
	if err != nil || n != len(ds) {
		k.Fatalf("Put of %d new deliveries = %d, %v", len(ds), n, err)
	}
}

// held is how long a lease lasts that is not to expire in a case, however slow
// the machine is.
const held = time.Hour

// lease leases up to max deliveries, which does not expire.
func (k *kit) lease(max int) []webhook.Delivery {
	k.Helper()
	ds, _ := k.leaseNext(webhook.LeaseRequest{Max: max})
	return ds
}

// leaseBriefly leases up to max deliveries until traits.Lease has passed.
func (k *kit) leaseBriefly(max int) []webhook.Delivery {
	k.Helper()
	ds, _ := k.leaseNext(webhook.LeaseRequest{Max: max, Until: time.Now().Add(k.traits.Lease)})
	return ds
}

// leaseAt leases what becomes due at a time, and checks that it does not before.
func (k *kit) leaseAt(due time.Time) []webhook.Delivery {
	k.Helper()
	ds, next := k.leaseNext(webhook.LeaseRequest{Max: 10})
	// Where time really passes, it may have come.
	if time.Now().Before(due) && (len(ds) != 0 || !next.Equal(due)) {
		k.Fatalf("Lease = %v, next %v, want nothing before %v", ids(ds), next, due)
	}
	if len(ds) == 0 {
		k.pass(time.Until(due))
		ds = k.lease(10)
	}
	return ds
}

// expire lets the leases of ds expire.
func (k *kit) expire(ds ...webhook.Delivery) {
	k.Helper()
	ds = slices.Clone(ds)
	for i := range ds {
		ds[i].Due = now().Add(k.traits.Lease)
	}
	k.settle(webhook.Renew, ds...)
	k.pass(k.traits.Lease)
}

func (k *kit) leaseNext(req webhook.LeaseRequest) ([]webhook.Delivery, time.Time) {
	k.Helper()
	if req.Until.IsZero() {
		req.Until = time.Now().Add(held)
	}
	ds, next, err := k.q.Lease(k.ctx, req, nil)
	if err != nil {
		k.Fatalf("Lease(%d): %v", req.Max, err)
	}
	if len(ds) > req.Max {
		k.Fatalf("Lease(%d) handed out %d", req.Max, len(ds))
	}
	return ds, next
}

// leaseOne leases the one delivery that is due.
func (k *kit) leaseOne() webhook.Delivery {
	k.Helper()
	return k.one(k.lease(10))
}

// one returns the one delivery that was leased.
func (k *kit) one(ds []webhook.Delivery) webhook.Delivery {
	k.Helper()
	if len(ds) != 1 {
		k.Fatalf("Lease handed out %d deliveries, want 1: %v", len(ds), ids(ds))
	}
	return ds[0]
}

// leaseNone checks that nothing is due.
func (k *kit) leaseNone(why string) {
	k.Helper()
	if ds := k.lease(10); len(ds) != 0 {
		k.Fatalf("Lease handed out %v, want nothing: %s", ids(ds), why)
	}
}

func (k *kit) settle(verdict webhook.Verdict, ds ...webhook.Delivery) {
	k.Helper()
	if err := k.q.Settle(k.ctx, settlements(verdict, ds...)...); err != nil {
		k.Fatalf("Settle: %v", err)
	}
}

func settlements(verdict webhook.Verdict, ds ...webhook.Delivery) []webhook.Settlement {
	ss := make([]webhook.Settlement, len(ds))
	for i, d := range ds {
		ss[i] = webhook.Settlement{Verdict: verdict, Delivery: d}
		if verdict == webhook.Bury {
			ss[i].Reason, ss[i].At = webhook.ReasonExpired, now()
		}
	}
	return ss
}

func ids(ds []webhook.Delivery) []string {
	out := make([]string, len(ds))
	for i, d := range ds {
		out[i] = d.Destination + "/" + d.ID
	}
	return out
}

var likeStored = cmp.Options{
	cmpopts.EquateEmpty(),
	cmpopts.IgnoreFields(webhook.Delivery{}, "Lease"),
}

// alike reports whether x and y are the same but for their leases. It is a
// quick way to find that there is no difference.
func alike(x, y webhook.Delivery) bool {
	a, err1 := x.AppendBinary(nil)
	b, err2 := y.AppendBinary(nil)
	return err1 == nil && err2 == nil && bytes.Equal(a, b)
}

// same checks that the deliveries are those wanted, in this order.
func (k *kit) same(what string, got []webhook.Delivery, want ...webhook.Delivery) {
	k.Helper()
	if slices.EqualFunc(want, got, alike) {
		return
	}
	if diff := cmp.Diff(want, got, likeStored); diff != "" {
		k.Fatalf("%s: (-want +got)\n%s", what, diff)
	}
}
