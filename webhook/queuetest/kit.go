package queuetest

import (
	"bytes"
	"context"
	"fmt"
	"iter"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/hookferry/analytics/event"
	"github.com/hookferry/analytics/internal/testkit"
	"github.com/hookferry/analytics/webhook/store"
)

// A kit is the environment of a case: a store with its checker, and makers of deliveries.
type kit struct {
	checker
	traits Traits
	open   Open
	dir    string
	r      *rand.Rand
	unit   time.Duration // a short time: a minute in a bubble, 5 ms in real time
}

// close closes a store. No maintenance step of a store.Maintained may keep failing.
func (k *kit) close(s store.Store) {
	if m, ok := s.(store.Maintained); ok && len(m.Failing()) > 0 {
		k.Errorf("Failing() = %v, want no maintenance step that keeps failing", m.Failing())
	}
	if err := s.Close(); err != nil {
		k.Errorf("Close: %v", err)
	}
}

// restart closes a durable store and opens it again, which ends all claims. It does nothing for
// other stores.
func (k *kit) restart() {
	if !k.traits.Durable {
		return
	}
	k.close(k.s)
	k.s = k.open(k, k.dir)
	clear(k.claims)
	released := false
	for _, e := range k.entries {
		e.Claim = 0
		released = released || !e.own.IsZero()
	}
	if released {
		k.forgetReleases()
	}
}

// If the store forgets releases when it is opened again, forgetReleases gives each released
// delivery its own Due again.
func (k *kit) forgetReleases() {
	for _, d := range k.list(store.Query{States: []store.State{store.StateWaiting}}) {
		if e := k.entries[id(&d.Delivery)]; e != nil && d.Due.Equal(e.own) {
			e.Due = e.own
		}
	}
}

// pass waits until d has passed by the clock of the store.
func (k *kit) pass(d time.Duration) {
	if k.traits.Bubble {
		time.Sleep(d)
		return
	}
	end := k.s.Now().Add(d)
	testkit.Until(k, fmt.Sprintf("%v pass by the clock of the store", d), func() bool { return !k.s.Now().Before(end) })
}

// delivery returns a fresh delivery that was due a second ago.
func (k *kit) delivery(destination, id string) store.Delivery {
	at := k.s.Now().Add(-time.Second)
	return store.Delivery{Destination: destination, ID: id, Type: "track", Body: []byte(`{"messageId":"` + id + `"}`), Accepted: at, Due: at}
}

// deliveries returns n fresh deliveries of one destination. Each is due a microsecond after the one
// before.
func (k *kit) deliveries(destination string, n int) []store.Delivery {
	ds := make([]store.Delivery, n)
	base := k.s.Now().Add(-time.Second)
	for i := range ds {
		ds[i] = k.delivery(destination, fmt.Sprintf("%s-%06d", destination, i))
		ds[i].Due = base.Add(time.Duration(i) * time.Microsecond)
	}
	return ds
}

// many returns deliveries of many destinations, with the names of the destinations.
func (k *kit) many(destinations, each int) (ds []store.Delivery, names []string) {
	for i := range destinations {
		names = append(names, fmt.Sprint("d", i))
		ds = append(ds, k.deliveries(names[i], each)...)
	}
	return ds, names
}

