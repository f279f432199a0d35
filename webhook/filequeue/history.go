package filequeue

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/hookferry/analytics/webhook/store"
)

// A delivered delivery that is kept is at first an entry of lane.history. Once these entries have
// many bytes, or are old, the janitor moves all of them to a table. The table has their records in
// the order of their sequence numbers, and then paths that find the deliveries of a destination, an id
// or a user. It is removed as a whole when it is too old, or when the history is too large. To remove
// deliveries that were discarded or erased, the store writes a new table without them.

// A history is the deliveries that are kept. index.mu guards the fields.
type history struct {
	tables []*table
	n      int   // how many entries are in lane.history
	bytes  int64 // the sum of their Sizes
	unkept int64 // the result of Unkept
}

// A summary describes the deliveries of a table.
type summary struct {
	n         int
	bytes     int64  // the sum of their Sizes
	low, high uint64 // between these are their sequence numbers
	latest    int64  // when the last one was delivered, in microseconds
}

// The paths of the rows of a table begin with these letters, and end with the number of the delivery.
// Only the rows of records have a value.
const (
	recordPath      = "a"
	destinationPath = "d" // and pathOf with the number as the name
	idPath          = "i" // and the hash of the ID, or of the MessageID, in 4 bytes
	userPath        = "u" // and the hash of the user in 4 bytes
	summaryPath     = "z" // of the last row, which is in the index
)

// numberPath returns a part of a path. Paths sort by the numbers in them.
func numberPath(seq uint64) string { return string(binary.BigEndian.AppendUint64(nil, seq)) }

// hashPath returns the beginning of the paths for an id or a user. Others may have the same hash.
func hashPath(letter, text string) string {
	return string(binary.BigEndian.AppendUint32([]byte(letter), textHash(text)))
}

// numberOf returns the number at the end of the path of a row.
func (r *row) numberOf() uint64 {
	return binary.BigEndian.Uint64([]byte(r.path[max(len(r.path)-8, 0):]))
}

// historyRows returns the rows of a table of ds. These are in the order of their numbers.
func historyRows(ds iter.Seq2[*store.Record, error]) iter.Seq2[row, error] {
	return func(yield func(row, error) bool) {
		sum := summary{low: math.MaxUint64}
		var paths []string
		for d, err := range ds {
			r := row{}
			if err == nil {
				r.path = recordPath + numberPath(d.Seq)
				r.value, err = d.AppendBinary(nil)
			}
			if !yield(r, err) || err != nil {
				return
			}
			number := numberPath(d.Seq)
			paths = append(paths, destinationPath+pathOf(d.Destination, number), hashPath(idPath, d.ID)+number)
			if d.MessageID != "" && d.MessageID != d.ID {
				paths = append(paths, hashPath(idPath, d.MessageID)+number)
			}
			if d.User != "" {
				paths = append(paths, hashPath(userPath, d.User)+number)
			}
			sum.n, sum.bytes = sum.n+1, sum.bytes+d.Size()
			sum.low, sum.high, sum.latest = min(sum.low, d.Seq), max(sum.high, d.Seq), max(sum.latest, d.At.UnixMicro())
		}
		slices.Sort(paths)
		for _, path := range paths {
			if !yield(row{path: path}, nil) {
				return
			}
		}
		yield(sum.row(), nil)
	}
}

func (s *summary) row() row {
	r := row{path: summaryPath}
	for _, n := range []uint64{uint64(s.n), uint64(s.bytes), s.low, s.high, uint64(s.latest)} {
		r.value = binary.AppendUvarint(r.value, n)
	}
	return r
}

// summaryOf decodes a summary from the value of its row.
func summaryOf(b []byte) summary {
	d := decoder{b}
	return summary{int(d.number()), int64(d.number()), d.number(), d.number(), int64(d.number())}
}

// records returns the deliveries of a table, in the order of their numbers, without those in gone.
// It calls skip for each part that cannot be read.
func (t *table) records(gone map[uint64]bool, skip func(error)) iter.Seq2[*store.Record, error] {
	return func(yield func(*store.Record, error) bool) {
		err := t.scan(recordPath, destinationPath, false, skip, func(r row) bool {
			if gone[r.numberOf()] {
				return true
			}
			var d store.Record
			return yield(&d, d.UnmarshalBinary(r.value))
		})
		if err != nil {
			yield(nil, err)
		}
	}
}

