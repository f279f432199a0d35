package feed

import (
	"math"
	"slices"
	"strings"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
)

// A Reader reads the events of a Feed as they happen. A slow one delays nothing: it skips events that
// the Feed has dropped. Only one goroutine at a time may use it.
type Reader struct {
	feed    *Feed
	filter  Filter
	next    uint64 // the Seq of the next event to read
	leftOut int64  // the result of the method left when events were read last
}

// Now is greater than every Seq: Follow(filter, Now) reads only new events.
const Now = math.MaxUint64

// Follow returns a Reader of the events that filter selects. It begins with the first kept event
// whose Seq is greater than after. If after is greater than every Seq, as the Seq of another
// process may be, it begins with the next event.
func (f *Feed) Follow(filter Filter, after uint64) *Reader {
	f.mu.Lock()
	defer f.mu.Unlock()
	filter.Query = strings.ToLower(filter.Query)
	r := &Reader{feed: f, filter: filter, next: min(after, f.seq) + 1}
	r.leftOut = r.left()
	return r
}

// left returns how many events of the filter's destination were left out. The caller holds Feed.mu.
func (r *Reader) left() int64 {
	if c := r.feed.lookUp(r.filter.Destination); c != nil {
		return c.leftOut
	}
	return 0
}

// maxNext is how many events Next returns at most.
const maxNext = 256

// Next returns the next events, oldest first, perhaps none. skipped is how many were left out since
// the last call, including events that the filter would not have selected.
func (r *Reader) Next() (events []api.Event, skipped int64) {
	f := r.feed
	f.mu.Lock()
	left := r.left()
	// The difference is negative if the counts of the destination were removed meanwhile.
	skipped = max(left-r.leftOut, 0)
	r.leftOut = left
	first := f.seq + 1 - uint64(len(f.events))
	if r.next < first {
		skipped += int64(first - r.next)
		r.next = first
	}
	unread := slices.Clone(f.events[r.next-first:])
	f.mu.Unlock()
	for _, e := range unread {
		if len(events) == maxNext {
			break
		}
		r.next = e.Seq + 1
		if r.filter.match(e) {
			events = append(events, e.Event)
		}
	}
	return events, skipped
}
