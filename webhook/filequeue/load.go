package filequeue

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"sort"

	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/storekit"
)

// A loader makes the index from the segments. It goes through them from the latest record to the
// first: so it knows what became of a delivery when it comes to where it was put, and the
// first copy of a record that it finds is the one that counts.
type loader struct {
	*Store
	gone    seqSet // what is gone, and of what a record was found that counts
	states  map[uint64]stateAt
	lanes   map[string]*loadedLane
	dead    []entry
	history []entry
	keys    []keyAndTime
	dropped map[uint32]bool

	ends      map[uint32]int64 // where segments end, as later ones say
	live      []ref            // what the latest kindSegments lists, nil until it is found
	seq       uint64           // the latest
	number    uint32           // the latest
	leftovers []string         // files that are not needed
	lost      []ref            // what cannot be read, and was not set aside yet

	// Of Check and Rescue: all is read, hints are not used, what is missing is listed, and ends
	// nothing.
	ctx      context.Context
	lenient  bool
	missing  []string
	progress func(n int64)
}

// report tells what is missing.
func (ld *loader) report(format string, args ...any) {
	if text := fmt.Sprintf(format, args...); ld.lenient {
		ld.missing = append(ld.missing, text)
	} else {
		ld.config.Logger.Error("filequeue: " + text)
	}
}

// A stateAt is the latest state of a delivery whose put is yet to come.
type stateAt struct {
	seg uint32
	summary
}

type loadedLane struct{ fresh, retries []entry }

type keyAndTime struct {
	key storekit.Key
	at  int64
}

func newLoader(s *Store) *loader {
	return &loader{
		Store: s, ctx: context.Background(), gone: make(seqSet), states: make(map[uint64]stateAt), lanes: make(map[string]*loadedLane),
		dropped: make(map[uint32]bool), ends: make(map[uint32]int64),
	}
}

// load reads the folder.
func (ld *loader) load() error {
	numbers, hints, err := ld.files()
	if err != nil {
		return err
	}
	var sums []summary
	for i, n := range slices.Backward(numbers) {
		if n > ld.number {
			ld.number = n
		}
		if err := ld.ctx.Err(); err != nil {
			return err
		}
		delete(hints, n)
		if ld.dropped[n] {
			ld.leftovers = append(ld.leftovers, segmentName(n), hintName(n))
			continue
		}
		g, err := ld.open(n)
		if err != nil && ld.lenient {
			ld.report("%s cannot be opened, and all that is in it is missing: %v", segmentName(n), err)
			continue
		}
		if err != nil {
			return err
		}
		if sums, err = ld.summaries(g, i == len(numbers)-1, sums[:0]); err != nil {
			return err
		}
		for i := range slices.Backward(sums) {
			if err := ld.apply(g, &sums[i]); err != nil {
				return fmt.Errorf("filequeue: %w", err)
			}
		}
		if g.prev > 0 {
			ld.ends[g.prev] = g.prevEnd
		}
	}
	for _, r := range ld.live {
		if ld.index.segs[r.seg] != nil || ld.dropped[r.seg] || slices.Contains(numbers, r.seg) {
			continue
		}
		if ld.report("%s, of %d bytes, is missing", segmentName(r.seg), r.seq); !ld.lenient {
			return fmt.Errorf("%w: %s, of %d bytes, is missing", ErrDamaged, segmentName(r.seg), r.seq)
		}
	}
	for n := range hints {
		// A segment is removed after its hint. So somebody else has removed this one.
		if !ld.dropped[n] && !ld.lenient {
			return fmt.Errorf("%w: %s is missing, though %s is there", ErrDamaged, segmentName(n), hintName(n))
		}
		ld.leftovers = append(ld.leftovers, hintName(n))
	}
	ld.finish()
	return nil
}

// files lists the segments and the hints.
func (ld *loader) files() (numbers []uint32, hints map[uint32]bool, err error) {
	files, err := ld.disk.List()
	if err != nil {
		return nil, nil, fmt.Errorf("filequeue: %w", err)
	}
	hints = make(map[uint32]bool)
	for _, f := range files {
		if n, ok := segmentNumber(f.Name, ".log"); ok {
			numbers = append(numbers, n)
		} else if n, ok := segmentNumber(f.Name, ".hint"); ok {
			hints[n] = true
		} else if f.Name == nextName || f.Name == "hint" {
			ld.leftovers = append(ld.leftovers, f.Name)
		}
	}
	slices.Sort(numbers)
	return numbers, hints, nil
}

