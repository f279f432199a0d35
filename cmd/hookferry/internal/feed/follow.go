package feed

import (
	"context"
	"errors"
	"math"
	"strings"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
)

// ErrReaders is returned by Follow if there are too many readers.
var ErrReaders = errors.New("feed: too many readers")

// A Reader reads the events of a Feed as they happen. A slow reader delays nothing: it skips events
// that the Feed has dropped meanwhile. Only one goroutine at a time may use a Reader.
type Reader struct {
	feed    *Feed
	filter  Filter
	next    uint64        // the Seq of the next event to read
	leftOut int64         // the result of the method left when the last chunk was read
	news    chan struct{} // has one value if there may be new events
	chunk   []*event
}

// readChunk is how many events read takes at once.
const readChunk = 256

// Now is greater than every Seq: Follow(filter, Now) reads only new events.
const Now = math.MaxUint64

// Follow returns a Reader of the events that filter selects. The Reader begins with the first kept
// event whose Seq is greater than the argument after. If after is greater than every Seq, for
// example because it comes from another process, the Reader begins with the next event. The caller
// closes the Reader. The error is ErrReaders.
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

// Close ends the Reader.
func (r *Reader) Close() {
	r.feed.mu.Lock()
	defer r.feed.mu.Unlock()
	delete(r.feed.readers, r)
}

// left returns how many events the budget has left out so far: events of the destination in the
// filter, or of all destinations if the filter has none. The caller holds Feed.mu.
func (r *Reader) left() int64 {
	if c := r.feed.lookUp(r.filter.Destination); c != nil {
		return c.leftOut
	}
	return 0
}

// Next waits for events and returns them, oldest first. The result skipped is how many events were
// left out, including events that the filter would not have selected. The error is that of ctx.
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

// read reads the next events into r.chunk. skipped is how many were left out.
func (r *Reader) read() (more bool, skipped int64) {
	f := r.feed
	f.mu.Lock()
	defer f.mu.Unlock()
	left := r.left()
	// The difference is negative if the counts of the destination were removed meanwhile.
	skipped = max(left-r.leftOut, 0)
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
