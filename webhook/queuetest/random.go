package queuetest

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/hookferry/analytics/webhook/store"
)

// operations has the steps of random walks. In a hundred steps of a walk that takes all of them,
// each occurs about as often as its weight says.
var operations = []struct {
	weight int
	step   func(w *walk)
}{
	{30, (*walk).puts},
	{2, func(w *walk) { w.compare() }},
	{1, func(w *walk) { w.restart(); w.past = nil }},
	{25, (*walk).fetches},
	{27, (*walk).settles},
	{6, (*walk).waits},
	{3, (*walk).asks},
	{3, (*walk).sets},
	{1, func(w *walk) { w.erase(w.user()) }},
	{1, (*walk).lists},
}

// walkCases are short random walks. Each takes more kinds of operations than the one before.
var walkCases = []testCase{
	{"RandomPuts", "Put stores all of ps. It leaves out a delivery if one with the same Destination and ID was put before, or is earlier in ps. Within these bounds it remembers a put after a restart. Where ps[i].Keep is set, the store may claim the delivery for the caller. It may decline. All claims end with Close. The deliveries of a destination are in two queues: fresh ones, whose Expires is zero, and retries. Count returns how much the store holds.", func(k *kit) { takeWalk(k, 3, 1, 100) }},
	{"RandomFetches", "Fetch claims, for each of wants, up to Max deliveries of its queue that are due, the earliest first, and appends them to dst in the order of wants. It stops at maxBytes of bodies, but claims one delivery if any is due. It sets Next of each want to the earliest Due that is left in the queue and not claimed, zero if there is none. Claimed deliveries do not count for Heads.", func(k *kit) { takeWalk(k, 4, 1, 100) }},
	{"RandomSettles", "Settle ends the claims of ss, in their order. If a claim has ended before, its settlement changes nothing, and is no error. Retry puts it back with its Due. Put remembers a put after the delivery has been settled.", func(k *kit) { takeWalk(k, 6, 1, 200) }},
	{"RandomRevivalsAndDiscards", "Hasten makes waiting deliveries due now, as Delivery.Hasten does. Revive makes dead letters fresh deliveries: Accepted and due now, with a new Seq, no tries and no endpoint closed, and with their Attempts. An unknown delivery is no error. Discard removes deliveries in any state. Hasten and Discard return how many they have changed, and how many they have skipped because they are claimed.", func(k *kit) { takeWalk(k, 7, 1, 200) }},
	{"RandomDocuments", "SetDocument stores a document if the store has it with the version d.Version. Zero stands for a document that the store does not have. If the store has another version, SetDocument returns ErrConflict. A nil Value removes the document. The new version is greater than that of every change before it, of any document.", func(k *kit) { takeWalk(k, 8, 1, 200) }},
	{"RandomErasures", "Erase removes the deliveries and dead letters of a user, by their User, in every destination, except claimed deliveries. List returns a page of the deliveries that q selects, in every state, in the order of Seq, the newest first unless q.Oldest is set.", func(k *kit) { takeWalk(k, 10, 1, 200) }},
	{"RandomMany", "All of it with more than a store reads at once: many deliveries, many destinations and many settings. Settle ends the claims of ss, in their order. There may be any number of them, with bodies of any size: the first n are durable. Done removes the delivery. Retry puts it back with its Due, Expires, Tries, Closed and Attempts. Bury makes it a dead letter with its Tries, Closed and Attempts, and the Reason. Return puts it back as it was.", func(k *kit) { takeWalk(k, 10, 60, 20) }},
}

var randomCase = testCase{"Random", "All of it at once: random operations do to the store what they do to a model of the contract.", func(k *kit) {
	steps := 1000
	if k.traits.Share {
		steps = 600
	}
	takeWalk(k, len(operations), 1, steps)
}}

