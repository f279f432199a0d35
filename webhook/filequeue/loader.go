package filequeue

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/hookferry/analytics/internal/disk"
	"github.com/hookferry/analytics/webhook/store"
)

// A loader builds the index from the segments. It reads the records backwards, so it knows the outcome
// of a delivery before it comes to the put. Of several copies of a record, the first found counts.
type loader struct {
	store  *Store
	gone   seqSet            // records that are gone
	met    seqSet            // whole records and documents that the loader has found
	states map[uint64]record // the latest states of deliveries whose whole records are yet to come
	keys   []timedKey

	marked mark // from the manifest
	// The latest record of kindSegments lists the segments that the store needs. The map needed has
	// their numbers, and where each ends. It is nil until the loader finds that record.
	needed    map[uint32]int64
	listed    uint32   // the segment with that record; later segments are needed, too
	unlisted  bool     // a later record of kindSegments may be unreadable
	counted   bool     // index.losses is complete
	seq       uint64   // the latest sequence number
	number    uint32   // the number of the latest segment
	latest    *segment // the latest segment with a commit
	tail      scanned  // what was read from it
	err       error    // the first missing segment
	leftovers []string // files to be removed
	tabled    bool     // the latest record of kindTables is found
	tables    []ref    // in that record
	flushed   uint64   // in that record
	untabled  bool     // a later record of kindTables may be unreadable
	lost      []ref    // deliveries that cannot be read, and that no kindGone lists yet

	// Check and Rescue set lenient. The loader then uses no hints, writes nothing, goes on when
	// something is missing, and collects reports in the field missing instead of logging them.
	lenient        bool
	ctx            context.Context
	missing        []string
	documents      int    // how many can be read
	documentTables int    // how many of the field tables have documents
	doubt          string // about the end of the log, if a part of the last commit cannot be read
	progress       func(n int64)
}

// A timedKey is the dedup key of a put, with the time of the put in microseconds.
type timedKey struct {
	key store.Key
	at  int64
}

// newLoader returns the loader of an empty Store without goroutines.
func newLoader(d disk.Disk, c Config, lock io.Closer) *loader {
	x := &index{
		segs: make(segments), claims: make(map[uint64]*claim), lanes: make(map[string]*lane), news: make(map[string]struct{}), changed: store.NewSignal(), tidy: store.NewSignal(), seen: store.NewWindow(c.DedupMax, c.DedupWindow),
	}
	s := &Store{config: c, lock: lock, disk: d, index: x, reader: &reader{index: x, logger: c.Logger, told: make(map[uint64]bool)}}
	s.upkeep = store.NewUpkeep("filequeue", c.Logger)
	return &loader{
		store: s, ctx: context.Background(), progress: func(int64) {},
		gone: make(seqSet), met: make(seqSet), states: make(map[uint64]record),
	}
}

// report notes a missing part for Check and Rescue, or logs it for the operator.
func (ld *loader) report(format string, args ...any) {
	if text := fmt.Sprintf(format, args...); ld.lenient {
		ld.missing = append(ld.missing, text)
	} else {
		ld.store.config.Logger.Error("filequeue: " + text)
	}
}

// lacks reports a file with deliveries, or documents, that does not exist.
func (ld *loader) lacks(file, with string) {
	ld.report("%s is missing with all %s in it", file, with)
	ld.err = cmp.Or(ld.err, fmt.Errorf("%w: %s is missing", ErrDamaged, file))
}

