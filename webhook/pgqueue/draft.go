package pgqueue

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/hookferry/analytics/webhook/store"
)

// An entry is a delivery to be stored. It shares no memory with the caller.
type entry struct {
	key           store.Key
	order         pgtype.UUID // of its Key; see orderOf
	queue         queueKey
	due, accepted int64
	seq           int64 // of a retry; 0: it gets a new number
	record        []byte
	reason        store.Reason  // why the last attempt failed
	dedup         bool          // the delivery is left out if its key is known; otherwise the key is remembered
	known         bool          // the key was known, or that of an earlier entry
	keep          bool          // the caller wants to claim it
	claim         uint64        // the caller's claim
	behind        bool          // it is stored, behind another one with its Key
	kept          *store.Record // if the entry goes to the history
}

// newEntries returns the entries of ps, without the Seq that a caller has set.
func newEntries(ps []store.Put) (all []*entry, err error) {
	for i := range ps {
		p := &ps[i]
		if p.Seq != 0 {
			unnumbered := *p
			unnumbered.Seq = 0
			p = &unnumbered
		}
		e, err := newEntry(p)
		if err != nil {
			return nil, fmt.Errorf("delivery %d: %w", i, err)
		}
		all = append(all, e)
	}
	return all, nil
}

// newEntry returns the entry of p, or the error of p.Check.
func newEntry(p *store.Put) (*entry, error) {
	if err := p.Check(); err != nil {
		return nil, err
	}
	record, err := p.AppendBinary(make([]byte, 0, len(p.Body)+256))
	e := &entry{
		queue: queueKey{p.Destination, !p.Expires.IsZero()}, due: p.Due.UnixMicro(), accepted: p.Accepted.UnixMicro(), seq: int64(p.Seq),
		record: record, dedup: !p.NoDedup, keep: p.Keep, order: orderOf(&p.Delivery),
	}
	if e.dedup {
		e.key = store.KeyOf(p.Destination, p.ID)
	}
	if n := len(p.Attempts); n > 0 {
		e.reason = p.Attempts[n-1].Reason
	}
	return e, err
}

// orderOf returns a value that is the same for all deliveries of a destination with the same Key.
// It is not valid for a delivery without a Key.
func orderOf(d *store.Delivery) pgtype.UUID {
	if d.Key == "" {
		return pgtype.UUID{}
	}
	return pgtype.UUID{Bytes: store.KeyOf(d.Destination, d.Key), Valid: true}
}

// A draft is a chunk that is about to be stored.
type draft struct {
	queue       queueKey
	order       pgtype.UUID // of the only entry; not valid if the entries have no Key
	due         int64       // of the first entry
	first, last int64       // the least and the greatest seq of the entries
	accepted    int64       // the earliest one of the entries
	data        []byte
	entries     []*entry
	mine        bool // this node claims the chunk when it stores it
}

// maxSpan bounds how far the numbers of the deliveries in a row are apart. So a list finds all rows with
// numbers on both sides of its cursor by their last numbers.
const maxSpan = 1 << 22

// fits reports whether an entry with this number may be in the same chunk.
func (d *draft) fits(seq int64) bool { return max(d.last, seq)-min(d.first, seq) < maxSpan }

// keep reports whether the caller wants to claim any of the entries.
func (d *draft) keep() bool {
	return slices.ContainsFunc(d.entries, func(e *entry) bool { return e.keep })
}

// add adds an entry.
func (d *draft) add(e *entry) {
	d.first, d.last, d.accepted = min(d.first, e.seq), max(d.last, e.seq), min(d.accepted, e.accepted)
	d.data = append(binary.AppendUvarint(d.data, uint64(len(e.record))), e.record...)
	d.entries = append(d.entries, e)
}

// numbers returns the value of the column, empty for a chunk whose numbers are consecutive.
func (d *draft) numbers() string {
	if d.first == d.last {
		return ""
	}
	return array(d.entries, func(e *entry) int64 { return e.seq - d.first })
}

// array returns an array of integers for SQL.
func array[T any](of []T, number func(T) int64) string {
	b := []byte{'{'}
	for i, v := range of {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, number(v), 10)
	}
	return string(append(b, '}'))
}

// draftsOf groups entries into chunks. It leaves out an entry that repeats an earlier one. Entries with a
// Key come first, in their order, each in a chunk of its own. The due times of another chunk differ
// little, because the node that claims it keeps all its deliveries in memory until they are due.
func draftsOf(all []*entry) (drafts []*draft) {
	now := time.Now().UnixMicro()
	seen := make(map[store.Key]bool)
	all = slices.DeleteFunc(all, func(e *entry) bool {
		if e.known = e.dedup && seen[e.key]; e.dedup {
			seen[e.key] = true
		}
		return e.known
	})
	slices.SortStableFunc(all, func(x, y *entry) int {
		switch {
		case !x.order.Valid && !y.order.Valid:
			return cmp.Compare(x.due, y.due)
		case !y.order.Valid:
			return -1
		case !x.order.Valid:
			return 1
		}
		return 0
	})
	open := make(map[queueKey]*draft) // the last draft of each queue
	for _, e := range all {
		d := open[e.queue]
		if d == nil || e.order.Valid || d.order.Valid || len(d.entries) == chunkItems || len(d.data)+len(e.record) > chunkBytes ||
			e.due-d.due > max(time.Second.Microseconds(), (d.due-now)/32) || !d.fits(e.seq) {
			d = &draft{queue: e.queue, order: e.order, due: e.due, first: e.seq, last: e.seq, accepted: e.accepted}
			open[e.queue] = d
			drafts = append(drafts, d)
		}
		d.add(e)
	}
	return drafts
}
