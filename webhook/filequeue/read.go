package filequeue

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"log/slog"
	"slices"
	"sync"

	"github.com/hookferry/analytics/webhook/store"
)

// errDamaged says that the disk returned bytes, but that they are no valid record.
var errDamaged = errors.New("damaged")

// bytes reads n bytes of a segment. It uses the memory of b if b is long enough.
func (g *segment) bytes(off, n int64, b []byte) ([]byte, error) {
	if int64(len(b)) < n {
		b = make([]byte, n)
	}
	_, err := g.file.ReadAt(b[:n], off)
	if errors.Is(err, io.EOF) {
		err = errDamaged
	}
	if err != nil {
		return nil, fmt.Errorf("segment %d, offset %d: %w", g.number, off, err)
	}
	return b[:n], nil
}

// decode decodes the record at a place, which begins with the bytes b. It checks that the record has
// the sequence number seq. If the error is errDamaged, r has the bytes that can be read.
func (g *segment) decode(at place, seq uint64, b []byte) (r record, err error) {
	h, ok := decodeHeader(b, g.salt, int64(at.off))
	r = record{header: h, place: at, payload: b[recordHeader:]}
	if ok = ok && h.seq == seq && int(h.length) <= len(r.payload); ok {
		r.payload = r.payload[:h.length]
		ok = crc32.Checksum(r.payload, castagnoli) == h.sum
	}
	if !ok {
		err = fmt.Errorf("segment %d, offset %d: %w", g.number, at.off, errDamaged)
	}
	return r, err
}

// A pinned is an entry that can be read without holding index.mu: its files stay open until load
// has read it.
type pinned struct {
	entry
	put, state *segment // state is nil if there is no state record
	i          int      // the argument of pin, for the caller of load
}

// pin returns an entry with its segments pinned.
func (s segments) pin(e entry, i int) pinned {
	p := pinned{entry: e, put: s[e.put.seg], i: i}
	p.put.pins.Add(1)
	if e.units > 0 {
		p.state = s[e.state.seg]
		p.state.pins.Add(1)
	}
	return p
}

func (p *pinned) unpin() {
	p.put.unpin()
	if p.state != nil {
		p.state.unpin()
	}
}

// span returns the offset of the whole record, and the offset behind it.
func (p *pinned) span() (from, to int64) {
	from = int64(p.entry.put.off)
	return from, from + recordHeader + int64(p.length)
}

// maxAhead bounds the bytes that load reads at once, unless a single record is longer. maxApart
// bounds the bytes between two records that it reads at once.
const (
	maxAhead = 64 << 10
	maxApart = 4 << 10
)

// buffers pools the memory that load reads records into.
var buffers = sync.Pool{New: func() any { b := make([]byte, maxAhead); return &b }}

// A reader reads deliveries, and logs which of them it cannot read.
type reader struct {
	index  *index
	logger *slog.Logger

	mu   sync.Mutex      // guards told
	told map[uint64]bool // sequence numbers of the deliveries that complain has logged
}

// load reads deliveries in the order of the files, and unpins them. It calls f for each, with the
// header of its whole record. f must not keep the pointers. If the error is errDamaged, d has the
// parts that could be read. load sorts ps, and reads records that are close to each other at once,
// which takes much less processor time than a read for each.
func (r *reader) load(ps []pinned, f func(p *pinned, h *header, d *store.Ended, err error)) {
	slices.SortFunc(ps, func(a, b pinned) int {
		return cmp.Or(cmp.Compare(a.entry.put.seg, b.entry.put.seg), cmp.Compare(a.entry.put.off, b.entry.put.off))
	})
	buffer := buffers.Get().(*[]byte)
	defer buffers.Put(buffer)
	var one struct { // on the heap, and used for all deliveries
		h header
		d store.Ended
	}
	for n := 1; len(ps) > 0; ps, n = ps[n:], 1 {
		first, end := ps[0].span()
		for ; n < len(ps) && ps[n].put == ps[0].put; n++ {
			from, to := ps[n].span()
			if from-end > maxApart || to-first > maxAhead {
				break
			}
			end = to
		}
		b, err := ps[0].put.bytes(first, end-first, *buffer)
		if err != nil && n > 1 { // perhaps only one of them cannot be read
			for i := range n {
				r.load(ps[i:i+1], f)
			}
			continue
		}
		for i := range ps[:n] {
			p := &ps[i]
			one.h, one.d = header{}, store.Ended{}
			lerr := err
			if err == nil {
				from, to := p.span()
				one.h, lerr = r.decode(p, b[from-first:to-first], &one.d)
			}
			p.unpin()
			f(p, &one.h, &one.d, lerr)
		}
	}
}

// decode reads a delivery into d. b has the bytes of its whole record, whose header decode returns.
// If only the state record is damaged, decode logs that, and d is the delivery as it was put, with
// the due time or the time of death of its state. Only the state said when the retry window ends.
// The window may be over, so it ends with the due time.
func (r *reader) decode(p *pinned, b []byte, d *store.Ended) (h header, err error) {
	rec, err := p.put.decode(p.entry.put, p.seq, b)
	h = rec.header
	if derr := rec.readDelivery(d); err == nil && derr != nil {
		err = fmt.Errorf("segment %d, offset %d: %w: %w", p.put.number, p.entry.put.off, errDamaged, derr)
	}
	if err != nil || p.state == nil {
		return h, err
	}
	if b, err = p.state.bytes(int64(p.entry.state.off), 8*int64(p.units), nil); err == nil {
		if rec, err = p.state.decode(p.entry.state, p.seq, b); err == nil {
			if err = rec.readDelivery(d); err != nil {
				err = fmt.Errorf("segment %d, offset %d: %w", p.state.number, p.entry.state.off, errDamaged)
			}
		}
	}
	if errors.Is(err, errDamaged) {
		r.complain("the attempts of a delivery cannot be read; a waiting delivery is attempted at most once more", p.seq, d, err)
		d.Due, d.Expires, d.At = p.dueAt(), p.dueAt(), p.dueAt()
		err = nil
	}
	return h, err
}

// lose removes a delivery that cannot be read. It logs that, unless the delivery is no longer where
// one of the transitions expects it. d has the parts of the delivery that could be read.
func (s *Store) lose(d *store.Ended, seq uint64, cause error, ts ...transition) {
	for i := range ts {
		ts[i].kind, ts[i].lost = kindGone, true
	}
	if n, err := s.transit(context.Background(), ts); n > 0 || err != nil {
		s.complain("a delivery, or a dead letter, cannot be read and is lost", seq, d, cause)
	}
}

// Lost returns how many deliveries and dead letters were lost because they could not be read, since
// the folder was created. No other count includes them.
func (s *Store) Lost() int {
	s.index.mu.Lock()
	defer s.index.mu.Unlock()
	return s.index.losses
}

// maxTold bounds reader.told. Once that is full, complain logs further deliveries each time they are
// read.
const maxTold = 1000

// complain logs that a delivery cannot be read, once for each delivery. d has the parts that could
// be read.
func (r *reader) complain(what string, seq uint64, d *store.Ended, err error) {
	r.mu.Lock()
	told := r.told[seq]
	if len(r.told) < maxTold {
		r.told[seq] = true
	}
	r.mu.Unlock()
	if told {
		return
	}
	args := []any{"error", err}
	if id := cmp.Or(d.MessageID, d.ID); id != "" {
		args = append(args, "messageId", id, "destination", d.Destination)
	}
	r.logger.Error("filequeue: "+what, args...)
}
