package filequeue

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"

	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/storekit"
)

// A loader builds the index from the segments. It reads the records backwards, from the latest to
// the first. So it knows the outcome of a delivery before it comes to the put. Of several copies of
// a record, the first that it finds counts.
type loader struct {
	*Store
	gone   seqSet            // records that are gone, or that the loader has found already
	states map[uint64]stated // the latest states of deliveries whose puts are yet to come
	keys   []timedKey

	ends map[uint32]int64 // where segments end, by number, as records in later segments say
	// The latest record of kindSegments lists the segments that the store needs. The map needed has
	// their numbers, and where each ends. It is nil until the loader finds that record.
	needed    map[uint32]int64
	listed    uint32   // the segment with that record; later segments are needed, too
	seq       uint64   // the latest sequence number
	number    uint32   // the number of the latest segment
	leftovers []string // files to be removed
	copied    []uint32 // segments that a merge has copied records out of
	lost      []ref    // deliveries that cannot be read, and that no kindLost lists yet

	// Check and Rescue set lenient. The loader then uses no hint files, goes on when something is
	// missing, and collects reports in the field missing instead of logging them.
	lenient  bool
	ctx      context.Context
	missing  []string
	progress func(n int64)
}

// A stated is a state record and the number of its segment.
type stated struct {
	record
	seg uint32
}

// A timedKey is the dedup key of a put, with the time of the put in microseconds.
type timedKey struct {
	key storekit.Key
	at  int64
}

func newLoader(s *Store) *loader {
	return &loader{
		Store: s, ctx: context.Background(), gone: make(seqSet), states: make(map[uint64]stated),
		ends: make(map[uint32]int64),
	}
}

// report notes a missing part for Check and Rescue, or logs it for the operator.
func (ld *loader) report(format string, args ...any) {
	if text := fmt.Sprintf(format, args...); ld.lenient {
		ld.missing = append(ld.missing, text)
	} else {
		ld.config.Logger.Error("filequeue: " + text)
	}
}

// leftover reports whether a segment was being removed when the process ended.
func (ld *loader) leftover(n uint32) bool {
	_, needed := ld.needed[n]
	return !needed && n < ld.listed
}

// load reads the folder and builds the index.
func (ld *loader) load() error {
	ids, hints, err := ld.files()
	if err != nil {
		return err
	}
	var rs []record
	for i, id := range slices.Backward(ids) {
		ld.number = max(ld.number, id.number)
		if err := ld.ctx.Err(); err != nil {
			return err
		}
		delete(hints, id)
		if ld.leftover(id.number) {
			ld.leftovers = append(ld.leftovers, id.hint(), id.name())
			continue
		}
		f, err := ld.disk.Open(id.name())
		if err != nil && ld.lenient {
			ld.report("%s cannot be opened, and all deliveries in it are missing: %v", id.name(), err)
			continue
		} else if err != nil {
			return fmt.Errorf("filequeue: %w", err)
		}
		g := &segment{segmentID: id, file: f, sealed: true}
		g.pins.Store(1)
		ld.index.segs[id.number] = g
		if rs, err = ld.records(g, i == len(ids)-1, rs[:0]); err != nil {
			return err
		}
		for i := range slices.Backward(rs) {
			ld.apply(g, &rs[i])
		}
	}
	for n, end := range ld.needed {
		if slices.ContainsFunc(ids, func(id segmentID) bool { return id.number == n }) {
			continue
		}
		if ld.report("segment %d, of %d bytes, is missing with all deliveries in it", n, end); !ld.lenient {
			return fmt.Errorf("%w: segment %d, of %d bytes, is missing", ErrDamaged, n, end)
		}
	}
	for id := range hints {
		// The segment of this hint file is missing. The store has not removed the segment: it would
		// have removed the hint file first.
		if !ld.leftover(id.number) && !ld.lenient {
			return fmt.Errorf("%w: %s is missing, though %s is there", ErrDamaged, id.name(), id.hint())
		}
		ld.leftovers = append(ld.leftovers, id.hint())
	}
	ld.finish()
	return nil
}