// full returns a retry in which every field has a value.
func (k *kit) full(destination, id string) store.Delivery {
	d := k.delivery(destination, id)
	d.Body = []byte("{\"binary\":\"\x00\xff\xfe\"}")
	d.Expires = d.Due.Add(4 * time.Hour)
	d.Tries = 3
	d.Closed = []store.Closed{{Endpoint: 0xfedcba9876543210}, {Endpoint: 1, Until: d.Due.Add(time.Hour)}}
	d.Attempts = []store.Attempt{
		{At: d.Due.Add(-time.Minute), Took: store.Millis(5 * time.Second), Try: 2, Endpoint: "https://example.com/a", Reason: store.ReasonTimeout, Error: "no answer in time"},
		{At: d.Due, Took: store.Millis(1234 * time.Microsecond), Try: 3, Endpoint: "https://example.com/b", Status: 503, Reason: store.ReasonServerError, Batch: "batch", Header: "webhook-timestamp: 1\n", Answer: "out of <order>"},
	}
	d.MessageID, d.Source, d.User, d.Event = "message "+id, "source \x00\xff", "user "+id, "Event of "+id
	d.Tenant, d.Key = "tenant \x00\xff", "key of "+id
	d.Seq = 77 // Put ignores it
	d.Trace = event.Trace{Parent: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", State: "vendor=value"}
	return d
}

// lend replaces the slices of d by copies, and returns a function that overwrites the copies. The
// store gets the copies, because it must not keep its arguments.
func lend(d *store.Delivery) (spoil func()) {
	d.Body, d.Closed, d.Attempts = bytes.Clone(d.Body), slices.Clone(d.Closed), slices.Clone(d.Attempts)
	lent := *d
	return func() {
		clear(lent.Body)
		clear(lent.Closed)
		clear(lent.Attempts)
	}
}

// puts returns a Put without Keep for each delivery.
func puts(ds ...store.Delivery) []store.Put {
	ps := make([]store.Put, len(ds))
	for i := range ds {
		ps[i].Delivery = ds[i]
	}
	return ps
}

// putTo puts ps to a store, and spoils its arguments afterwards.
func putTo(ctx context.Context, s store.Store, ps ...store.Put) ([]store.Result, error) {
	lent := slices.Clone(ps)
	for i := range lent {
		defer lend(&lent[i].Delivery)()
	}
	out := make([]store.Result, len(ps))
	err := s.Put(ctx, lent, out)
	return out, err
}

// noLimit is more bytes than any case fetches.
const noLimit = 1 << 40

// wants returns two wants for each destination: one for up to max fresh deliveries, and one for up to
// max retries.
func wants(max int, destinations ...string) (ws []store.Want) {
	for _, name := range destinations {
		ws = append(ws, store.Want{Destination: name, Max: max}, store.Want{Destination: name, Retries: true, Max: max})
	}
	return ws
}

var verdicts = []store.Verdict{store.Done, store.Retry, store.Bury, store.Return}

func settlements(s store.Store, verdict store.Verdict, ds ...store.Delivery) []store.Settlement {
	ss := make([]store.Settlement, len(ds))
	for i, d := range ds {
		d.Body, d.Seq = nil, 0 // Settle reads neither
		ss[i] = store.Settlement{Verdict: verdict, Delivery: d, At: s.Now()}
		if verdict == store.Bury {
			ss[i].Reason = store.ReasonRefused
		}
	}
	return ss
}

// news reads Heads(false) each time Changed has a value, until it yields a fresh delivery of one of
// the destinations, which news returns. In a bubble it fails after an hour.
func (k *kit) news(destinations ...string) string {
	for late := time.After(time.Hour); ; {
		select {
		case <-k.s.Changed():
		case <-late:
			k.Fatalf("after an hour Changed and Heads have not brought any of %q", destinations)
		}
		heads := k.heads(false)
		for _, name := range destinations {
			if !heads[name].Fresh.IsZero() {
				return name
			}
		}
	}
}

// list returns all values that seq yields, and the error that ends it.
func list[T any](seq iter.Seq2[T, error]) (vs []T, err error) {
	for v, failed := range seq {
		if err != nil {
			return vs, fmt.Errorf("yielded %v and went on", err)
		}
		if err = failed; err == nil {
			vs = append(vs, v)
		}
	}
	return vs, err
}

// all is list for a sequence that must not yield an error.
func all[T any](t testing.TB, seq iter.Seq2[T, error]) []T {
	vs, err := list(seq)
	if err != nil {
		t.Fatalf("a list of %T ends with the error %v", vs, err)
	}
	return vs
}

// alike is same for deliveries. It is faster than package cmp.
func alike(x, y store.Delivery) bool {
	x.Seq, y.Seq = 0, 0
	a, err1 := x.AppendBinary(make([]byte, 0, 2*len(x.Body)+2048)) // room for both, usually
	b, err2 := y.AppendBinary(a[len(a):])
	return err1 == nil && err2 == nil && bytes.Equal(a, b)
}

// sameRecord is same for records. It is faster, too.
func sameRecord(x, y *store.Record) bool {
	return x.State == y.State && x.Reason == y.Reason && x.At.Equal(y.At) && alike(x.Delivery, y.Delivery)
}

// same reports whether x and y are equal except for their claims and numbers; see model.number.
func same[T any](x, y T) bool {
	return cmp.Equal(x, y, cmp.Comparer(alike), cmp.Comparer(bytes.Equal))
}

// equal fails the case if a call returned another value than the model wants. It ignores claims and
// numbers.
func equal[T any](t testing.TB, what string, got, want T) {
	if !same(got, want) {
		t.Fatalf("%s (-want +got)\n%s", what, cmp.Diff(want, got, cmpopts.EquateEmpty(), cmpopts.IgnoreFields(store.Delivery{}, "Claim", "Seq")))
	}
}

// equalLists is equal for lists. It shows only the first element that differs.
func equalLists[T any](t testing.TB, what string, got, want []T) {
	i := 0
	for i < min(len(got), len(want)) && same(got[i], want[i]) {
		i++
	}
	if i < min(len(got), len(want)) {
		equal(t, fmt.Sprintf("%s: number %d of %d, want %d", what, i, len(got), len(want)), got[i], want[i])
	} else if len(got) != len(want) {
		t.Fatalf("%s: %d, want %d; the first %d are right", what, len(got), len(want), i)
	}
}