// without returns the rows of a table but for those of the deliveries in gone. The other deliveries are
// copied without being decoded. If a part of the table is damaged, the last result is an error.
func (t *table) without(gone map[uint64]bool) iter.Seq2[row, error] {
	return func(yield func(row, error) bool) {
		sum, more := t.sum, true
		var damage error
		err := t.scan(recordPath, summaryPath, false, nil, func(r row) bool {
			if !gone[r.numberOf()] {
				more = yield(r, nil)
				return more
			}
			if strings.HasPrefix(r.path, recordPath) {
				var d store.Record
				damage = d.UnmarshalBinary(r.value)
				sum.n, sum.bytes = sum.n-1, sum.bytes-d.Size()
			}
			return damage == nil
		})
		if err = cmp.Or(err, damage); more {
			yield(sum.row(), err)
		}
	}
}

// has reports whether a table may have a delivery with this number.
func (s *summary) has(seq uint64) bool { return s.low <= seq && seq <= s.high }

// names returns the numbers of those refs that the table has. It calls skip for each damaged part.
func (t *table) names(refs []store.Ref, skip func(error)) (had map[uint64]bool, err error) {
	had = make(map[uint64]bool)
	for _, ref := range refs {
		if path := destinationPath + pathOf(ref.Destination, numberPath(ref.Seq)); err == nil && t.sum.has(ref.Seq) {
			err = t.scan(path, path, false, skip, func(row) bool { had[ref.Seq] = true; return true })
		}
	}
	return had, err
}

// ofUser returns the numbers of a user's deliveries in a table, and of unreadable deliveries that
// may be the user's.
func (t *table) ofUser(user string, skip func(error)) (had map[uint64]bool, err error) {
	had = make(map[uint64]bool)
	var fs []found
	prefix := hashPath(userPath, user)
	err = t.scan(prefix+numberPath(0), prefix+numberPath(math.MaxUint64), false, nil, func(r row) bool {
		fs = append(fs, found{entry: entry{seq: r.numberOf()}, table: t})
		return true
	})
	for some := range slices.Chunk(fs, page) {
		if err == nil {
			err = readRows(some, skip)
		}
		for _, f := range some {
			if f.record == nil || f.record.User == user { // two users may have the same hash
				had[f.entry.seq] = true
			}
		}
		clear(some)
	}
	return had, err
}

// readRows reads the deliveries of fs that are in tables. It reads a block once for neighbours in
// fs that are in it. It calls skip for each damaged part.
func readRows(fs []found, skip func(error)) (err error) {
	var t *table
	var rows []row
	i := 0
	for k := range fs {
		f := &fs[k]
		if f.table == nil {
			continue
		}
		path := recordPath + numberPath(f.entry.seq)
		if at := f.table.find(path); at == len(f.table.blocks) {
			continue
		} else if t != f.table || i != at {
			t, i = f.table, at
			if rows, err = t.rows(i, recordPath, destinationPath); errors.Is(err, ErrDamaged) {
				skip(err)
			} else if err != nil {
				return err
			}
		}
		if at, ok := slices.BinarySearchFunc(rows, path, func(r row, path string) int { return strings.Compare(r.path, path) }); ok {
			d := &store.Record{State: store.StateDelivered}
			if err := d.UnmarshalBinary(rows[at].value); err != nil {
				skip(err)
			} else {
				f.record = d
			}
		}
	}
	return nil
}