// files lists the segments in the order of their numbers, and the segments with hint files.
func (ld *loader) files() (ids []segmentID, hints map[segmentID]bool, err error) {
	files, err := ld.disk.List()
	if err != nil {
		return nil, nil, fmt.Errorf("filequeue: %w", err)
	}
	hints = make(map[segmentID]bool)
	for _, f := range files {
		if id, hint, ok := parseName(f.Name); hint {
			hints[id] = true
		} else if ok {
			ids = append(ids, id)
		} else if f.Name == nextName || f.Name == hintTemporary {
			ld.leftovers = append(ld.leftovers, f.Name)
		}
	}
	slices.SortFunc(ids, func(a, b segmentID) int { return cmp.Compare(a.number, b.number) })
	return ids, hints, nil
}

// records appends the records of a segment to dst. It reads the hint file if there is a valid one.
// The argument latest says whether g is the latest segment.
func (ld *loader) records(g *segment, latest bool, dst []record) ([]record, error) {
	end, known := ld.ends[g.number]
	b, err := readAll(ld.disk, g.hint(), maxHint)
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !ld.lenient {
		return nil, fmt.Errorf("filequeue: %w", err)
	}
	if len(b) >= hintStart && !known {
		end = int64(binary.LittleEndian.Uint64(b[8:]))
	}
	// The hint file is out of date if the segment became active again while the hint file was
	// written. Then the segment has another record at the offset end.
	if rs, err := decodeHint(b, g.salt, end, dst); err == nil && (known || !g.hasRecord(end)) {
		if known = true; !ld.lenient {
			g.end, g.hinted = end, true
			return rs, nil
		}
	}
	if !known {
		size, err := g.file.Size()
		if err != nil {
			return nil, fmt.Errorf("filequeue: %w", err)
		}
		end = size
	}
	var file io.ReaderAt = g.file
	if ld.lenient {
		file = patient{file}
		defer ld.progress(end)
	}
	c, err := scan(file, g.salt, end, known)
	if err == nil && latest && !ld.lenient {
		err = secureCommit(g, c.last, c.end)
	}
	if err != nil {
		return nil, fmt.Errorf("filequeue: %s: %w", g.name(), err)
	}
	g.end = c.end
	if c.torn > 0 && latest {
		ld.config.Logger.Info("filequeue: ignored an incomplete commit at the end of the log; the last process ended while it wrote it; nothing is lost, as no call had reported it as stored", "segment", g.name(), "bytes", c.torn)
	} else if c.torn > 0 {
		ld.report("%s: the last %d bytes cannot be read; the deliveries or outcomes in them are missing", g.name(), c.torn)
	}
	for _, p := range c.gaps {
		ld.report("%s: %d bytes at %d cannot be read; the deliveries or outcomes in them are missing, and delivered ones may be delivered again", g.name(), p.to-p.from, p.from)
	}
	return append(dst, c.records...), nil
}

// secureCommit writes the last commit of the latest segment again, and syncs it. The last process
// may have ended before it synced this commit, or its sync may have failed. After a failed sync,
// another sync saves only bytes that are written again. All earlier commits are durable.
func secureCommit(g *segment, last, end int64) error {
	b := make([]byte, end-last)
	if _, err := g.file.ReadAt(b, last); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if _, err := g.file.WriteAt(b, last); err != nil {
		return err
	}
	return g.file.Sync()
}

// apply adds a record of a segment to the index.
func (ld *loader) apply(g *segment, r *record) {
	ld.seq = max(ld.seq, r.seq)
	switch {
	case r.kind == kindPut:
		ld.put(g, r)
		return
	case r.kind.state():
		if _, later := ld.states[r.seq]; !later && !ld.gone.has(r.seq) {
			ld.states[r.seq] = stated{*r, g.number}
		}
		return
	case r.damaged:
		ld.report("%s: a record at %d cannot be read; deliveries that were done may be delivered again", g.name(), r.off)
		return
	case r.kind == kindSegments:
		ld.segments(g, r)
		return
	}
	x := ld.index
	first := ld.gone.add(r.seq)
	for _, ref := range r.refs() {
		if ref.seq == 0 {
			ld.copied = append(ld.copied, ref.seg)
		} else {
			ld.gone.add(ref.seq)
		}
	}
	if !first || r.kind == kindGone || r.kind == kindClosed {
		return
	}
	switch r.kind {
	case kindLost:
		x.losses += len(r.refs())
	case kindKeys:
		for keys := r.payload; len(keys) >= 16; keys = keys[16:] {
			ld.remember([16]byte(keys), r.due)
		}
		x.note(&x.keys, entryOf(r, g.number))
		return
	case kindSetting:
		e, err := r.readSetting()
		if err != nil {
			ld.report("%s: the setting at %d cannot be read, and has no value now", g.name(), r.off)
			return
		}
		i, found := x.settings.find(e.Name)
		if found {
			return
		}
		x.settings = slices.Insert(x.settings, i, e)
	}
	x.note(&x.notes, entryOf(r, g.number))
}

