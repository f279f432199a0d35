package queuetest

import (
	"bytes"
	"context"
	"fmt"
	"iter"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/hookferry/analytics/event"
	"github.com/hookferry/analytics/internal/testkit"
	"github.com/hookferry/analytics/webhook"
)

// A kit is what the cases work with: a store, and a model of what it has to hold.
type kit struct {
	*testing.T
	ctx    context.Context
	traits Traits
	open   Open
	dir    string
	s      webhook.Store
	r      *rand.Rand
	unit   time.Duration // a while: a minute in a bubble
	// between is called between the first two yields of each list. It may be nil.
	between func()
	model
}

func (k *kit) close() {
	k.Helper()
	if k.s == nil {
		return
	}
	if err := k.s.Close(); err != nil {
		k.Errorf("Close: %v", err)
	}
	k.s = nil
}

// reopen closes the store, if it is open, and opens it again. All claims end.
func (k *kit) reopen() {
	k.Helper()
	k.close()
	k.s = k.open(k, k.dir)
	clear(k.used)
	for _, d := range k.held {
		d.Claim = 0
	}
}

// restart is reopen for a store that is durable.
func (k *kit) restart() {
	k.Helper()
	if k.traits.Durable {
		k.reopen()
	}
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

// many returns the deliveries of many destinations, and their names.
func (k *kit) many(destinations, each int) (ds []webhook.Delivery, names []string) {
	for i := range destinations {
		names = append(names, fmt.Sprint("d", i))
		ds = append(ds, k.deliveries(names[i], each)...)
	}
	return ds, names
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
	d.Trace = event.Trace{Parent: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", State: "vendor=value"}
	return d
}

// lend returns d with copies of what it refers to, and a function that overwrites them. A store is
// handed the copies, as it may keep nothing of them.
func lend(d webhook.Delivery) (lent webhook.Delivery, spoil func()) {
	d.Body, d.Closed, d.Attempts = bytes.Clone(d.Body), slices.Clone(d.Closed), slices.Clone(d.Attempts)
	return d, func() {
		for i := range d.Body {
			d.Body[i] = '!'
		}
		for i := range d.Closed {
			d.Closed[i] = webhook.Closed{Endpoint: 99}
		}
		for i := range d.Attempts {
			d.Attempts[i] = webhook.Attempt{Error: "spoiled"}
		}
	}
}

// puts asks to keep none of ds.
func puts(ds ...webhook.Delivery) []webhook.Put {
	ps := make([]webhook.Put, len(ds))
	for i := range ds {
		ps[i].Delivery = ds[i]
	}
	return ps
}

// tryPut puts ps, and leaves the model alone.
func tryPut(ctx context.Context, s webhook.Store, ps ...webhook.Put) ([]webhook.Result, error) {
	lent := slices.Clone(ps)
	for i := range lent {
		var spoil func()
		lent[i].Delivery, spoil = lend(ps[i].Delivery)
		defer spoil()
	}
	out := make([]webhook.Result, len(ps))
	err := s.Put(ctx, lent, out)
	return out, err
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

var verdicts = []webhook.Verdict{webhook.Done, webhook.Retry, webhook.Bury, webhook.Return}

func settlements(s webhook.Store, verdict webhook.Verdict, ds ...webhook.Delivery) []webhook.Settlement {
	ss := make([]webhook.Settlement, len(ds))
	for i, d := range ds {
		d.Body = nil // Settle does not look at it
		ss[i] = webhook.Settlement{Verdict: verdict, Delivery: d, At: s.Now()}
		if verdict == webhook.Bury {
			ss[i].Reason = webhook.ReasonExpired
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

// list returns all that seq yields, and the error that ends it. It calls between, if that is not nil,
// before the second yield.
func list[T any](seq iter.Seq2[T, error], between func()) (all []T, err error) {
	for e, failed := range seq {
		if err != nil {
			return all, fmt.Errorf("yielded %v and went on", err)
		}
		if err = failed; err == nil {
			all = append(all, e)
		}
		if len(all) == 1 && between != nil {
			between()
		}
	}
	return all, err
}

// all is list for what does not fail.
func all[T any](k *kit, seq iter.Seq2[T, error]) []T {
	k.Helper()
	es, err := list(seq, k.between)
	if err != nil {
		k.Fatalf("a list of %T ends with the error %v", es, err)
	}
	return es
}

// heads returns what Heads yields, without the destinations that have no head.
func (k *kit) heads(every bool) map[string]webhook.Head {
	k.Helper()
	got, seen := make(map[string]webhook.Head), make(map[string]bool)
	for _, h := range all(k, k.s.Heads(k.ctx, every)) {
		if seen[h.Destination] {
			k.Fatalf("Heads(%v) yields %q twice", every, h.Destination)
		}
		if seen[h.Destination] = true; !h.Fresh.IsZero() || !h.Retry.IsZero() {
			got[h.Destination] = h
		}
	}
	return got
}

// news waits until Changed has had values that lead to all heads that are wanted: enough is asked of
// the destinations that Heads(false) has yielded. A store in a bubble has an hour.
func (k *kit) news(enough func(seen map[string]webhook.Head) bool) {
	k.Helper()
	late := time.After(time.Hour)
	for seen := make(map[string]webhook.Head); !enough(seen); maps.Copy(seen, k.heads(false)) {
		select {
		case <-k.s.Changed():
		case <-late:
			k.Fatalf("in an hour Changed had no value that leads to the wanted heads, but those of %v", seen)
		}
	}
}

// alike reports whether x and y are the same but for their claims. It is a
// quick way to find that there is no difference.
func alike(x, y webhook.Delivery) bool {
	a, err1 := x.AppendBinary(nil)
	b, err2 := y.AppendBinary(nil)
	return err1 == nil && err2 == nil && bytes.Equal(a, b)
}

// sameSetting tells cmp how to compare long values quickly, as alike does.
func sameSetting(x, y webhook.Setting) bool {
	return x.Name == y.Name && x.Version == y.Version && bytes.Equal(x.Value, y.Value)
}

// equal checks what a call returned. Claims do not matter.
func equal[T any](k *kit, what string, got, want T) {
	k.Helper()
	if cmp.Equal(want, got, cmpopts.EquateEmpty(), cmp.Comparer(alike), cmp.Comparer(sameSetting)) {
		return
	}
	k.Fatalf("%s (-want +got)\n%s", what, cmp.Diff(want, got, cmpopts.EquateEmpty(), cmpopts.IgnoreFields(webhook.Delivery{}, "Claim")))
}

// equalSets is equal for deliveries in any order.
func (k *kit) equalSets(what string, got, want []webhook.Delivery) {
	k.Helper()
	byKey := func(x, y webhook.Delivery) int { return strings.Compare(key(&x), key(&y)) }
	equal(k, what, slices.SortedFunc(slices.Values(got), byKey), slices.SortedFunc(slices.Values(want), byKey))
}
