package filequeue

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hookferry/analytics/webhook/store"
)

const (
	// page is how many deliveries of tables are read at once. Of segments, wide are read at once if the
	// query selects few of the first, but no more than have pageBytes.
	page, wide = 256, 4096
	pageBytes  = 16 << 20
	// listTime bounds, approximately, how long a List looks for an id or a user in segments. Tables have
	// paths for both.
	listTime = 25 * time.Millisecond
)

// A found is an entry of the index and its place, or a delivery of a table. For the latter, entry
// has only the number.
type found struct {
	entry   entry
	in      queueID
	claimed bool
	table   *table
	record  *store.Record // nil until it is read, or if it cannot be
}

// state returns the state of the delivery.
func (f *found) state() store.State {
	switch {
	case f.claimed:
		return store.StateClaimed
	case f.in.kind == kindDead:
		return store.StateDead
	case f.in.kind == kindDelivered:
		return store.StateDelivered
	case f.in.kind == kindBehind:
		return store.StateBehind
	}
	return store.StateWaiting
}

// A search finds entries by their sequence numbers. It keeps the first n that are behind a number.
type search struct {
	listing store.Listing // of which it uses the order, and the number
	n       int
	found   []found
	bound   uint64 // if it is not 0, an entry with this number, or behind it, is none of the first n
}

// wants reports whether one of the numbers from low to high may be one of the first n.
func (s *search) wants(low, high uint64) bool {
	first, last := high, low
	if s.listing.Query.Oldest {
		first, last = low, high
	}
	return s.listing.Follows(last) && (s.bound == 0 || s.listing.Compare(first, s.bound) < 0)
}

func (s *search) add(f found) {
	if !s.wants(f.entry.seq, f.entry.seq) {
		return
	}
	if s.found = append(s.found, f); len(s.found) >= 2*s.n {
		if s.cut(); len(s.found) == s.n {
			s.bound = s.found[s.n-1].entry.seq
		}
	}
}

// cut sorts what is found, and cuts it to the first n.
func (s *search) cut() {
	slices.SortFunc(s.found, func(a, b found) int { return s.listing.Compare(a.entry.seq, b.entry.seq) })
	// Damage may bring back an entry that is in a table.
	s.found = slices.CompactFunc(s.found, func(a, b found) bool { return a.entry.seq == b.entry.seq })
	s.found = s.found[:min(len(s.found), s.n)]
}

// queue adds the entries of a queue. It begins with the chunk that is probably first.
func (s *search) queue(q *queue, id queueID) {
	for i := range q.chunks {
		if !s.listing.Query.Oldest {
			i = len(q.chunks) - 1 - i
		}
		if c := &q.chunks[i]; s.wants(c.low, c.high) {
			for j := range c.all {
				s.add(found{entry: c.all[j], in: id})
			}
		}
	}
}

// kinds has the kind of each queue of a lane.
var kinds = [...]kind{kindFresh, kindRetry, kindDead, kindDelivered, kindBehind}

func (s *search) lane(l *lane) {
	for _, k := range kinds {
		f := found{in: queueID{k, l.name}}
		if s.listing.Query.HasState(f.state()) {
			s.queue(l.queue(k), f.in)
		}
	}
}

// search returns the first n entries of a listing that are in its states, in its order. The caller
// holds mu.
func (x *index) search(l *store.Listing, n int) []found {
	s := search{listing: *l, n: n}
	if names := l.Query.Destinations; len(names) > 0 {
		for _, name := range slices.Compact(slices.Sorted(slices.Values(names))) {
			if l := x.lanes[name]; l != nil {
				s.lane(l)
			}
		}
	} else {
		for _, l := range x.lanes {
			s.lane(l)
		}
	}
	for _, c := range x.claims {
		if l.Query.HasState(store.StateClaimed) && l.Query.HasDestination(c.lane.name) {
			s.add(found{entry: c.entry, in: queueID{waitingKind(c.retry), c.lane.name}, claimed: true})
		}
	}
	s.cut()
	return s.found
}

