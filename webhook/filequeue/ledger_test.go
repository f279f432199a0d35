package filequeue_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hookferry/analytics/internal/disk"
	"github.com/hookferry/analytics/internal/simdisk"
	"github.com/hookferry/analytics/webhook/filequeue"
	"github.com/hookferry/analytics/webhook/store"
)

// quiet is the logger of tests in which the disk fails on purpose.
var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

// A ledger is the model of a store. It has the states that each delivery may have: one state after
// a call that returned nil, several after a call that failed.
type ledger struct {
	*testing.T
	rnd      *rand.Rand
	s        *filequeue.Store
	may      map[string]map[string]bool // the states that each delivery may have, by id(d)
	together [][]string                 // for each Put that failed its deliveries: all were stored, or none
	papers   map[string]paper           // by name
	held     []store.Delivery           // claimed deliveries
	ids      int                        // how many ids were used
	body     int                        // the largest length of a body
	turns    map[string]int             // the order of the deliveries that have a key, if it is known
	turn     int                        // the latest one
	damaged  bool                       // something is missing, and was reported
	keeps    bool                       // what was delivered is kept
	forgets  bool                       // some of that may be gone, as it was too much
}

// A paper has the states that a document may be in: its possible values, of which "" means removed,
// and its version.
type paper struct {
	may     map[string]bool
	version uint64
}

// The states of a delivery are these three, and the results of state and stateDead.
const (
	nothing = "nothing" // it is not stored
	done    = "done"
	kept    = "kept" // it was delivered, and is in the history
)

func state(d *store.Delivery) string {
	due := d.Due.UnixMicro()
	if d.Key != "" && d.Tries == 0 { // it depends on when it is released
		due = 0
	}
	return fmt.Sprint("waiting, try ", d.Tries, ", due ", due, len(d.Body))
}

func stateDead(d *store.Record) string {
	return fmt.Sprint("dead, try ", d.Tries, d.Reason, len(d.Body))
}

func newLedger(t *testing.T, rnd *rand.Rand) *ledger {
	return &ledger{T: t, rnd: rnd, may: make(map[string]map[string]bool), papers: make(map[string]paper), turns: make(map[string]int), body: 3000}
}

func (l *ledger) open(d disk.Disk, c filequeue.Config) error {
	s, err := filequeue.OpenOn(d, l.config(c))
	if err == nil {
		l.s, l.held = s, nil
	}
	return err
}

func (l *ledger) config(c filequeue.Config) filequeue.Config {
	c.Logger = quiet
	if l.keeps {
		c.HistoryAge, c.HistoryBytes = store.Unlimited, 256<<10 // in tables of 16 KB
	}
	return c
}

// close closes the store.
func (l *ledger) close() {
	if l.s != nil {
		l.s.Close()
	}
}

func id(d *store.Delivery) string { return d.Destination + "/" + d.ID }

// bodyOf returns a body that depends on the id, so that a test can see a wrong body.
func bodyOf(id string, n int) []byte { return bytes.Repeat([]byte(id+"."), n/(len(id)+1)+1)[:n] }

// set notes that a call, which returned err, was to change the state of a delivery from was to is.
func (l *ledger) set(id string, err error, was, is string) {
	l.may[id] = map[string]bool{is: true}
	if err != nil {
		l.may[id][was] = true
	}
}

