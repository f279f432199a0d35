package queuetest

import (
	"fmt"
	"slices"
	"time"

	"github.com/hookferry/analytics/webhook"
)

var randomCase = testCase{"Random", "All of it at once: random operations do to the store what they do to a model of the contract.", func(k *kit) {
	w := &walk{kit: k}
	// operations has each operation as many times as it should occur in about a hundred
	// steps, because each step takes a random element.
	var operations []func()
	add := func(times int, do func()) { operations = append(operations, slices.Repeat([]func(){do}, times)...) }
	add(30, w.puts)
	add(25, w.fetches)
	add(27, w.settles)
	add(3, w.takesDead)
	add(3, w.sets)
	add(2, w.compare)
	add(1, func() { w.erase(w.user()) })
	add(1, func() {
		w.change(webhook.WaitingFilter{Destination: w.destination(), User: w.user()}, webhook.Discarded)
	})
	if k.traits.Durable {
		add(1, func() { w.reopen(); w.past = nil })
	}
	if k.traits.Bubble { // in real time, a delivery may become due while DueNow changes it
		add(1, func() { w.change(webhook.WaitingFilter{Destination: w.destination()}, webhook.DueNow) })
		add(6, func() { w.pass(time.Duration(w.r.Int64N(int64(w.unit)))) })
	}
	steps := 3000
	if k.traits.Share {
		steps = 600
	}
	for range steps {
		operations[k.r.IntN(len(operations))]()
	}
	k.compare()
	last := k.s.Now()
	for _, d := range k.inOrder() {
		if d.Claim != 0 {
			k.settle(webhook.Return, *d)
		}
		if d.Due.After(last) {
			last = d.Due
		}
	}
	k.pass(last.Sub(k.s.Now()))
	k.settle(webhook.Done, k.fetch(10_000, "d0", "d1", "d2", "d3", "d4")...)
	k.compare()
}}

// A walk is a sequence of random operations on a kit.
type walk struct {
	*kit
	old  []webhook.Delivery // deliveries to put again
	past []webhook.Delivery // deliveries with claims that have ended
}

func (w *walk) destination() string { return fmt.Sprint("d", w.r.IntN(5)) }
func (w *walk) user() string        { return fmt.Sprint("user ", w.r.IntN(30)) }

// within returns a random time between now and d from now. d may be negative.
func (w *walk) within(d time.Duration) time.Time {
	return w.s.Now().Add(time.Duration(w.r.Float64() * float64(d))).Truncate(time.Microsecond)
}

func (w *walk) puts() {
	w.Helper()
	ps := make([]webhook.Put, 1+w.r.IntN(12))
	for i := range ps {
		if ps[i].Keep = w.r.IntN(4) == 0; len(w.old) > 0 && w.r.IntN(6) == 0 {
			ps[i].Delivery = w.old[w.r.IntN(len(w.old))]
			continue
		}
		d := w.delivery(w.destination(), fmt.Sprint(len(w.old)))
		if w.r.IntN(4) == 0 {
			d = w.full(d.Destination, d.ID)
		}
		d.User = w.user()
		d.Body = append(d.Body, make([]byte, w.r.IntN(2000))...)
		switch w.r.IntN(3) {
		case 0:
			d.Due = w.within(3 * w.unit)
		case 1:
			d.Due = w.within(-time.Hour)
		}
		w.old = append(w.old, d)
		ps[i].Delivery = d
	}
	w.putAll(ps...)
}

func (w *walk) fetches() {
	w.Helper()
	var ws []webhook.Want
	for _, i := range w.r.Perm(10)[:1+w.r.IntN(10)] {
		ws = append(ws, webhook.Want{Destination: fmt.Sprint("d", i/2), Retries: i%2 == 1, Max: 1 + w.r.IntN(8)})
	}
	maxBytes := int64(noLimit)
	if w.r.IntN(4) == 0 {
		maxBytes = w.r.Int64N(20_000)
	}
	w.fetchWants(maxBytes, ws...)
}

func (w *walk) settles() {
	w.Helper()
	at := w.s.Now()
	var ss []webhook.Settlement
	for _, held := range w.inOrder() {
		if held.Claim == 0 || w.r.IntN(3) == 0 {
			continue
		}
		d := *held
		w.past = append(w.past, d)
		d.Tries++
		if len(d.Attempts) < webhook.MaxAttempts {
			d.Attempts = append(slices.Clip(d.Attempts), webhook.Attempt{At: at, Try: d.Tries, Status: 500, Reason: webhook.ReasonServerError})
		}
		s := settlements(w.s, verdicts[w.r.IntN(4)], d)[0]
		if s.At = w.within(-time.Second); s.Verdict == webhook.Retry {
			s.Delivery.Due = w.within(2 * w.unit).Add(-w.unit / 2)
			s.Delivery.Expires = at.Add(4 * time.Hour)
		}
		ss = append(ss, s)
	}
	for range min(w.r.IntN(3), len(w.past)) {
		ss = append(ss, settlements(w.s, verdicts[w.r.IntN(4)], w.past[w.r.IntN(len(w.past))])...)
	}
	w.settleAll(ss...)
	w.past = w.past[max(0, len(w.past)-500):]
}

// takesDead revives some random dead letters, and discards others.
func (w *walk) takesDead() {
	w.Helper()
	for _, d := range w.deadLetters(webhook.DeadFilter{}) {
		switch w.r.IntN(4) {
		case 0:
			w.revive(d.Key)
			if _, ok := w.heads(false)[d.Destination]; !ok && !w.traits.Share {
				w.Fatalf("Heads(false) does not yield %s after Revive", d.Destination)
			}
		case 1:
			w.discard(d.Key)
		}
	}
}

func (w *walk) sets() {
	w.Helper()
	name := fmt.Sprint("doc/", w.r.IntN(8))
	version := w.settings[name].Version
	if w.r.IntN(4) == 0 {
		version += 1 + w.r.Uint64N(3)
	}
	values := [][]byte{nil, []byte("one"), []byte("two"), []byte("three")}
	w.set(name, values[w.r.IntN(4)], version)
}