// table adds the deliveries of a table to a search.
func (s *search) table(t *table, skip func(error)) error {
	if !s.wants(t.sum.low, t.sum.high) {
		return nil
	}
	q, low, high := s.listing.Query, uint64(0), uint64(math.MaxUint64)
	switch after := s.listing.After; {
	case after == 0:
	case q.Oldest:
		low = after
	default:
		high = after
	}
	var prefixes []string
	switch {
	case q.ID != "":
		prefixes = []string{hashPath(idPath, q.ID)}
	case q.User != "":
		prefixes = []string{hashPath(userPath, q.User)}
	case len(q.Destinations) == 0:
		prefixes = []string{recordPath}
	default:
		for _, name := range slices.Compact(slices.Sorted(slices.Values(q.Destinations))) {
			prefixes = append(prefixes, destinationPath+pathOf(name, ""))
		}
	}
	for _, prefix := range prefixes {
		err := t.scan(prefix+numberPath(low), prefix+numberPath(high), !q.Oldest, skip, func(r row) bool {
			seq := r.numberOf()
			if !s.listing.Follows(seq) {
				return true
			}
			if !s.wants(seq, seq) {
				return false
			}
			s.add(found{entry: entry{seq: seq}, in: queueID{kind: kindDelivered}, table: t})
			return true
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// A departure is the entries that leave lane.history in the commit that lists a new table.
type departure struct {
	refs []ref
	seqs seqSet
}

func (d *departure) add(e *entry) {
	d.refs = append(d.refs, ref{e.seq, e.put.seg})
	d.seqs.add(e.seq)
}

// leave adds the record of the departure to a group.
func (d *departure) leave(g *group) {
	r := listing(kindGone, d.refs)
	g.add(&r)
	g.then(func() {
		x := g.index
		for name, l := range x.lanes {
			was := l.history
			if was.len == 0 {
				continue
			}
			l.history = queue{}
			for i := range was.chunks {
				for _, e := range was.chunks[i].all {
					if d.seqs.has(e.seq) {
						x.count(&e, -1)
						x.history.n, x.history.bytes = x.history.n-1, x.history.bytes-e.bytes()
					} else {
						l.history.push(e)
					}
				}
			}
			x.prune(name)
		}
	})
}

// load reads the deliveries of fs, and adds those that it could read to leaves.
func (j *janitor) load(fs []found, leaves *departure) iter.Seq2[*store.Record, error] {
	return func(yield func(*store.Record, error) bool) {
		for n, size := 0, int64(0); len(fs) > 0; fs, n, size = fs[n:], 0, 0 {
			for ; n < len(fs) && size < maxMove; n++ {
				size += fs[n].entry.total()
			}
			some, pins := fs[:n], make([]pinned, n)
			j.store.index.mu.Lock()
			for i := range some {
				pins[i] = j.store.index.segs.pin(some[i].entry, i)
			}
			j.store.index.mu.Unlock()
			err := j.ctx.Err()
			j.store.reader.load(pins, func(p *pinned, _ *record, d *store.Record, lerr error) {
				switch f := &some[p.i]; {
				case errors.Is(lerr, errDamaged):
					j.store.lose(d, p.entry.seq, lerr, leaving(f.in, f.entry.rank()))
				case lerr != nil:
					err = fmt.Errorf("%w: %w", errUnread, lerr)
				default:
					read := *d
					f.record = &read
				}
			})
			for i := range some {
				d := some[i].record
				if some[i].record = nil; d == nil || err != nil {
					continue
				}
				leaves.add(&some[i].entry)
				if !yield(d, nil) {
					return
				}
			}
			if err != nil {
				yield(nil, err)
				return
			}
		}
	}
}

// A keepFailure is the latest failure of keep. As each call reads all that could not be moved, the next
// one waits for again, and twice as long after each further failure, up to a minute.
type keepFailure struct {
	err   error // nil if keep has not failed
	pause time.Duration
	until time.Time
}

// try calls keep, unless a failure was too short a time ago. Then it returns that failure.
func (u *keepFailure) try(keep func() error) error {
	if u.err != nil && time.Now().Before(u.until) {
		return u.err
	}
	if u.err = keep(); u.err == nil {
		u.pause = 0
		return nil
	}
	u.pause = min(max(again, 2*u.pause), time.Minute)
	u.until = time.Now().Add(u.pause)
	return u.err
}

// setTight says whether the disk is too full for a reserve.
func (x *index) setTight(tight bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if tight && !x.tight {
		x.tidy.Set()
	}
	x.tight = tight
}

// unkeep counts deliveries that are removed before their time. It is called before the commit: if that
// fails, a crash may show that they are gone all the same.
func (x *index) unkeep(n int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.history.unkept += int64(n)
}

// A surrender is what of the history is counted as removed, on a full disk, although no commit has
// removed it yet. It stays so, because commits may fail, and space may come.
type surrender struct {
	seqs   seqSet // of lane.history
	tables []*table
	next   time.Time // before this time no further table is given up
}

// kept returns the entries of lane.history.
func (j *janitor) kept() (fs []found) {
	x := j.store.index
	x.mu.Lock()
	defer x.mu.Unlock()
	for name, l := range x.lanes {
		for i := range l.history.chunks {
			for _, e := range l.history.chunks[i].all {
				fs = append(fs, found{entry: e, in: queueID{kindDelivered, name}})
			}
		}
	}
	return fs
}

// keep moves the entries of lane.history to a table.
func (j *janitor) keep() error {
	fs := j.kept()
	slices.SortFunc(fs, func(a, b found) int { return cmp.Compare(a.entry.seq, b.entry.seq) })
	leaves := &departure{seqs: make(seqSet)}
	return j.install(&j.store.index.history.tables, historyRows(j.load(fs, leaves)), nil, 0, leaves.leave)
}

// giveUp removes the entries of lane.history that were given up before, or all.
func (j *janitor) giveUp(all bool) error {
	x := j.store.index
	leaves := &departure{seqs: make(seqSet)}
	early := 0
	for _, f := range j.kept() {
		seq := f.entry.seq
		switch {
		case j.given.seqs.has(seq):
		case !all:
			continue
		case j.store.Keeps():
			j.given.seqs.add(seq)
			early++
		}
		leaves.add(&f.entry)
	}
	x.unkeep(early)
	if len(leaves.refs) > 0 {
		if err := j.list(&x.history.tables, nil, nil, 0, leaves.leave); err != nil {
			return err
		}
	}
	j.given.seqs = make(seqSet)
	return nil
}

// cut replaces tables of the history by new ones, without the deliveries that find returns. Then it
// removes the old files. The caller holds the janitor.
func (j *janitor) cut(ctx context.Context, find func(t *table) (map[uint64]bool, error)) (n int, err error) {
	x := j.store.index
	x.mu.Lock()
	tables := slices.Clone(x.history.tables)
	x.mu.Unlock()
	if err := j.resolve(); err != nil {
		return 0, err
	}
	for _, t := range tables {
		gone, err := find(t)
		if err = cmp.Or(err, ctx.Err()); err == nil && len(gone) > 0 {
			if err = j.install(&x.history.tables, t.without(gone), []*table{t}, 0, nil); errors.Is(err, ErrDamaged) {
				err = j.install(&x.history.tables, historyRows(t.records(gone, j.store.reader.skip)), []*table{t}, 0, nil)
			}
		}
		if err != nil {
			return n, err
		}
		n += len(gone)
	}
	return n, j.removeLeftovers()
}

// expire keeps the history within its bounds. It removes the oldest tables, and moves the entries
// of lane.history to a new table once they have historyBytes, or are older than a sixteenth of
// HistoryAge. On a disk that is too full for a reserve it removes these entries, and then a table now
// and then, until there is space. It returns the time at which there is more to do, or zero.
func (j *janitor) expire() (next time.Time, err error) {
	x, c, now := j.store.index, &j.store.config, j.store.Now()
	x.mu.Lock()
	h, bytes, tight := x.history, x.keptBytes(), x.tight
	tables := slices.SortedFunc(slices.Values(h.tables), func(a, b *table) int { return cmp.Compare(a.sum.latest, b.sum.latest) })
	var oldest time.Time
	for _, l := range x.lanes {
		oldest = earlier(oldest, l.history.first().dueAt())
	}
	x.mu.Unlock()
	old := 0
	for ; old < len(tables); old++ {
		ends := time.UnixMicro(tables[old].sum.latest).Add(c.HistoryAge)
		aged := c.HistoryAge == 0 || c.HistoryAge > 0 && !ends.After(now) || tables[old].sum.n == 0
		if !aged && (c.HistoryBytes == store.Unlimited || bytes <= c.HistoryBytes) {
			if c.HistoryAge > 0 {
				next = ends
			}
			break
		}
		bytes -= tables[old].sum.bytes
	}
	if tight && old == 0 && h.n == 0 && len(tables) > 0 && len(j.given.tables) == 0 && !time.Now().Before(j.given.next) {
		x.unkeep(tables[0].sum.n)
		j.given.tables = tables[:1]
		j.given.next = time.Now().Add(2 * again) // by then the writer has tried to make a reserve
	}
	gone := tables[:old]
	for _, t := range j.given.tables {
		if slices.Contains(tables[old:], t) {
			gone = append(slices.Clone(gone), t)
		}
	}
	if len(gone) > 0 {
		err = j.list(&x.history.tables, nil, gone, 0, nil)
	}
	if err == nil {
		j.given.tables = nil
	}
	var kerr error
	switch due := oldest.Add(c.HistoryAge / 16); {
	case h.n == 0:
	case c.HistoryAge == 0 || tight || len(j.given.seqs) > 0:
		kerr = j.giveUp(c.HistoryAge == 0 || tight)
	case h.bytes >= x.historyBytes || c.HistoryAge > 0 && !due.After(now):
		kerr = j.failure.try(j.keep)
	case c.HistoryAge > 0:
		next = earlier(next, due)
	}
	if !next.IsZero() {
		next = time.Now().Add(next.Sub(now)) // the store's clock may differ from that by which the janitor sleeps
	}
	if tight {
		next = earlier(next, time.Now().Add(2*again))
	}
	return next, cmp.Or(err, kerr)
}

// keptBytes returns the sum of the Sizes of all kept deliveries.
func (x *index) keptBytes() int64 {
	bytes := x.history.bytes
	for _, t := range x.history.tables {
		bytes += t.sum.bytes
	}
	return bytes
}

// tableBytes returns the sum of the sizes of all tables.
func (x *index) tableBytes() (bytes int64) {
	for _, t := range slices.Concat(x.documents.tables, x.history.tables) {
		bytes += t.size
	}
	return bytes
}
