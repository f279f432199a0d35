// Package queuetest is what a store for webhook.Forwarder has to pass: one case for each
// sentence of the contract of webhook.Store, webhook.Roster and webhook.Rosters, and at the
// end random operations compared with a model.
//
//	func TestStore(t *testing.T) {
//		queuetest.Run(t, open, queuetest.Traits{Durable: true})
//	}
//
// A case that fails prints its sentence. Roster, Rosters and Shared are tested where
// the store implements them. A case ends early, with a line that says so, if the store returns
// webhook.ErrUnsupported from Waiting, Erase, Settings or Set.
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
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"slices"
	"strings"
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
type Open = func(t testing.TB, dir string) webhook.Store

// Traits says what a store is.
type Traits struct {
	// Durable: what was stored is there when the same folder is opened again.
	Durable bool
	// Bubble: the cases may run in synctest bubbles, where hours pass at once,
	// because all goroutines of the store wait for nothing but channels, condition
	// variables and the time package. They may wait for a server, too, if that
	// tells the time of the bubble and always answers. Else some cases wait for
	// a few milliseconds of real time.
	Bubble bool
	// OpenFull opens a store whose bound is so low that it is reached within
	// 64 MB of bodies. Nil leaves the cases of ErrQueueFull out: the store has
	// no bound of its own.
	OpenFull Open
	// Share: the same folder may be open several times at once, as by several
	// processes.
	Share bool
	// Abandon leaves a store as the end of its process would: nothing is given
	// back. It is closed later. Nil leaves the case of that out.
	Abandon func(t testing.TB, s webhook.Store)
	// Check is called with every store before it is closed, to look for
	// damage. May be nil.
	Check func(t testing.TB, s webhook.Store)
	// Mixed: the store keeps one queue for each destination, as those did that
	// were written for an earlier contract. Fetch hands out fresh deliveries and
	// retries together, in the order they are due, up to the sum of what is wanted
	// of both. It does not set Next. Heads yields only what is due, as Fresh or as Retry.
	Mixed bool
}

// What a case may need of a store.
type needs uint

const (
	durable needs = 1 << iota
	share
	abandon
	openFull
	roster
	rosters
	nodes
)

// A testCase is one sentence of the contract, and how it is checked.
type testCase struct {
	name     string
	sentence string
	needs    needs
	run      func(k *kit)
}

// Run runs all cases, each as a subtest with a store of its own.
func Run(t *testing.T, open Open, traits Traits) {
	var has needs
	offer := func(part needs, ok bool) {
		if ok {
			has |= part
		}
	}
	probe := open(t, t.TempDir())
	_, ok := probe.(webhook.Roster)
	offer(roster, ok)
	_, ok = probe.(webhook.Rosters)
	offer(rosters, ok)
	_, ok = probe.(webhook.Shared)
	offer(nodes, ok)
	if err := probe.Close(); err != nil {
		t.Fatalf("Close of an empty store: %v", err)
	}
	offer(durable, traits.Durable)
	offer(share, traits.Share)
	offer(abandon, traits.Abandon != nil)
	offer(openFull, traits.OpenFull != nil)

	all := slices.Concat(putCases, fetchCases, settleCases, headsCases, closeCases, deadCases, keeperCases, rosterCases, shareCases)
	if soak.On() && traits.Bubble { // repeating these shows nothing new, but in real time
		all = nil
	}
	for _, c := range append(all, randomCase) {
		if c.needs&^has != 0 {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			for seed := range soak.Seeds(t, 1) {
				body := func(t *testing.T) {
					k := &kit{T: t, ctx: t.Context(), open: open, traits: traits, dir: t.TempDir(), r: rand.New(rand.NewPCG(seed, 0)), unit: time.Minute}
					if !traits.Bubble {
						k.unit = 5 * time.Millisecond
					}
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
				if t.Failed() || c.name != randomCase.name {
					return
				}
			}
		})
	}
}

// A kit is a store under test and what the cases do with it.
type kit struct {
	*testing.T
	ctx    context.Context
	open   Open
	traits Traits
	dir    string
	s      webhook.Store
	r      *rand.Rand
	unit   time.Duration // a while: a minute in a bubble
	told   atomic.Int64  // announcements made
}

// reopen closes the store, if it is open, and opens it again.
func (k *kit) reopen() {
	k.Helper()
	k.close()
	k.s = k.open(k, k.dir)
}

// restart is reopen for a store that is durable.
func (k *kit) restart() {
	k.Helper()
	if k.traits.Durable {
		k.reopen()
	}
}

