package feed

import (
	"context"
	"errors"
	"math"
	"strings"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
)

// ErrReaders says that there are too many readers.
var ErrReaders = errors.New("feed: too many readers")

// A Reader reads the events that the Feed keeps, as they come. A slow reader delays nobody: it skips
// the events that the Feed has dropped before they were read. It is used by one goroutine at a time.
type Reader struct {
	feed    *Feed
	filter  Filter
	next    uint64        // the Seq to read next
	leftOut int64         // the result of left at the last read
	news    chan struct{} // has a value, of one, if there may be a new event
	chunk   []*event
}

// readChunk is how many events are looked at in one go.
const readChunk = 256

// Now is greater than every Seq: Follow(filter, Now) reads only new events.
const Now = math.MaxUint64

// Follow returns a Reader of the events that filter selects, from the first one that is kept and has
// a greater Seq than after. If after is greater than the latest Seq, such as one of another process,
// the Reader begins with the next event. The caller closes it. The error is ErrReaders if there are
// too many readers.
func (f *Feed) Follow(filter Filter, after uint64) (*Reader, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.readers) >= f.bounds.readers {
		return nil, ErrReaders
	}
	filter.Query = strings.ToLower(filter.Query)
	r := &Reader{feed: f, filter: filter, next: min(after, f.seq) + 1, news: make(chan struct{}, 1)}
	r.leftOut = r.left()
	f.readers[r] = struct{}{}
	return r, nil
}

// Close ends the reading.
func (r *Reader) Close() {
	r.feed.mu.Lock()
	defer r.feed.mu.Unlock()
	delete(r.feed.readers, r)
}

// left returns how many events the budget has left out so far: of the destination that the filter
// selects, or of all. It is 0 for a destination without counts. The caller holds Feed.mu.
func (r *Reader) left() int64 {
	if c := r.feed.lookUp(r.filter.Destination); c != nil {
		return c.leftOut
	}
	return 0
}

// Next waits for events and returns them, oldest first. It also returns how many events were left
// out, whether or not the filter would have selected them. The error is that of ctx.
func (r *Reader) Next(ctx context.Context) (events []api.Event, skipped int64, err error) {
	for {
		more, n := r.read()
		skipped += n
		for _, e := range r.chunk {
			if r.filter.match(e) {
				events = append(events, e.Event)
			}
		}
		clear(r.chunk)
		if len(events) > 0 || skipped > 0 {
			return events, skipped, nil
		}
		if more {
			continue
		}
		select {
		case <-r.news:
		case <-ctx.Done():
			return nil, 0, ctx.Err()
		}
	}
}

// read reads the next chunk. It reports whether there is more, and how many events were left out.
func (r *Reader) read() (more bool, skipped int64) {
	f := r.feed
	f.mu.Lock()
	defer f.mu.Unlock()
	left := r.left()
	skipped = max(left-r.leftOut, 0) // below 0 after the destination's counts were forgotten
	r.leftOut = left
	first := f.seq + 1 - uint64(len(f.events))
	if r.next < first {
		skipped += int64(first - r.next)
		r.next = first
	}
	unread := f.events[r.next-first:]
	r.chunk = append(r.chunk[:0], unread[:min(len(unread), readChunk)]...)
	r.next += uint64(len(r.chunk))
	return r.next <= f.seq, skipped
}
