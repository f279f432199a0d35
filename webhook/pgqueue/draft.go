package pgqueue

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"github.com/hookferry/analytics/webhook/store"
)

// An entry is a delivery to be stored. It shares no memory with the caller.
type entry struct {
	key    store.Key
	queue  queueKey
	due    int64
	record []byte
	reason store.Reason // why the last attempt failed
	dedup  bool         // the delivery is left out if its key is known; otherwise the key is remembered
	known  bool         // the key was known, or that of an earlier entry
	keep   bool         // the caller wants to claim it
	claim  uint64       // the caller's claim
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
	e := &entry{queue: queueKey{p.Destination, !p.Expires.IsZero()}, due: p.Due.UnixMicro(), record: record, dedup: !p.NoDedup, keep: p.Keep}
	if e.dedup {
		e.key = store.KeyOf(p.Destination, p.ID)
	}
	if n := len(p.Attempts); n > 0 {
		e.reason = p.Attempts[n-1].Reason
	}
	return e, err
}

// A draft is a chunk that is about to be stored.
type draft struct {
	queue   queueKey
	due     int64 // of the first entry
	data    []byte
	entries []*entry
	mine    bool // this node claims the chunk when it stores it
}

// draftsOf groups entries into chunks. It leaves out an entry that repeats an earlier one. The due times
// of a chunk differ little, because the node that claims it keeps all its deliveries in memory until they
// are due.
func draftsOf(all []*entry) (drafts []*draft) {
	now := time.Now().UnixMicro()
	seen := make(map[store.Key]bool)
	all = slices.DeleteFunc(all, func(e *entry) bool {
		if e.known = e.dedup && seen[e.key]; e.dedup {
			seen[e.key] = true
		}
		return e.known
	})
	slices.SortStableFunc(all, func(x, y *entry) int { return cmp.Compare(x.due, y.due) })
	open := make(map[queueKey]*draft) // the last draft of each queue
	for _, e := range all {
		d := open[e.queue]
		if d == nil || len(d.entries) == chunkItems || len(d.data)+len(e.record) > chunkBytes ||
			e.due-d.due > max(time.Second.Microseconds(), (d.due-now)/32) {
			d = &draft{queue: e.queue, due: e.due}
			open[e.queue] = d
			drafts = append(drafts, d)
		}
		d.data = append(binary.AppendUvarint(d.data, uint64(len(e.record))), e.record...)
		d.entries = append(d.entries, e)
	}
	return drafts
}