// distinct returns refs in their order, without repetitions.
func distinct(refs []store.Ref) (all []store.Ref) {
	had := make(map[store.Ref]bool, len(refs))
	for _, ref := range refs {
		if !had[ref] {
			had[ref] = true
			all = append(all, ref)
		}
	}
	return all
}

// named returns the entries of refs, in the order of refs. The caller holds mu.
func (x *index) named(refs []store.Ref) (all []found) {
	seqs := make(map[string][]uint64) // by destination
	for _, ref := range refs {
		seqs[ref.Destination] = append(seqs[ref.Destination], ref.Seq)
	}
	have := make(map[store.Ref]found, len(refs))
	claimed := 0
	for name, some := range seqs {
		l := x.lanes[name]
		if l == nil {
			continue
		}
		claimed += l.claimed
		slices.Sort(some)
		for _, k := range kinds {
			for e := range l.queue(k).numbered(some) {
				have[store.Ref{Destination: name, Seq: e.seq}] = found{entry: e, in: queueID{k, l.name}}
			}
		}
	}
	if claimed > 0 {
		for _, c := range x.claims {
			have[store.Ref{Destination: c.lane.name, Seq: c.entry.seq}] = found{entry: c.entry, in: queueID{waitingKind(c.retry), c.lane.name}, claimed: true}
		}
	}
	for _, ref := range refs {
		if f, ok := have[ref]; ok {
			all = append(all, f)
		}
	}
	return all
}

// read reads the deliveries that find returns, and returns them. Unless more is nil, it returns
// instead what more makes of them and of the tables of the history. Deliveries that were removed
// meanwhile, that cannot be read, or whose bytes do not have the text, have no record. If the disk can
// read none of them, read returns an error.
func (s *Store) read(ctx context.Context, text string, find func(x *index) []found, more func(fs []found, tables []*table) ([]found, error)) (fs []found, err error) {
	if err := s.gate.Enter(ctx); err != nil {
		return nil, err
	}
	defer s.gate.Leave()
	s.index.mu.Lock()
	fs = find(s.index)
	pins, has := make([]pinned, len(fs)), []byte(text)
	for i := range fs {
		pins[i] = s.index.segs.pin(fs[i].entry, i)
		pins[i].text = has
	}
	tables := slices.Clone(s.index.history.tables)
	for _, t := range tables {
		t.pins.Add(1)
		defer t.unpin()
	}
	s.index.mu.Unlock()
	unread := 0
	s.reader.load(pins, func(p *pinned, _ *record, d *store.Record, lerr error) {
		switch f := &fs[p.i]; {
		case errors.Is(lerr, errDamaged) && f.state() != store.StateWaiting: // Fetch finds a waiting one
			s.lose(d, p.entry.seq, lerr, leaving(f.in, p.entry.rank()))
		case lerr != nil:
			s.reader.complain("a delivery, or a dead letter, cannot be read now, and is missing from lists", p.entry.seq, d, lerr)
			unread, err = unread+1, fmt.Errorf("filequeue: %w", lerr)
		default:
			if d.State = f.state(); d.State == store.StateWaiting || f.claimed {
				d.At, d.Due = time.Time{}, p.entry.dueAt() // decode sets At where the state cannot be read
			}
			read := *d
			f.record = &read
		}
	})
	if err != nil && unread == len(fs) { // the whole disk may be failing
		return nil, err
	}
	if more == nil {
		return fs, nil
	}
	return more(fs, tables)
}