// step makes a random call, or waits.
func (l *ledger) step() {
	ctx := l.Context()
	switch n := l.rnd.IntN(20); {
	case n < 7:
		l.put(1 + l.rnd.IntN(8))
	case n < 11:
		var wants []store.Want
		for i := range 3 {
			wants = append(wants, store.Want{Destination: fmt.Sprint("d", i), Max: 1 + l.rnd.IntN(6)}, store.Want{Destination: fmt.Sprint("d", i), Retries: true, Max: 3})
		}
		ds, err := l.s.Fetch(ctx, wants, 1<<20, nil)
		if err == nil {
			l.held = append(l.held, ds...)
		}
	case n < 17:
		l.settle(1 + l.rnd.IntN(10))
	case n == 17:
		l.reviveOrDiscard()
	case n == 18:
		for range 1 + l.rnd.IntN(4) {
			l.write(fmt.Sprint("document ", l.rnd.IntN(8)))
		}
	default:
		time.Sleep(time.Duration(l.rnd.IntN(2000)) * time.Millisecond)
		l.checkOrder()
	}
	synctest.Wait() // for background work, so that each seed gives the same steps every time
	if c, err := l.s.Count(ctx); l.s.Unkept() > 0 || err == nil && c.DeliveredBytes > 200<<10 {
		l.forgets = true
	}
}

// write changes or removes a document. Some values are so long that the memtable is soon full.
func (l *ledger) write(name string) {
	d := store.Document{Folder: "pause", Name: name, Version: l.papers[name].version}
	if l.rnd.IntN(4) > 0 {
		d.Value = bodyOf(fmt.Sprint("value ", l.rnd.IntN(1000)), 20+l.rnd.IntN(4)*l.rnd.IntN(400))
	}
	v, err := l.s.SetDocument(l.Context(), d)
	p := l.papers[name]
	switch {
	case err != nil && p.may == nil:
		p.may = map[string]bool{"": true, string(d.Value): true}
	case err != nil:
		p.may[string(d.Value)] = true
	case d.Value == nil:
		p = paper{map[string]bool{"": true}, 0}
	default:
		p = paper{map[string]bool{string(d.Value): true}, v}
	}
	l.papers[name] = p
}

func (l *ledger) put(n int) {
	ps := make([]store.Put, n)
	ids := make([]string, n)
	now := l.s.Now()
	for i := range ps {
		l.ids++
		name := fmt.Sprint(l.ids)
		ps[i] = store.Put{Keep: l.rnd.IntN(3) == 0, Delivery: store.Delivery{
			Destination: fmt.Sprint("d", l.rnd.IntN(3)), ID: name, User: fmt.Sprint("user ", l.rnd.IntN(20)), Due: now.Add(-time.Duration(l.rnd.IntN(1000)) * time.Millisecond),
			Body: bodyOf(name, l.rnd.IntN(l.body)),
		}}
		if ids[i] = id(&ps[i].Delivery); l.rnd.IntN(2) == 0 {
			ps[i].Key = fmt.Sprint("key ", l.rnd.IntN(3))
			l.follow(ids[i])
		}
	}
	out := make([]store.Result, n)
	err := l.s.Put(l.Context(), ps, out)
	for i := range ps {
		d := ps[i].Delivery
		if l.set(ids[i], err, nothing, state(&d)); err == nil && !out[i].Stored {
			l.Fatalf("Put left out the new delivery %s, want it stored", ids[i])
		}
		if d.Claim = out[i].Claim; err == nil && d.Claim != 0 {
			l.held = append(l.held, d)
		}
	}
	if err != nil && !errors.Is(err, store.ErrQueueFull) {
		l.together = append(l.together, ids)
	}
	if err == nil && l.rnd.IntN(4) == 0 {
		if err := l.s.Put(l.Context(), ps, out); err == nil && slices.ContainsFunc(out, func(r store.Result) bool { return r.Stored }) {
			l.Fatalf("Put stored %v twice, want once", ids)
		}
	}
}

// follow notes that a delivery was put, or retried, after all others.
func (l *ledger) follow(id string) {
	l.turn++
	l.turns[id] = l.turn
}