// takeWalk takes random steps of the first n operations, and then one step of each. A step does about
// scale times as much as in an ordinary walk. At the end takeWalk settles all deliveries.
func takeWalk(k *kit, n, scale, steps int) {
	w := &walk{kit: k, scale: scale, destinations: slices.Clone(similar)}
	for i := len(similar); i < len(similar)*scale; i++ {
		w.destinations = append(w.destinations, fmt.Sprint("destination ", i))
	}
	var choices []func(*walk)
	for _, o := range operations[:n] {
		choices = append(choices, slices.Repeat([]func(*walk){o.step}, o.weight)...)
	}
	for range steps {
		choices[k.r.IntN(len(choices))](w)
	}
	for _, o := range operations[:n] {
		o.step(w)
	}
	k.compare()
	var claimed []store.Delivery
	for _, e := range k.inOrder() {
		if e.Claim != 0 {
			claimed = append(claimed, e.Delivery)
		}
	}
	k.settle(store.Return, claimed...)
	for es := k.inOrder(); len(es) > 0; es = k.inOrder() { // each time the first ones of their keys
		k.pass(es[len(es)-1].Due.Sub(k.s.Now()))
		k.settle(store.Done, k.fetch(10_000, w.destinations...)...)
	}
	k.compare()
}

// A walk is a sequence of random operations on a kit.
type walk struct {
	*kit
	scale        int
	destinations []string
	old          []store.Delivery // deliveries to put again
	past         []store.Delivery // deliveries with claims that have ended or that never were
}

// similar has destinations with which a store fails if it mixes up destinations and ids.
var similar = []string{"d", "d1", "d12", "D", "d0"}

// destination returns a random destination. Half of the times it is one of the first, so that these
// have many deliveries.
func (w *walk) destination() string {
	n := []int{len(similar), len(w.destinations)}[w.r.IntN(2)]
	return w.destinations[w.r.IntN(n)]
}

func (w *walk) user() string { return fmt.Sprint("user ", w.r.IntN(30)) }

// within returns a random time between now and d from now. d may be negative.
func (k *kit) within(d time.Duration) time.Time {
	return k.s.Now().Add(time.Duration(k.r.Float64() * float64(d))).Truncate(time.Microsecond)
}

