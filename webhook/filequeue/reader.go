package filequeue

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"sync"

	"github.com/hookferry/analytics/webhook/store"
)

// errDamaged says that the disk returned bytes, but that they are no valid record.
var errDamaged = errors.New("damaged")

// A pinned is an entry that can be read without holding index.mu: its files stay open until load
// has read it.
type pinned struct {
	entry      entry
	put, state *segment // state is nil if there is no state record
	i          int      // the argument of pin, for the caller of load
	text       []byte   // load leaves the delivery out, without decoding it, if its bytes do not have this text
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
	return from, from + recordHeader + int64(p.entry.length)
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

// load reads deliveries in the order of the files, and unpins them. It calls f for each, with its
// whole record. f must not keep the pointers. If the error is errDamaged, d has the
// parts that could be read. load sorts ps, and reads records that are close to each other at once,
// which takes much less processor time than a read for each.
func (r *reader) load(ps []pinned, f func(p *pinned, whole *record, d *store.Record, err error)) {
	slices.SortFunc(ps, func(a, b pinned) int {
		return cmp.Or(cmp.Compare(a.entry.put.seg, b.entry.put.seg), cmp.Compare(a.entry.put.off, b.entry.put.off))
	})
	buffer := buffers.Get().(*[]byte)
	defer buffers.Put(buffer)
	var one struct { // on the heap, and used for all deliveries
		whole record
		d     store.Record
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
			one.whole, one.d = record{}, store.Record{}
			lerr := err
			if err == nil {
				from, to := p.span()
				raw := b[from-first : to-first]
				if !bytes.Contains(raw, p.text) {
					p.unpin()
					continue
				}
				one.whole, lerr = r.decode(p, raw, &one.d)
			}
			p.unpin()
			f(p, &one.whole, &one.d, lerr)
		}
	}
}

// decode reads a delivery into d. b has the bytes of its whole record, which decode returns. If
// only the state record is damaged, decode logs that, and d is the delivery as it was put, with the
// due time or the time of death of its state. The end of the retry window was only in the state
// record. The window may be over, so decode lets it end with the due time.
func (r *reader) decode(p *pinned, b []byte, d *store.Record) (whole record, err error) {
	whole, err = p.put.decode(p.entry.put, p.entry.seq, b)
	if derr := whole.readDelivery(d); err == nil && derr != nil {
		err = fmt.Errorf("segment %d, offset %d: %w: %w", p.put.id.number, p.entry.put.off, errDamaged, derr)
	}
	if d.Seq = p.entry.seq; err != nil || p.state == nil {
		return whole, err
	}
	if b, err = p.state.bytes(int64(p.entry.state.off), 8*int64(p.entry.units), nil); err == nil {
		var rec record
		if rec, err = p.state.decode(p.entry.state, p.entry.seq, b); err == nil {
			if err = rec.readDelivery(d); err != nil {
				err = fmt.Errorf("segment %d, offset %d: %w", p.state.id.number, p.entry.state.off, errDamaged)
			}
		}
	}
	if errors.Is(err, errDamaged) {
		r.complain("the attempts of a delivery cannot be read; a waiting delivery is attempted at most once more", p.entry.seq, d, err)
		d.Due, d.Expires, d.At = p.entry.dueAt(), p.entry.dueAt(), p.entry.dueAt()
		err = nil
	}
	return whole, err
}

// skip complains of a damaged part of a table of the history.
func (r *reader) skip(err error) {
	r.complain("a part of the history cannot be read, and is missing from lists", math.MaxUint64, &store.Record{}, err)
}

// maxTold bounds reader.told. Once that is full, complain logs further deliveries each time they are
// read.
const maxTold = 1000

// complain logs that a delivery cannot be read, once for each delivery. d has the parts that could
// be read.
func (r *reader) complain(what string, seq uint64, d *store.Record, err error) {
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

// copyAll makes the copies of moves, about maxMove bytes at a time, and passes the moves to commit. If
// g is not nil, a copy is whole only if g has the whole record. lost gets each damaged delivery.
func (r *reader) copyAll(moves []move, g *segment, lost func(*move, *store.Record, error), commit func([]move) error) error {
	for n, size := 0, int64(0); len(moves) > 0; moves, n, size = moves[n:], 0, 0 {
		for ; n < len(moves) && size < maxMove; n++ {
			size += moves[n].entry.total()
		}
		some := moves[:n]
		var pins []pinned
		r.index.mu.Lock()
		claimed := r.index.claimed()
		for i := range some {
			if m := &some[i]; m.copy.payload == nil && r.index.locate(m, claimed) != nil {
				pins = append(pins, r.index.segs.pin(m.entry, i))
			}
		}
		r.index.mu.Unlock()
		var err error
		r.load(pins, func(p *pinned, old *record, d *store.Record, lerr error) {
			m := &some[p.i]
			if errors.Is(lerr, errDamaged) {
				lost(m, d, lerr)
				return
			}
			whole := g == nil || m.entry.put.seg == g.id.number
			if lerr == nil {
				k := m.from.kind
				if k == kindBehind {
					k = kindFresh
				}
				m.copy, lerr = deliveryRecord(nil, k, d, whole)
			}
			if lerr != nil {
				err = lerr
				return
			}
			m.copy.seq, m.copy.size = m.entry.seq, uint32(m.entry.bytes()) // the attempts may be missing
			if whole {
				m.copy.key, m.copy.stored = old.key, old.stored
			}
		})
		if err != nil {
			return fmt.Errorf("%w: %w", errUnread, err)
		}
		if err := commit(some); err != nil {
			return err
		}
		clear(some)
	}
	return nil
}