// segments reads a kindSegments record. It notes where segments end, from each of these records. The
// list of needed segments comes from the latest such record alone.
func (ld *loader) segments(g *segment, r *record) {
	latest := ld.needed == nil
	if latest {
		ld.needed, ld.listed = make(map[uint32]int64), g.number
	}
	for _, ref := range r.refs() {
		if latest {
			ld.needed[ref.seg] = int64(ref.seq)
		}
		if _, known := ld.ends[ref.seg]; !known && ref.seq > 0 {
			ld.ends[ref.seg] = int64(ref.seq)
		}
	}
}

// remember notes a key for the dedup window. The loader keeps up to twice DedupMax keys. When it
// fills the window, the window evicts the oldest of these keys. So the window has the same keys as
// before the restart.
func (ld *loader) remember(key storekit.Key, at int64) {
	if len(ld.keys) < 2*ld.config.DedupMax {
		ld.keys = append(ld.keys, timedKey{key, at})
	}
}

// put adds a delivery to the index, unless it is gone.
func (ld *loader) put(g *segment, r *record) {
	if r.header.put != noDedup {
		ld.remember(r.key, r.header.put)
	}
	state, stated := ld.states[r.seq]
	delete(ld.states, r.seq)
	if !ld.gone.add(r.seq) {
		return
	}
	e := entryOf(r, g.number)
	if r.damaged {
		p := ld.index.segs.pin(e)
		var d webhook.DeadLetter
		p.load(&d, nil)
		p.release()
		ld.report("%s: the delivery at %d cannot be read, and is missing: messageId %q, destination %q, as far as that can be read", g.name(), r.off, d.MessageID, d.Destination)
		ld.lost = append(ld.lost, ref{r.seq, g.number})
		return
	}
	k, bytes := waitingKind(r.retry), int64(r.size)
	if stated {
		if state.damaged {
			ld.report("%s: the attempts at %d of a delivery to %q cannot be read, and are missing", ld.index.segs[state.seg].name(), state.off, r.payload)
		}
		k = state.kind
		e.setState(state.seg, &state.record)
		if k == kindDead || k == kindDelivered {
			bytes = int64(state.size)
		}
	}
	e.setBytes(bytes)
	ld.index.segs.count(&e, 1)
	if k == kindDead || k == kindDelivered {
		ld.index.queue(where{kind: k}).collect(e)
		return
	}
	l := ld.index.lanes[string(r.payload)] // this look-up allocates no string; the method lane does
	if l == nil {
		l = ld.index.lane(string(r.payload))
	}
	l.queue(k == kindRetry).collect(e)
}

// finish sorts the queues, fills the dedup window, and marks the segments that a merge has copied
// records out of.
func (ld *loader) finish() {
	x := ld.index
	for _, w := range x.queues() {
		x.queue(w).sort()
	}
	slices.Reverse(ld.keys)
	byTime := func(a, b timedKey) int { return cmp.Compare(a.at, b.at) }
	if !slices.IsSortedFunc(ld.keys, byTime) {
		slices.SortStableFunc(ld.keys, byTime)
	}
	for i, k := range ld.keys {
		x.seen.Restore(k.key, timeOf(k.at), len(ld.keys)-i)
	}
	for _, n := range ld.copied {
		if g := x.segs[n]; g != nil {
			g.copied = true
		}
	}
}

// A seqSet is a set of sequence numbers. It has a block of bits for each 4,096 neighbouring
// numbers.
type seqSet map[uint64]*[1 << 6]uint64

func (s seqSet) has(seq uint64) bool {
	block := s[seq>>12]
	return block != nil && block[seq>>6&63]&(1<<(seq&63)) != 0
}

// add adds seq, and reports whether it was missing.
func (s seqSet) add(seq uint64) bool {
	block := s[seq>>12]
	if block == nil {
		block = new([1 << 6]uint64)
		s[seq>>12] = block
	}
	word, bit := &block[seq>>6&63], uint64(1)<<(seq&63)
	if *word&bit != 0 {
		return false
	}
	*word |= bit
	return true
}