// open opens a segment.
func (ld *loader) open(n uint32) (*segment, error) {
	f, err := ld.disk.Open(segmentName(n))
	if err != nil {
		return nil, fmt.Errorf("filequeue: %w", err)
	}
	g := &segment{file: f, sealed: true, sources: make(map[uint32]struct{})}
	g.pins.Store(1)
	g.segmentHeader, err = readSegmentHeader(f)
	if errors.Is(err, errHeader) {
		// The hint knows the salt, too.
		var b []byte
		if b, err = readAll(ld.disk, hintName(n), hintStart); err == nil && len(b) == hintStart && string(b[:8]) == hintMagic {
			g.salt = binary.LittleEndian.Uint64(b[8:])
			g.number = n
		} else {
			err = fmt.Errorf("%w: %s: %w", ErrDamaged, segmentName(n), errHeader)
		}
	}
	if err == nil && g.number != n {
		err = fmt.Errorf("%w: %s is segment %d", ErrDamaged, segmentName(n), g.number)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("filequeue: %w", err)
	}
	ld.index.segs[n] = g
	ld.seq = max(ld.seq, g.seq)
	return g, nil
}

// summaries appends those of a segment to dst, from its hint file if there is one.
func (ld *loader) summaries(g *segment, latest bool, dst []summary) ([]summary, error) {
	b, err := readAll(ld.disk, hintName(g.number), maxHint)
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !ld.lenient {
		return nil, fmt.Errorf("filequeue: %w", err)
	}
	end, known := ld.ends[g.number]
	if err == nil && len(b) >= hintStart && !known {
		end = int64(binary.LittleEndian.Uint64(b[16:]))
	}
	if err == nil && !ld.lenient {
		// A hint that was written while the segment became the active one again says too little.
		if sums, err := decodeHint(b, g.salt, end, dst); err == nil && (known || !g.hasRecord(end)) {
			g.end = end
			return sums, nil
		}
	}
	size, err := g.file.Size()
	if err != nil {
		return nil, fmt.Errorf("filequeue: %w", err)
	}
	if !known {
		end = size
	}
	var file io.ReaderAt = g.file
	if ld.lenient {
		file = patient{file}
		defer ld.progress(end)
	}
	c, err := scan(file, &g.segmentHeader, end, known)
	if err != nil {
		return nil, fmt.Errorf("filequeue: %s: %w", segmentName(g.number), err)
	}
	g.end = c.end
	if latest && !ld.lenient {
		if err := ld.secure(g, c.last); err != nil {
			return nil, fmt.Errorf("filequeue: %w", err)
		}
	}
	if c.torn > 0 && latest {
		ld.config.Logger.Info("filequeue: the last commit before the process ended is incomplete, and is left out; nobody was told that it was stored", "segment", segmentName(g.number), "bytes", c.torn)
	} else if c.torn > 0 {
		ld.report("%s: the last %d bytes cannot be read, and what was in them is missing", segmentName(g.number), c.torn)
	}
	for _, p := range c.gaps {
		ld.report("%s: %d bytes at %d cannot be read, and what was in them is missing", segmentName(g.number), p.to-p.from, p.from)
	}
	if len(c.gaps) == 0 && !slices.ContainsFunc(c.summaries, func(s summary) bool { return s.damaged }) {
		g.hint = newHintWriter()
		for i := range c.summaries {
			g.hint.add(&c.summaries[i])
		}
	}
	return append(dst, c.summaries...), nil
}

// secure makes the last commit of the latest segment durable. It may be in the system's cache
// alone: the process may have ended before its sync, or the sync may have failed, after which
// another sync saves only what is written again. All commits before it were synced.
func (ld *loader) secure(g *segment, last int64) error {
	b := make([]byte, g.end-last)
	if _, err := g.file.ReadAt(b, last); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if _, err := g.file.WriteAt(b, last); err != nil {
		return err
	}
	return g.file.Sync()
}

