package queuetest

import (
	"bytes"
	"context"
	"fmt"
	"iter"
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

// A kit is what the cases work with.
type kit struct{ *model }

// A subject is a store under test.
type subject struct {
	*testing.T
	ctx    context.Context
	open   Open
	traits Traits
	dir    string
	s      webhook.Store
	r      *rand.Rand
	unit   time.Duration // a while: a minute in a bubble
}

func (s *subject) close() {
	s.Helper()
	if s.s == nil {
		return
	}
	if s.traits.Check != nil {
		s.traits.Check(s, s.s)
	}
	if err := s.s.Close(); err != nil {
		s.Errorf("Close: %v", err)
	}
	s.s = nil
}

// pass waits until d has passed by the clock of the store.
func (s *subject) pass(d time.Duration) {
	s.Helper()
	if s.traits.Bubble {
		time.Sleep(d)
		return
	}
	end := s.s.Now().Add(d)
	testkit.Until(s, fmt.Sprintf("%v pass by the clock of the store", d), func() bool { return !s.s.Now().Before(end) })
}

// wait waits between two looks at a store.
func (s *subject) wait() {
	select {
	case <-s.ctx.Done():
	case <-time.After(time.Millisecond):
	}
}

// delivery returns a fresh delivery that was due a second ago.
func (s *subject) delivery(destination, id string) webhook.Delivery {
	at := s.s.Now().Add(-time.Second)
	return webhook.Delivery{Destination: destination, ID: id, Type: "track", Body: []byte(`{"messageId":"` + id + `"}`), Accepted: at, Due: at}
}

// deliveries returns n deliveries of one destination, each due a microsecond
// after the one before.
func (s *subject) deliveries(destination string, n int) []webhook.Delivery {
	ds := make([]webhook.Delivery, n)
	base := s.s.Now().Add(-time.Second)
	for i := range ds {
		ds[i] = s.delivery(destination, fmt.Sprintf("%s-%06d", destination, i))
		ds[i].Due = base.Add(time.Duration(i) * time.Microsecond)
	}
	return ds
}

// many returns the deliveries of many destinations, and their names.
func (s *subject) many(destinations, each int) (ds []webhook.Delivery, names []string) {
	for i := range destinations {
		names = append(names, fmt.Sprint("d", i))
		ds = append(ds, s.deliveries(names[i], each)...)
	}
	return ds, names
}

// full returns a retry with something in every field.
func (s *subject) full(destination, id string) webhook.Delivery {
	d := s.delivery(destination, id)
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

// detach returns d with copies of what it refers to.
func detach(d webhook.Delivery) webhook.Delivery {
	d.Body, d.Closed, d.Attempts = bytes.Clone(d.Body), slices.Clone(d.Closed), slices.Clone(d.Attempts)
	return d
}

// spoil overwrites what d refers to.
func spoil(d *webhook.Delivery) {
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

// puts asks to keep none of ds.
func puts(ds []webhook.Delivery) []webhook.Put {
	ps := make([]webhook.Put, len(ds))
	for i := range ds {
		ps[i].Delivery = ds[i]
	}
	return ps
}

// tryPut puts ps, and spoils what the store was handed, as it may keep nothing of it.
func tryPut(ctx context.Context, s webhook.Store, ps ...webhook.Put) ([]webhook.Result, error) {
	handed := slices.Clone(ps)
	for i := range handed {
		handed[i].Delivery = detach(ps[i].Delivery)
	}
	out := make([]webhook.Result, len(ps))
	err := s.Put(ctx, handed, out)
	for i := range handed {
		spoil(&handed[i].Delivery)
	}
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

// fetchOne fetches the one delivery of a destination that is due.
func (k *kit) fetchOne(destination string) webhook.Delivery {
	k.Helper()
	ds := k.fetch(10, destination)
	if len(ds) != 1 {
		k.Fatalf("Fetch returned %v, want one delivery", ids(ds))
	}
	return ds[0]
}

func settlements(s webhook.Store, verdict webhook.Verdict, ds ...webhook.Delivery) []webhook.Settlement {
	ss := make([]webhook.Settlement, len(ds))
	for i, d := range ds {
		d.Body = nil // Settle does not look at it
		ss[i] = webhook.Settlement{Verdict: verdict, Delivery: d}
		if verdict == webhook.Bury {
			ss[i].Reason, ss[i].At = webhook.ReasonExpired, s.Now()
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

// all is list for what does not fail.
func all[T any](k testing.TB, seq iter.Seq2[T, error]) []T {
	k.Helper()
	es, err := list(seq)
	if err != nil {
		k.Fatalf("a list of %T ends with %v", es, err)
	}
	return es
}

var likeStored = cmp.Options{cmpopts.EquateEmpty(), cmpopts.IgnoreFields(webhook.Delivery{}, "Claim")}

// alike reports whether x and y are the same but for their claims. It is a
// quick way to find that there is no difference.
func alike(x, y webhook.Delivery) bool {
	a, err1 := x.AppendBinary(nil)
	b, err2 := y.AppendBinary(nil)
	return err1 == nil && err2 == nil && bytes.Equal(a, b)
}

// same checks that the deliveries are those wanted, in this order.
func (s *subject) same(what string, got []webhook.Delivery, want ...webhook.Delivery) {
	s.Helper()
	if !slices.EqualFunc(want, got, alike) {
		s.Fatalf("%s (-want +got)\n%s", what, cmp.Diff(want, got, likeStored))
	}
}

// sameSet is same in any order.
func (s *subject) sameSet(what string, got []webhook.Delivery, want ...webhook.Delivery) {
	s.Helper()
	s.same(what, sorted(got), sorted(want)...)
}

func sorted(ds []webhook.Delivery) []webhook.Delivery {
	return slices.SortedFunc(slices.Values(ds), func(x, y webhook.Delivery) int { return strings.Compare(key(&x), key(&y)) })
}

func (s *subject) sameDead(what string, got, want webhook.DeadLetter) {
	s.Helper()
	if got.Key != want.Key || got.Reason != want.Reason || !got.Died.Equal(want.Died) || !alike(got.Delivery, want.Delivery) {
		s.Fatalf("%s (-want +got)\n%s", what, cmp.Diff(want, got, likeStored))
	}
}