func (w *walk) puts() {
	ps := make([]store.Put, 1+w.r.IntN(12*w.scale))
	for i := range ps {
		if ps[i].Keep = w.r.IntN(4) == 0; len(w.old) > 0 && w.r.IntN(6) == 0 {
			ps[i].Delivery = w.old[w.r.IntN(len(w.old))]
			continue
		}
		d := w.delivery(w.destination(), fmt.Sprint(len(w.old)))
		if w.r.IntN(4) == 0 {
			d = w.full(d.Destination, d.ID)
		}
		if w.r.IntN(3) == 0 {
			d.Key, d.Expires = fmt.Sprint("key ", len(w.old)/(40*w.scale)), time.Time{}
		}
		d.User, d.Event = w.user(), fmt.Sprint("event ", w.r.IntN(3))
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
	ws := wants(0, w.destinations...)
	w.r.Shuffle(len(ws), func(i, j int) { ws[i], ws[j] = ws[j], ws[i] })
	for i := range ws {
		ws[i].Max = 1 + w.r.IntN(8*w.scale)
	}
	maxBytes := int64(noLimit)
	if w.r.IntN(4) == 0 {
		maxBytes = w.r.Int64N(20_000 * int64(w.scale))
	}
	w.fetchWants(maxBytes, ws[:1+w.r.IntN(len(ws))]...)
}

// outcome returns a settlement of a claimed delivery with a random verdict.
func (k *kit) outcome(d store.Delivery) store.Settlement {
	f := k.full("", "")
	d.Closed = f.Closed[:k.r.IntN(3)]
	if d.Tries++; len(d.Attempts) < store.MaxAttempts {
		d.Attempts = append(slices.Clip(d.Attempts), f.Attempts[k.r.IntN(2)])
	}
	s := settlements(k.s, verdicts[k.r.IntN(4)], d)[0]
	if s.At = k.within(-time.Second); s.Verdict == store.Retry {
		s.Delivery.Due = k.within(2 * k.unit).Add(-k.unit / 2)
		s.Delivery.Expires = s.At.Add(4 * time.Hour)
	}
	return s
}

func (w *walk) settles() {
	var ss []store.Settlement
	for _, e := range w.inOrder() {
		if e.Claim != 0 && w.r.IntN(3) > 0 {
			never := e.Delivery
			never.Claim = []uint64{0, 1<<63 + 12345}[w.r.IntN(2)]
			w.past = append(w.past, e.Delivery, never)
			ss = append(ss, w.outcome(e.Delivery))
		}
	}
	for range min(w.r.IntN(3), len(w.past)) {
		ss = append(ss, w.outcome(w.past[w.r.IntN(len(w.past))]))
	}
	w.settleAll(ss...)
	w.past = w.past[max(0, len(w.past)-500):]
}

// asks hastens and revives some random deliveries of all states, and discards others.
func (w *walk) asks() {
	var hastened, revived, discarded []store.Ref
	for _, d := range w.compareList(store.Query{Oldest: w.r.IntN(2) == 0}) {
		at := w.r.IntN(12)
		switch unknown := (store.Ref{Destination: d.Destination, Seq: d.Seq + 1<<40}); {
		case at > 3 && d.State != store.StateDead: // dead ones more often
		case at < 6 && at%2 == 0:
			discarded = append(discarded, d.Ref(), unknown, d.Ref())
		case at < 6:
			revived = append(revived, d.Ref(), unknown, d.Ref())
			if w.traits.Bubble || d.State != store.StateWaiting { // in real time, one may become due while Hasten changes it
				hastened = append(hastened, d.Ref(), unknown, d.Ref())
			}
		}
	}
	w.hasten(hastened...)
	w.revive(revived...)
	w.discard(discarded...)
}

func (w *walk) sets() {
	for range 4 * w.scale {
		at := path{fmt.Sprint("folder/", w.r.IntN(3)), fmt.Sprint(w.r.IntN(4 * w.scale))}
		version := w.documents.version(at)
		if w.r.IntN(4) == 0 { // another version, of which the latest may be of a document that was removed
			version = []uint64{0, w.documents[at].Version, version + 1 + w.r.Uint64N(3)}[w.r.IntN(3)]
		}
		w.write(at.folder, at.name, [][]byte{nil, {}, []byte("one"), []byte("\x00\xff")}[w.r.IntN(4)], version)
	}
}

// lists compares the lists of some filters.
func (w *walk) lists() {
	f := store.Query{Destinations: []string{w.destination(), w.destination()}, User: w.user(), Oldest: w.r.IntN(2) == 0}
	w.compareList(f)
	f = store.Query{Event: fmt.Sprint("event ", w.r.IntN(3)), States: []store.State{store.StateDead, store.StateClaimed}, Type: "tr*"}
	w.compareList(f)
	if len(w.old) > 0 {
		d := w.old[w.r.IntN(len(w.old))]
		w.compareList(store.Query{Destinations: []string{d.Destination}, ID: cmp.Or(d.MessageID, d.ID)})
		w.compareList(store.Query{From: d.Accepted, To: w.within(-time.Second), Oldest: w.r.IntN(2) == 0})
	}
}

// waits lets some time pass in a bubble, where it takes no real time. Half of the times it fetches
// just before the next delivery is due, and again at that time.
func (w *walk) waits() {
	if !w.traits.Bubble {
		return
	}
	w.pass(time.Duration(w.r.Int64N(int64(w.unit))))
	for _, e := range w.inOrder() {
		if left := e.Due.Sub(w.s.Now()); left > 0 && w.r.IntN(2) == 0 {
			w.pass(left - time.Microsecond)
			w.fetch(1, w.destinations...)
			w.pass(time.Microsecond)
			w.fetch(1, w.destinations...)
			return
		}
	}
}