// page returns the first n deliveries of a listing that are in its states, or fewer, so that they can be
// read at once. more reports whether there may be others behind them.
func (s *Store) page(ctx context.Context, l *store.Listing, n int) (fs []found, more bool, err error) {
	find := func(x *index) []found {
		fs, size := x.search(l, n), int64(0)
		for i := range fs {
			if size += fs[i].entry.total(); size > pageBytes && i > 0 {
				n = i
				return fs[:n]
			}
		}
		return fs
	}
	fs, err = s.read(ctx, cmp.Or(l.Query.ID, l.Query.User), find, func(fs []found, tables []*table) ([]found, error) {
		if !l.Query.HasState(store.StateDelivered) {
			return fs, nil
		}
		of := search{listing: *l, n: n, found: fs}
		if len(fs) == n {
			of.bound = fs[n-1].entry.seq
		}
		slices.SortFunc(tables, func(a, b *table) int {
			if l.Query.Oldest {
				return cmp.Compare(a.sum.low, b.sum.low)
			}
			return cmp.Compare(b.sum.high, a.sum.high)
		})
		for _, t := range tables {
			if err := of.table(t, s.reader.skip); err != nil {
				return nil, err
			}
		}
		of.cut()
		rows := 0
		for i := range of.found {
			if of.found[i].table == nil {
				continue
			}
			if rows++; rows > page {
				n = i
				of.found = of.found[:n]
				break
			}
		}
		return of.found, readRows(of.found, s.reader.skip)
	})
	return fs, len(fs) == n, err
}

// List implements store.Inspector. Of the deliveries in tables it finds those with an ID or of a User
// without reading others. It looks for them among the rest for about 25 ms.
func (s *Store) List(ctx context.Context, q store.Query, after uint64, max int) ([]store.Record, uint64, error) {
	l := store.Listing{Query: &q, After: after, Max: max}
	if err := l.Seek(func(after uint64) (uint64, time.Time, error) { return s.first(ctx, q, after) }); err != nil {
		return nil, 0, err
	}
	at, n, text, until := l, min(max, page), cmp.Or(q.ID, q.User), time.Now().Add(listTime)
	if text != "" {
		n = wide
	}
	for ; ; n = wide {
		fs, more, err := s.page(ctx, &at, n)
		if err != nil {
			return nil, 0, err
		}
		for i := range fs {
			if fs[i].record != nil && !l.Add(fs[i].record) {
				return l.Page, l.Next, nil
			}
		}
		if !more {
			return l.Page, 0, nil
		}
		if at.After = fs[len(fs)-1].entry.seq; text != "" && time.Now().After(until) {
			return l.Page, at.After, nil
		}
	}
}

// first returns the number of the first delivery behind after, and when it was accepted.
func (s *Store) first(ctx context.Context, q store.Query, after uint64) (seq uint64, at time.Time, err error) {
	l := store.Listing{Query: &store.Query{Destinations: q.Destinations}, After: after}
	for n := 1; ; n = page { // more, if the first cannot be read
		fs, more, err := s.page(ctx, &l, n)
		for i := range fs {
			if d := fs[i].record; d != nil {
				return d.Seq, d.Accepted, nil
			}
		}
		if err != nil || !more {
			return 0, time.Time{}, err
		}
		l.After = fs[len(fs)-1].entry.seq
	}
}

// Get implements store.Inspector.
func (s *Store) Get(ctx context.Context, ref store.Ref) (store.Record, error) {
	find := func(x *index) []found { return x.named([]store.Ref{ref}) }
	fs, err := s.read(ctx, "", find, func(fs []found, tables []*table) ([]found, error) {
		for _, t := range tables {
			if len(fs) == 0 && t.sum.has(ref.Seq) {
				f := []found{{entry: entry{seq: ref.Seq}, table: t}}
				if err := readRows(f, s.reader.skip); err != nil {
					return nil, err
				}
				if d := f[0].record; d != nil && d.Destination == ref.Destination {
					fs = f
				}
			}
		}
		return fs, nil
	})
	switch {
	case err != nil:
		return store.Record{}, err
	case len(fs) == 0 || fs[0].record == nil:
		return store.Record{}, store.ErrNoDelivery
	}
	return *fs[0].record, nil
}

// Keeps implements store.History.
func (s *Store) Keeps() bool { return s.config.HistoryAge != 0 }