func (k *kit) close() {
	k.Helper()
	if k.s == nil {
		return
	}
	if k.traits.Check != nil {
		k.traits.Check(k, k.s)
	}
	if err := k.s.Close(); err != nil {
		k.Errorf("Close: %v", err)
	}
	k.s = nil
}

// pass waits until d has passed by the clock of the store.
func (k *kit) pass(d time.Duration) {
	k.Helper()
	if k.traits.Bubble {
		time.Sleep(d)
		return
	}
	end := k.s.Now().Add(d)
	testkit.Until(k, fmt.Sprintf("%v pass by the clock of the store", d), func() bool { return !k.s.Now().Before(end) })
}

// cancelled returns a context that has ended.
func (k *kit) cancelled() context.Context {
	ctx, cancel := context.WithCancel(k.ctx)
	cancel()
	return ctx
}

// optional ends the case if the store does not support what returned err.
func (k *kit) optional(what string, err error) {
	k.Helper()
	if errors.Is(err, webhook.ErrUnsupported) {
		k.Skipf("the store does not support %s", what)
	}
}

// delivery returns a fresh delivery that was due a second ago.
func (k *kit) delivery(destination, id string) webhook.Delivery {
	at := k.s.Now().Add(-time.Second)
	return webhook.Delivery{Destination: destination, ID: id, Type: "track", Body: []byte(`{"messageId":"` + id + `"}`), Accepted: at, Due: at}
}

// deliveries returns n deliveries of one destination, each due a microsecond
// after the one before.
func (k *kit) deliveries(destination string, n int) []webhook.Delivery {
	ds := make([]webhook.Delivery, n)
	base := k.s.Now().Add(-time.Second)
	for i := range ds {
		ds[i] = k.delivery(destination, fmt.Sprintf("%s-%06d", destination, i))
		ds[i].Due = base.Add(time.Duration(i) * time.Microsecond)
	}
	return ds
}