// settle settles up to n claimed deliveries.
func (l *ledger) settle(n int) {
	l.rnd.Shuffle(len(l.held), func(i, j int) { l.held[i], l.held[j] = l.held[j], l.held[i] })
	n = min(n, len(l.held))
	ss := make([]store.Settlement, n)
	after := make([]string, n)
	for i := range ss {
		d := l.held[i]
		ss[i] = store.Settlement{Verdict: store.Verdict(1 + l.rnd.IntN(4)), At: l.s.Now(), Reason: store.ReasonExpired}
		switch ss[i].Verdict {
		case store.Done:
			if after[i] = done; l.keeps {
				after[i] = kept
			}
		case store.Retry:
			d.Tries++
			d.Due, d.Expires = l.s.Now().Add(time.Duration(l.rnd.IntN(3000))*time.Millisecond), l.s.Now().Add(time.Hour)
			d.Attempts = []store.Attempt{{At: d.Due, Try: d.Tries, Status: 500}}
			after[i] = state(&d)
		case store.Bury:
			d.Tries++
			after[i] = stateDead(&store.Record{Delivery: d, Reason: store.ReasonExpired})
		case store.Return:
			after[i] = state(&d)
		}
		ss[i].Delivery = d
		ss[i].Delivery.Body = nil
	}
	settled, err := l.s.Settle(l.Context(), ss)
	for i := range ss {
		if i < settled {
			l.set(id(&l.held[i]), nil, "", after[i])
		} else {
			l.set(id(&l.held[i]), err, state(&l.held[i]), after[i])
			if after[i] == kept { // Unkept does not count those of a commit in doubt
				l.may[id(&l.held[i])][done] = true
			}
		}
	}
	l.held = append(l.held[:0], l.held[settled:]...)
}

// reviveOrDiscard revives some of the dead letters, and discards some of them and of what is kept.
func (l *ledger) reviveOrDiscard() {
	for d, err := range store.Records(l.Context(), l.s, store.Query{States: []store.State{store.StateDead, store.StateDelivered}}) {
		if err != nil {
			return
		}
		was, n := stateDead(&d), 6
		if d.State == store.StateDelivered {
			was, n = kept, 60
		}
		switch m := l.rnd.IntN(n); {
		case m == 0:
			_, _, err := l.s.Discard(l.Context(), d.Ref())
			l.set(id(&d.Delivery), err, was, done)
		case m == 1 && was != kept:
			d.Tries, d.Due = 0, l.s.Now() // the clock of the bubble stands still until then
			_, err := l.s.Revive(l.Context(), d.Ref())
			if l.set(id(&d.Delivery), err, was, state(&d.Delivery)); err == nil {
				l.follow(id(&d.Delivery))
			} else {
				delete(l.turns, id(&d.Delivery))
			}
		}
	}
}

// states returns the state of each stored delivery.
func (l *ledger) states() map[string]string {
	l.Helper()
	got := make(map[string]string)
	note := func(d *store.Delivery, state string) {
		if had, twice := got[id(d)]; twice && l.damaged {
			return // the record is lost which said that a dead letter was put again
		} else if twice {
			l.Fatalf("delivery %s is both %s and %s, want one state", id(d), had, state)
		}
		if !bytes.Equal(d.Body, bodyOf(d.ID, len(d.Body))) {
			l.Fatalf("delivery %s has the body of another one, want its own", id(d))
		}
		got[id(d)] = state
	}
	for d, err := range store.Records(l.Context(), l.s, store.Query{}) {
		switch {
		case err != nil:
			l.Fatalf("List: %v", err)
		case d.State == store.StateDelivered:
			note(&d.Delivery, kept)
		case d.State == store.StateDead:
			note(&d.Delivery, stateDead(&d))
		default:
			note(&d.Delivery, state(&d.Delivery))
		}
	}
	return got
}