// Unkept implements store.History. It counts what came while the janitor fell behind with tables, or
// failed to write them, and what gave way on a full disk.
func (s *Store) Unkept() int64 {
	s.index.mu.Lock()
	defer s.index.mu.Unlock()
	return s.index.history.unkept
}

// Hasten implements store.Inspector.
func (s *Store) Hasten(ctx context.Context, refs ...store.Ref) (n, claimed int, err error) {
	return s.each(ctx, refs, func(f *found, d *store.Record) (t transition, ok bool, err error) {
		if f.state() != store.StateWaiting || !d.Hasten(s.Now()) {
			return t, false, nil
		}
		t, err = restate(f, d, f.in.kind, false)
		return t, true, err
	})
}

// Revive implements store.Inspector. It stores dead letters again, so on a full disk it returns
// store.ErrQueueFull.
func (s *Store) Revive(ctx context.Context, refs ...store.Ref) (n int, err error) {
	if err := s.gate.Enter(ctx); err != nil {
		return 0, err
	}
	defer s.gate.Leave()
	if err := s.janitor.hold(ctx); err != nil { // an Erase knows deliveries by their sequence numbers
		return 0, err
	}
	defer s.janitor.resume()
	n, _, err = s.each(ctx, refs, func(f *found, d *store.Record) (t transition, ok bool, err error) {
		if f.state() != store.StateDead {
			return t, false, nil
		}
		now := s.Now()
		d.Accepted, d.Due, d.Expires, d.Tries, d.Closed, d.Reason, d.At = now, now, time.Time{}, 0, nil, "", time.Time{}
		t, err = restate(f, d, kindFresh, true)
		return t, true, err
	})
	return n, err
}

// Discard implements store.Inspector.
func (s *Store) Discard(ctx context.Context, refs ...store.Ref) (n, claimed int, err error) {
	if err := s.gate.Enter(ctx); err != nil {
		return 0, 0, err
	}
	defer s.gate.Leave()
	if err := s.janitor.hold(ctx); err != nil {
		return 0, 0, err
	}
	defer s.janitor.resume()
	if n, claimed, err = s.each(ctx, refs, nil); err != nil {
		return n, claimed, err
	}
	cut, err := s.janitor.cut(ctx, func(t *table) (map[uint64]bool, error) { return t.names(refs, s.reader.skip) })
	return n + cut, claimed, err
}

// each carries out the transitions that plan returns for the deliveries of refs, a page at a time;
// if plan is nil, the deliveries leave the store without being read. It returns how many it has
// moved, and how many are claimed.
func (s *Store) each(ctx context.Context, refs []store.Ref, plan func(*found, *store.Record) (transition, bool, error)) (n, claimed int, err error) {
	for some := range slices.Chunk(distinct(refs), page) {
		for len(some) > 0 {
			var ts []transition
			find := func(x *index) []found {
				return slices.DeleteFunc(x.named(some), func(f found) bool {
					if f.claimed {
						claimed++
					} else if plan == nil {
						ts = append(ts, leaving(f.in, f.entry.rank()))
					}
					return f.claimed || plan == nil
				})
			}
			fs, err := s.read(ctx, "", find, nil)
			for i := 0; i < len(fs) && err == nil; i++ {
				var t transition
				var ok bool
				if fs[i].record == nil {
					continue
				}
				if t, ok, err = plan(&fs[i], fs[i].record); ok {
					ts = append(ts, t)
				}
			}
			if err != nil {
				return n, claimed, err
			}
			if _, err := s.transit(ctx, ts); err != nil {
				return n, claimed, err
			}
			some = nil
			for i := range ts {
				if t := &ts[i]; t.moved {
					n++
				} else { // it has been claimed, released or removed since read
					some = append(some, store.Ref{Destination: t.from.destination, Seq: t.rank.seq})
				}
			}
		}
	}
	return n, claimed, nil
}