// load reads the folder and builds the index. It writes nothing.
func (ld *loader) load() error {
	files, err := ld.store.disk.List()
	if err != nil {
		return fmt.Errorf("filequeue: %w", err)
	}
	found := make(map[uint32]bool)   // the segments
	tables := make(map[string]int64) // the sizes of those that are found
	var rs []record
	for _, file := range slices.Backward(files) {
		if _, number, ok := parseTable(file.Name); ok {
			tables[file.Name] = file.Size
			ld.store.index.number = max(ld.store.index.number, number)
		}
		id, ok := parseName(file.Name)
		if !ok {
			continue
		}
		if err := ld.ctx.Err(); err != nil {
			return err
		}
		found[id.number] = true
		ld.number = max(ld.number, id.number)
		if _, needed := ld.needed[id.number]; !needed && id.number < ld.listed {
			ld.leftovers = append(ld.leftovers, id.name()) // the last process was about to remove it
			continue
		}
		f, err := ld.store.disk.Open(id.name())
		if err != nil && ld.lenient {
			ld.report("%s cannot be opened, and all deliveries in it are missing: %v", id.name(), err)
			continue
		} else if err != nil {
			return fmt.Errorf("filequeue: %w", err)
		}
		if ld.lenient {
			f = patient{f}
		}
		g := &segment{id: id, file: f, sealed: true}
		g.pins.Store(1)
		if rs, err = ld.records(g, rs[:0]); err != nil {
			g.unpin()
			return err
		}
		if g.end == 0 { // the last process ended before its first commit there
			g.unpin()
			ld.leftovers = append(ld.leftovers, id.name())
			continue
		}
		ld.store.index.segs[id.number] = g
		for i := range slices.Backward(rs) {
			ld.apply(g, &rs[i])
		}
	}
	if m := ld.marked; m.end > 0 && (ld.latest == nil || ld.latest.id.number < m.segment.number || ld.latest.id.number == m.segment.number && ld.latest.id.salt != m.segment.salt) {
		what := m.segment.name()
		if found[m.segment.number] {
			what = "the content of " + what
		}
		ld.lacks(what, "deliveries")
		ld.number = max(ld.number, m.segment.number)
	}
	for n, end := range ld.needed {
		switch {
		case found[n] && n == ld.marked.segment.number && n < ld.listed && end < ld.marked.end: // listed itself has grown since
			text := fmt.Sprintf("%s has commits up to byte %d, but a later segment says that it ends at %d", ld.marked.segment.name(), ld.marked.end, end)
			ld.report("%s; the deliveries and outcomes in between are missing", text)
			ld.err = cmp.Or(ld.err, fmt.Errorf("%w: %s", ErrDamaged, text))
		case found[n]:
		case ld.unlisted:
			ld.report("segment %d, of %d bytes, is missing; either it was not needed any more, or all deliveries in it are missing: the part of the log that says this cannot be read", n, end)
		default:
			ld.lacks(fmt.Sprintf("segment %d, of %d bytes,", n, end), "deliveries")
		}
	}
	ld.openTables(tables)
	if ld.err != nil && !ld.lenient {
		return ld.err
	}
	ld.finish()
	return nil
}

// records appends the records of a segment to dst. It reads only the hint if there is a valid one.
func (ld *loader) records(g *segment, dst []record) ([]record, error) {
	end, known := ld.needed[g.id.number]
	if known && !ld.lenient {
		if rs, ok := g.hint(end, dst); ok {
			g.end, g.hinted = end, true
			return rs, nil
		}
	}
	size, err := g.file.Size()
	if err != nil {
		return nil, fmt.Errorf("filequeue: %w", err)
	}
	defer ld.progress(size)
	if known {
		size = end
	} else if g.id == ld.marked.segment {
		end = ld.marked.end
	}
	c, err := scan(g.file, g.id, end, size)
	if err != nil {
		return nil, fmt.Errorf("filequeue: %s: %w", g.id.name(), err)
	}
	if len(c.records) == 0 && !known {
		return dst, nil // the method load reports the segment if it has the mark
	}
	g.end = c.end
	latest := ld.latest == nil
	if latest {
		ld.latest, ld.tail = g, c
	}
	if c.incomplete {
		switch _, sealed := g.hint(c.end, nil); { // a hint is all that is behind the records
		case sealed && latest:
			ld.lacks("the segment after "+g.id.name(), "deliveries")
		case sealed:
		case latest:
			ld.doubt = fmt.Sprintf("a part of the last commit, at the end of %s, cannot be read; nothing is missing if the process or the machine stopped while it wrote that commit, as no call had reported it as stored; but if the disk has damaged it, deliveries are missing, or delivered ones may be delivered again", g.id.name())
			if !ld.lenient {
				ld.store.config.Logger.Warn("filequeue: " + ld.doubt + "; look for errors of the disk in the log of the system")
			}
		default:
			ld.report("%s: the last records cannot be read; the deliveries or outcomes in them are missing", g.id.name())
		}
	}
	for _, p := range c.gaps {
		ld.unlisted, ld.untabled = ld.unlisted || ld.needed == nil, ld.untabled || !ld.tabled
		ld.report("%s: %d bytes at %d cannot be read; the deliveries or outcomes in them are missing, and delivered ones may be delivered again", g.id.name(), p.to-p.from, p.from)
	}
	return append(dst, c.records...), nil
}