// checkOrder checks the waiting deliveries of each key. The first one must not be behind another.
// The others must be behind, in the order of their turns. It does nothing once the disk has
// crashed.
func (l *ledger) checkOrder() {
	l.Helper()
	var ds []store.Record
	for d := range store.Records(l.Context(), l.s, store.Query{States: []store.State{store.StateBehind, store.StateWaiting, store.StateClaimed}, Oldest: true}) {
		ds = append(ds, d)
	}
	if _, _, err := l.s.List(l.Context(), store.Query{}, 0, 1); err != nil {
		return // the list may lack deliveries that could not be read
	}
	latest := make(map[[2]string]int)
	for _, d := range ds {
		key, turn := [2]string{d.Destination, d.Key}, l.turns[id(&d.Delivery)]
		if d.Key == "" {
			continue
		}
		before, follows := latest[key]
		if follows != (d.State == store.StateBehind) || turn != 0 && turn < before {
			l.Fatalf("delivery %s with %q is %s, has turn %d, and follows another one: %t, of turn %d", id(&d.Delivery), d.Key, d.State, turn, follows, before)
		}
		latest[key] = max(turn, before)
	}
}

// check checks that each delivery has a state that it may have. From then on that is the only one.
func (l *ledger) check() {
	l.Helper()
	got := l.states()
	l.checkOrder()
	for _, name := range slices.Sorted(maps.Keys(l.may)) {
		may := l.may[name]
		is := got[name]
		switch {
		case is != "":
		case may[kept] && l.forgets:
			is = kept
		case may[done]:
			is = done
		default:
			is = nothing
		}
		if !may[is] {
			l.Fatalf("delivery %s is %s, want one of %v", name, is, slices.Sorted(maps.Keys(may)))
		}
		l.may[name] = map[string]bool{is: true}
		delete(got, name)
	}
	for name, is := range got {
		l.Fatalf("delivery %s is %s, want nothing, as it was never put", name, is)
	}
	for _, ids := range l.together {
		stored := 0
		for _, name := range ids {
			if !l.may[name][nothing] {
				stored++
			}
		}
		if stored != 0 && stored != len(ids) {
			l.Fatalf("a failed Put stored %d of %d deliveries, want all or none: %v", stored, len(ids), ids)
		}
	}
	l.together = nil
	l.checkDocuments()
	c, err := l.s.Count(l.Context())
	waiting, dead, delivered := 0, 0, 0
	for _, may := range l.may {
		for is := range may {
			switch {
			case is == nothing || is == done:
			case is == kept:
				delivered++
			case is[0] == 'w':
				waiting++
			default:
				dead++
			}
		}
	}
	if err != nil || c.Waiting != waiting || c.Dead != dead || l.s.Lost() != 0 || c.Delivered != delivered && !l.forgets {
		l.Fatalf("Count = %+v, %v, and %d lost; want %d waiting, %d dead, %d delivered", c, err, l.s.Lost(), waiting, dead, delivered)
	}
}

// checkDocuments compares the documents with the model, and notes which of the possible values they have.
func (l *ledger) checkDocuments() {
	found := make(map[string]paper)
	for d, err := range l.s.Documents(l.Context(), "pause", "") {
		if err != nil {
			l.Fatalf("Documents: %v", err)
		}
		found[d.Name] = paper{map[string]bool{string(d.Value): true}, d.Version}
	}
	for name, p := range l.papers {
		d, err := l.s.Document(l.Context(), "pause", name)
		if err != nil || !p.may[string(d.Value)] {
			l.Fatalf("document %q is %q, %v, want one of %v", name, d.Value, err, p.may)
		}
		if listed := found[name]; d.Version != listed.version || d.Value != nil && !listed.may[string(d.Value)] {
			l.Fatalf("Documents has %v of %q, but Document has version %d: %q", listed, name, d.Version, d.Value)
		}
		l.papers[name] = paper{map[string]bool{string(d.Value): true}, d.Version}
		delete(found, name)
	}
	if len(found) > 0 {
		l.Fatalf("there are documents that nobody has stored: %v", found)
	}
}

// smallDisk returns a disk on which segments have 64 KB, so that the store seals, merges and
// removes them all the time.
func smallDisk(seed uint64) *simdisk.Disk {
	d := simdisk.New(seed)
	d.SetCapacity(4 << 20)
	return d
}