// full returns a retry with something in every field.
func (k *kit) full(destination, id string) webhook.Delivery {
	d := k.delivery(destination, id)
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

// puts asks to keep none of ds.
func puts(ds ...webhook.Delivery) []webhook.Put {
	ps := make([]webhook.Put, len(ds))
	for i := range ds {
		ps[i].Delivery = ds[i]
	}
	return ps
}

// tryPut puts ds, and returns how many were stored.
func tryPut(ctx context.Context, s webhook.Store, ds ...webhook.Delivery) (stored int, err error) {
	out := make([]webhook.Result, len(ds))
	if err := s.Put(ctx, puts(ds...), out); err != nil {
		return 0, err
	}
	for _, r := range out {
		if r.Stored {
			stored++
		}
	}
	return stored, nil
}

// put stores ds, which are new.
func (k *kit) put(ds ...webhook.Delivery) {
	k.Helper()
	k.repeats("that are new", len(ds), ds...)
}

// repeats checks that want of ds are stored.
func (k *kit) repeats(when string, want int, ds ...webhook.Delivery) {
	k.Helper()
	if n, err := tryPut(k.ctx, k.s, ds...); n != want || err != nil {
		k.Fatalf("Put of %d deliveries %s stored %d, %v; want %d", len(ds), when, n, err, want)
	}
}

// noLimit is more bytes than any case fetches.
const noLimit = 1 << 40

// wants asks for max of both queues of each destination.
func wants(max int, destinations ...string) (ws []webhook.Want) {
	for _, name := range destinations {
		ws = append(ws, webhook.Want{Destination: name, Max: max}, webhook.Want{Destination: name, Retries: true, Max: max})
	}
	return ws
}

// fetch fetches up to max fresh deliveries and max retries of each destination.
func (k *kit) fetch(max int, destinations ...string) []webhook.Delivery {
	k.Helper()
	ds, err := k.s.Fetch(k.ctx, wants(max, destinations...), noLimit, nil)
	if err != nil {
		k.Fatalf("Fetch: %v", err)
	}
	return ds
}

// fetchQueue fetches from one queue.
func (k *kit) fetchQueue(destination string, retries bool, max int) ([]webhook.Delivery, time.Time) {
	k.Helper()
	ws := []webhook.Want{{Destination: destination, Retries: retries, Max: max}}
	ds, err := k.s.Fetch(k.ctx, ws, noLimit, nil)
	if err != nil || len(ds) > max {
		k.Fatalf("Fetch of %d = %v, %v", max, ids(ds), err)
	}
	return ds, ws[0].Next
}

// next checks the Next of a queue that nothing is due in.
func (k *kit) next(destination string, retries bool, want time.Time) {
	k.Helper()
	if ds, next := k.fetchQueue(destination, retries, 10); len(ds) > 0 || !next.Equal(want) && !k.traits.Mixed {
		k.Fatalf("Fetch = %v, next %v; want nothing, next %v", ids(ds), next, want)
	}
}

// fetchOne fetches the one delivery of a destination that is due.
func (k *kit) fetchOne(destination string) webhook.Delivery {
	k.Helper()
	ds := k.fetch(10, destination)
	if len(ds) != 1 {
		k.Fatalf("Fetch returned %v, want one delivery", ids(ds))
	}
	return ds[0]
}

// fetchNone checks that nothing is due.
func (k *kit) fetchNone(why string, destinations ...string) {
	k.Helper()
	if ds := k.fetch(10, destinations...); len(ds) != 0 {
		k.Fatalf("Fetch returned %v, want nothing: %s", ids(ds), why)
	}
}

// fetchAt fetches what becomes due at a time, and checks that it does not before.
func (k *kit) fetchAt(due time.Time, destination string) []webhook.Delivery {
	k.Helper()
	ds := k.fetch(100, destination)
	if len(ds) > 0 && k.s.Now().Before(due) {
		k.Fatalf("Fetch returned %v before it is due", ids(ds))
	}
	if len(ds) == 0 {
		k.pass(due.Sub(k.s.Now()))
		ds = k.fetch(100, destination)
	}
	return ds
}

func (k *kit) settle(verdict webhook.Verdict, ds ...webhook.Delivery) {
	k.Helper()
	k.settleAll(k.settlements(verdict, ds...)...)
}

func (k *kit) settleAll(ss ...webhook.Settlement) {
	k.Helper()
	if n, err := k.s.Settle(k.ctx, ss); n != len(ss) || err != nil {
		k.Fatalf("Settle of %d = %d, %v", len(ss), n, err)
	}
}

func (k *kit) settlements(verdict webhook.Verdict, ds ...webhook.Delivery) []webhook.Settlement {
	ss := make([]webhook.Settlement, len(ds))
	for i, d := range ds {
		d.Body = nil // Settle does not look at it
		ss[i] = webhook.Settlement{Verdict: verdict, Delivery: d}
		if verdict == webhook.Bury {
			ss[i].Reason, ss[i].At = webhook.ReasonExpired, k.s.Now()
		}
	}
	return ss
}

func key(d *webhook.Delivery) string { return d.Destination + "/" + d.ID }

func ids(ds []webhook.Delivery) []string {
	out := make([]string, len(ds))
	for i := range ds {
		out[i] = key(&ds[i])
	}
	return out
}

// list returns all that seq yields, and the error that ends it.
func list[T any](seq iter.Seq2[T, error]) (all []T, err error) {
	for e, failed := range seq {
		if err != nil {
			return all, fmt.Errorf("yielded %v and went on", err)
		}
		if err = failed; err == nil {
			all = append(all, e)
		}
	}
	return all, err
}

var likeStored = cmp.Options{cmpopts.EquateEmpty(), cmpopts.IgnoreFields(webhook.Delivery{}, "Claim")}

// alike reports whether x and y are the same but for their claims. It is a
// quick way to find that there is no difference.
func alike(x, y webhook.Delivery) bool {
	a, err1 := x.AppendBinary(nil)
	b, err2 := y.AppendBinary(nil)
	return err1 == nil && err2 == nil && bytes.Equal(a, b)
}

func alikeDead(x, y webhook.DeadLetter) bool {
	return x.Key == y.Key && x.Reason == y.Reason && x.Died.Equal(y.Died) && alike(x.Delivery, y.Delivery)
}

// same checks that the deliveries are those wanted, in this order.
func (k *kit) same(what string, got []webhook.Delivery, want ...webhook.Delivery) {
	k.Helper()
	if !slices.EqualFunc(want, got, alike) {
		k.Fatalf("%s (-want +got)\n%s", what, cmp.Diff(want, got, likeStored))
	}
}

// sameSet is same in any order.
func (k *kit) sameSet(what string, got []webhook.Delivery, want ...webhook.Delivery) {
	k.Helper()
	k.same(what, sorted(got), sorted(want)...)
}

func sorted(ds []webhook.Delivery) []webhook.Delivery {
	return slices.SortedFunc(slices.Values(ds), func(x, y webhook.Delivery) int { return strings.Compare(key(&x), key(&y)) })
}

// sameDead is same for dead letters.
func (k *kit) sameDead(what string, got []webhook.DeadLetter, want ...webhook.DeadLetter) {
	k.Helper()
	if !slices.EqualFunc(want, got, alikeDead) {
		k.Fatalf("%s (-want +got)\n%s", what, cmp.Diff(want, got, likeStored))
	}
}