// apply adds a record of a segment to the index.
func (ld *loader) apply(g *segment, r *record) {
	ld.seq = max(ld.seq, r.seq)
	if r.damaged && !r.delivery() {
		ld.unlisted = ld.unlisted || ld.needed == nil && r.kind == kindSegments
		ld.untabled = ld.untabled || !ld.tabled && r.kind == kindTables
		ld.report("%s: a record at %d cannot be read; a document may be missing, or deliveries that were done may be delivered again", g.id.name(), r.pos.off)
		return
	}
	switch r.kind {
	case kindGone:
		for _, ref := range r.refs() {
			ld.gone.add(ref.seq)
		}
		if !ld.counted {
			ld.store.index.losses += int(r.size)
		}
	case kindSegments:
		if r.pos.off == 0 && !ld.counted {
			ld.store.index.losses += int(r.size)
			ld.counted = true
		}
		if ld.needed == nil {
			ld.needed, ld.listed = make(map[uint32]int64), g.id.number
			for _, ref := range r.refs() {
				ld.needed[ref.seg] = int64(ref.seq)
			}
		}
	case kindKeys:
		for keys := r.payload; len(keys) >= 16; keys = keys[16:] {
			ld.remember([16]byte(keys), r.due)
		}
		g.keys += recordSize(int(r.length))
	case kindDocument:
		if ld.meet(g, r) && r.seq > ld.flushed {
			d := r.row()
			if _, later := ld.store.index.documents.find(d.path); !later {
				ld.store.index.keep(r, d)
			}
		}
	case kindTables:
		if !ld.tabled {
			ld.tabled, ld.tables, ld.documentTables, ld.flushed = true, r.refs(), int(r.size), uint64(r.due)
			ld.store.index.documents.flushed = ld.flushed
		}
	default:
		if r.whole() {
			ld.put(g, r)
		} else if _, later := ld.states[r.seq]; !later && !ld.gone.has(r.seq) && !ld.met.has(r.seq) {
			ld.states[r.seq] = *r
		}
	}
}

// meet reports whether a whole record or a document is needed, and is no copy of a record that the
// loader has found already.
func (ld *loader) meet(g *segment, r *record) bool {
	if !ld.met.add(r.seq) {
		g.copied = true // by a merge, which the last process has not completed
		return false
	}
	return !ld.gone.has(r.seq)
}

// remember notes a key for the dedup window, up to twice DedupMax of them. The window then evicts the
// oldest ones, so it has the same keys as before the restart.
func (ld *loader) remember(key store.Key, at int64) {
	if len(ld.keys)/2 < ld.store.config.DedupMax {
		ld.keys = append(ld.keys, timedKey{key, at})
	}
}

// put adds a delivery to the index, unless it is gone.
func (ld *loader) put(g *segment, r *record) {
	needed := ld.meet(g, r)
	if r.stored != noDedup {
		ld.remember(r.key, r.stored)
	}
	state, stated := ld.states[r.seq]
	delete(ld.states, r.seq)
	if !needed {
		return
	}
	e, k := entryOf(r), r.kind
	destination, key := r.destination()
	if r.damaged {
		ld.store.reader.load([]pinned{ld.store.index.segs.pin(e, 0)}, func(_ *pinned, _ *record, d *store.Record, _ error) {
			ld.report("%s: the delivery at %d cannot be read, and is missing: messageId %q, destination %q, as far as that can be read", g.id.name(), r.pos.off, d.MessageID, d.Destination)
		})
		ld.lost = append(ld.lost, ref{r.seq, g.id.number})
		return
	}
	if stated {
		k = state.kind
		e.setState(&state)
	}
	if state.damaged {
		ld.report("%s: the attempts at %d of a delivery to %q cannot be read, and are missing", ld.store.index.segs[state.pos.seg].id.name(), state.pos.off, destination)
	}
	ld.store.index.count(&e, 1)
	if h := &ld.store.index.history; k == kindDelivered {
		h.n, h.bytes = h.n+1, h.bytes+e.bytes()
	}
	l := ld.store.index.lanes[string(destination)] // this look-up allocates no string; the method lane does
	if l == nil {
		l = ld.store.index.lane(string(destination))
	}
	switch {
	case key == 0 || k == kindDead || k == kindDelivered:
	case k == kindRetry || stated: // only the first one of a key is attempted
		l.lead(e.seq, key)
	default: // perhaps the first one; see lane.sort
		k = kindBehind
		e.wait(key)
	}
	l.queue(k).collect(e)
}

