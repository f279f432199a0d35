package queuetest

import (
	"fmt"
	"slices"
	"time"

	"github.com/hookferry/analytics/webhook"
)

var randomCase = testCase{"Random", "All of it at once: random operations do to the store what they do to a model of the contract.", 0, func(k *kit) {
	w := &walk{kit: k}
	steps := 3000
	if k.traits.Share {
		steps = 600
	}
	for range steps {
		w.step()
	}
	k.compare()
	last := k.s.Now()
	for _, h := range k.inOrder() {
		if h.Claim != 0 {
			k.settle(webhook.Return, *h)
		}
		if h.Due.After(last) {
			last = h.Due
		}
	}
	k.pass(last.Sub(k.s.Now()))
	k.settle(webhook.Done, k.fetch(10_000, "d0", "d1", "d2", "d3", "d4")...)
	k.compare()
}}

// A walk is a sequence of random operations.
type walk struct {
	*kit
	old  []webhook.Delivery // to be put again
	past []webhook.Delivery // with claims that no longer hold
}

func (w *walk) step() {
	w.Helper()
	switch p := w.r.IntN(100); {
	case p < 30:
		w.puts()
	case p < 55:
		w.fetches()
	case p < 82:
		w.settles()
	case p < 88 && w.traits.Bubble:
		w.pass(time.Duration(w.r.Int64N(int64(w.unit))))
	case p < 91:
		w.exhumes()
	case p < 94:
		name := fmt.Sprint("doc/", w.r.IntN(8))
		version := w.settings[name].Version
		if w.r.IntN(4) == 0 {
			version += 1 + w.r.Uint64N(3)
		}
		values := [][]byte{nil, []byte("one"), []byte("two"), []byte("three")}
		w.set(name, values[w.r.IntN(4)], version)
	case p < 95:
		w.erase(fmt.Sprint("user ", w.r.IntN(30)))
	case p < 96:
		f := webhook.WaitingFilter{Destination: fmt.Sprint("d", w.r.IntN(5)), User: fmt.Sprint("user ", w.r.IntN(30))}
		to := webhook.Discarded
		if w.traits.Bubble && w.r.IntN(2) == 0 { // else a delivery may become due meanwhile
			f.User, to = "", webhook.DueNow
		}
		w.change(f, to)
	case p < 97 && w.traits.Durable:
		w.reopen()
		w.past = nil
	default:
		w.compare()
	}
}

func (w *walk) puts() {
	w.Helper()
	ps := make([]webhook.Put, 1+w.r.IntN(12))
	for i := range ps {
		if ps[i].Keep = w.r.IntN(4) == 0; len(w.old) > 0 && w.r.IntN(6) == 0 {
			ps[i].Delivery = w.old[w.r.IntN(len(w.old))]
			continue
		}
		d := w.delivery(fmt.Sprint("d", w.r.IntN(5)), fmt.Sprint(len(w.old)))
		if w.r.IntN(4) == 0 {
			d = w.full(d.Destination, d.ID)
		}
		d.User = fmt.Sprint("user ", w.r.IntN(30))
		d.Body = append(d.Body, make([]byte, w.r.IntN(2000))...)
		switch w.r.IntN(3) {
		case 0:
			d.Due = w.s.Now().Add(time.Duration(w.r.Int64N(int64(3 * w.unit)))).Truncate(time.Microsecond)
		case 1:
			d.Due = w.s.Now().Add(-time.Duration(w.r.Int64N(int64(time.Hour)))).Truncate(time.Microsecond)
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
	for _, h := range w.inOrder() {
		if h.Claim == 0 || w.r.IntN(3) == 0 {
			continue
		}
		d := *h
		w.past = append(w.past, d)
		d.Tries++
		if len(d.Attempts) < webhook.MaxAttempts {
			d.Attempts = append(slices.Clip(d.Attempts), webhook.Attempt{At: at, Try: d.Tries, Status: 500, Reason: webhook.ReasonServerError})
		}
		s := settlements(w.s, verdicts[w.r.IntN(4)], d)[0]
		if s.At = at.Add(-time.Duration(w.r.IntN(1000)) * time.Millisecond); s.Verdict == webhook.Retry {
			s.Delivery.Due = at.Add(time.Duration(w.r.Int64N(int64(2*w.unit))) - w.unit/2).Truncate(time.Microsecond)
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

// exhumes revives and discards some.
func (w *walk) exhumes() {
	w.Helper()
	for _, d := range w.compareDead(webhook.DeadFilter{}, "") {
		switch p := w.r.IntN(4); {
		case p == 0 && w.traits.Bubble:
			w.pass(time.Microsecond)
			w.exhume(true, d.Key)
			if _, ok := w.heads(w.s, false)[d.Destination]; !ok && !w.traits.Share {
				w.Fatalf("Heads(false) does not yield %s after Revive", d.Destination)
			}
		case p == 1:
			w.exhume(false, d.Key)
		}
	}
}