// apply does what a record says.
func (ld *loader) apply(g *segment, s *summary) error {
	ld.seq = max(ld.seq, s.seq)
	x := ld.index
	switch {
	case s.damaged && s.kind != kindPut && !s.kind.state():
		ld.report("%s: a record at %d cannot be read; deliveries that were done may be delivered again", segmentName(g.number), s.off)
	case s.kind == kindGone:
		g.source(s)
		for _, r := range s.refs {
			ld.gone.add(r.seq)
		}
	case s.kind == kindLost:
		for _, r := range s.refs {
			ld.gone.add(r.seq)
		}
		if ld.gone.add(s.seq) {
			x.addLost(&record{summary: *s}, g)
		}
	case s.kind.state():
		if _, later := ld.states[s.seq]; !later && !ld.gone.has(s.seq) {
			ld.states[s.seq] = stateAt{g.number, *s}
		}
	case s.kind == kindPut:
		ld.put(g, s)
	case s.kind == kindSetting:
		if !ld.gone.add(s.seq) {
			return nil
		}
		b, _, err := g.read(s.off, int(s.size), s.seq, nil)
		if err != nil && !errors.Is(err, errDamaged) {
			return err
		}
		e, rerr := readSetting(b)
		if err != nil || rerr != nil {
			ld.report("%s: the setting %q at %d cannot be read, and has no value now", segmentName(g.number), s.name, s.off)
			return nil
		}
		e.Version = s.seq
		if i, found := x.settings.find(e.Name); !found {
			own := s.entryOf(g.number)
			x.settings = slices.Insert(x.settings, i, stored{e, own})
			x.segs.count(&own, 1)
		}
	case s.kind == kindKeys:
		if !ld.gone.add(s.seq) {
			return nil
		}
		b, _, err := g.read(s.off, int(s.size), s.seq, nil)
		if err != nil || len(b) < 8 {
			if err != nil && !errors.Is(err, errDamaged) {
				return err
			}
			return nil
		}
		e := s.entryOf(g.number)
		x.keys = append(x.keys, remembered{entry: e})
		x.segs.count(&e, 1)
		for keys := b[8:]; len(keys) >= 16; keys = keys[16:] {
			ld.remember([16]byte(keys), s.at)
		}
	case s.kind == kindSegments:
		if ld.live == nil {
			ld.live = append([]ref{}, s.refs...)
		}
		for _, r := range s.refs {
			if _, known := ld.ends[r.seg]; !known {
				ld.ends[r.seg] = int64(r.seq)
			}
		}
	case s.kind == kindDropped:
		for _, r := range s.refs {
			ld.dropped[r.seg] = true
		}
	}
	return nil
}

// remember notes a key for the dedup window. There are at most so many that the window cannot
// have forgotten those that it should have, and about as many again.
func (ld *loader) remember(key storekit.Key, at int64) {
	if len(ld.keys) < 2*ld.config.DedupMax {
		ld.keys = append(ld.keys, keyAndTime{key, at})
	}
}

// put adds a delivery, unless it is gone.
func (ld *loader) put(g *segment, s *summary) {
	if !s.damaged && s.at != noDedup {
		ld.remember(s.key, s.at)
	}
	if !ld.gone.add(s.seq) {
		delete(ld.states, s.seq)
		return
	}
	e := s.entry(g.number)
	k := kindFresh
	if s.retry {
		k = kindRetry
	}
	body := e.bytes()
	if state, ok := ld.states[s.seq]; ok {
		delete(ld.states, s.seq)
		if state.damaged {
			ld.report("%s: the attempts at %d of a delivery to %q cannot be read, and are missing", segmentName(state.seg), state.off, s.dest)
		}
		k = state.kind
		e.setState(state.seg, &state.summary)
		if k == kindDead || k == kindDelivered {
			body = state.bytes
		}
	}
	e.setBytes(body)
	if s.damaged {
		p := ld.index.segs.pin(e)
		var d webhook.DeadLetter
		p.load(&d)
		p.release()
		ld.report("%s: the delivery at %d cannot be read, and is missing: messageId %q, destination %q, as far as that can be read", segmentName(g.number), s.off, d.MessageID, d.Destination)
		ld.lost = append(ld.lost, ref{s.seq, g.number})
		return
	}
	ld.index.segs.count(&e, 1)
	switch k {
	case kindDead:
		ld.dead = append(ld.dead, e)
	case kindDelivered:
		ld.history = append(ld.history, e)
	default:
		l := ld.lanes[s.dest]
		if l == nil {
			l = &loadedLane{}
			ld.lanes[s.dest] = l
		}
		if k == kindRetry {
			l.retries = append(l.retries, e)
		} else {
			l.fresh = append(l.fresh, e)
		}
	}
}

// finish makes the queues.
func (ld *loader) finish() {
	x := ld.index
	for name, l := range ld.lanes {
		to := x.lane(name)
		to.fresh.fill(l.fresh)
		to.retries.fill(l.retries)
		x.waiting += to.waiting()
		delete(ld.lanes, name)
	}
	fill := func(to *listed, all []entry) {
		for i := range all {
			to.bytes += all[i].bytes()
		}
		to.fill(all)
	}
	fill(&x.dead, ld.dead)
	fill(&x.history, ld.history)
	slices.Reverse(ld.keys)
	byTime := func(i, j int) bool { return ld.keys[i].at < ld.keys[j].at }
	if !sort.SliceIsSorted(ld.keys, byTime) {
		sort.SliceStable(ld.keys, byTime)
	}
	for i, k := range ld.keys {
		x.seen.Restore(k.key, timeOf(k.at), len(ld.keys)-i)
	}
	for _, g := range ld.index.segs {
		g.turn = x.seen.Turns()
	}
	for i := range x.keys {
		x.keys[i].turn = x.seen.Turns()
	}
}

// A seqSet is a set of sequence numbers, most of which are close to others.
type seqSet map[uint64]*[1 << 6]uint64

func (s seqSet) has(seq uint64) bool {
	block := s[seq>>12]
	return block != nil && block[seq>>6&63]&(1<<(seq&63)) != 0
}

// add adds seq, and reports whether it was not there.
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