// finish sorts the queues, and fills the dedup window.
func (ld *loader) finish() {
	x := ld.store.index
	x.documents.changes.Forget(ld.seq)
	for _, l := range x.lanes {
		l.sort()
	}
	slices.Reverse(ld.keys)
	slices.SortStableFunc(ld.keys, func(a, b timedKey) int { return cmp.Compare(a.at, b.at) })
	for i, k := range ld.keys {
		x.seen.Restore(k.key, time.UnixMicro(k.at), len(ld.keys)-i)
	}
}

// A seqSet is a set of sequence numbers: a word of bits for each 64 neighbours.
type seqSet map[uint64]uint64

func (s seqSet) has(seq uint64) bool { return s[seq>>6]&(1<<(seq&63)) != 0 }

// add adds seq, and reports whether it was missing.
func (s seqSet) add(seq uint64) bool {
	word := s[seq>>6]
	s[seq>>6] = word | 1<<(seq&63)
	return s[seq>>6] != word
}

// reportOn returns a Report about what is in an index.
func (ld *loader) reportOn(x *index) Report {
	r := Report{Waiting: x.waiting(), Documents: ld.documents, Missing: ld.missing, InDoubt: ld.doubt}
	for _, l := range x.lanes {
		r.Dead, r.Delivered = r.Dead+l.dead.len, r.Delivered+l.history.len
	}
	for _, t := range x.history.tables {
		r.Delivered += t.sum.n
	}
	r.Bytes, r.Needed = x.tableBytes(), x.tableBytes()
	for _, g := range x.segs {
		r.Bytes, r.Needed = r.Bytes+g.end, r.Needed+g.needed()
	}
	return r
}

// copyTo copies what was loaded to a new store, with the same sequence numbers.
func (ld *loader) copyTo(s *Store) error {
	err := s.writer.do(ld.ctx, func(g *group) error {
		g.seq = max(g.seq, ld.seq+1)
		g.gone(nil, ld.store.index.losses+len(ld.lost))
		return nil
	}, alone, true)
	if err == nil {
		err = ld.copyTables(s)
	}
	for some := range slices.Chunk(ld.keys, maxKeys) {
		var b []byte
		for _, k := range some {
			b = append(b, k.key[:]...)
		}
		keys := []record{keysRecord(b, some[len(some)-1].at)}
		if err == nil {
			err = s.writer.do(ld.ctx, func(g *group) error { g.remember(keys); return nil }, alone, true)
		}
	}
	if err != nil {
		return err
	}
	var moves []move
	ld.store.index.visit(func(id queueID, e entry) { moves = append(moves, move{entry: e, from: id}) })
	lost := func(m *move, d *store.Record, cause error) {
		ld.report("a delivery cannot be read any more, and is missing: messageId %q: %v", d.MessageID, cause)
	}
	return ld.store.reader.copyAll(moves, nil, lost, func(some []move) error {
		var ts []transition
		for _, m := range some {
			if m.copy.stored = noDedup; m.copy.payload != nil { // the dedup keys are stored already
				ts = append(ts, transition{record: m.copy, put: true, entry: m.entry, from: m.from})
			}
		}
		return s.writer.do(ld.ctx, func(g *group) error { g.transit(ts); return nil }, alone, true)
	})
}

// copyTables copies the documents, and the kept deliveries in tables, that can be read to tables of a new
// store.
func (ld *loader) copyTables(s *Store) error {
	if err := s.janitor.hold(ld.ctx); err != nil {
		return err
	}
	defer s.janitor.resume()
	reported := func(error) {} // by inspect
	for _, t := range ld.store.index.history.tables {
		if err := s.janitor.install(&s.index.history.tables, historyRows(t.records(nil, reported)), nil, 0, nil); err != nil {
			return err
		}
	}
	if ld.documents == 0 {
		return nil
	}
	ds := &ld.store.index.documents
	m, unpin := ds.merger("", "", len(ds.tables), reported)
	defer unpin()
	return s.janitor.install(&s.index.documents.tables, m.all(true), nil, ld.seq, nil)
}
