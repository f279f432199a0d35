package feed

import (
	"context"
	"errors"
	"math"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
)

// ErrReaders says that there are too many readers.
var ErrReaders = errors.New("feed: too many readers")

// A Reader reads events as they come, from those that the Feed keeps. A reader that
// is slow, or does not read at all, delays nobody: it skips the events that were no
// longer kept when it came to read them. It is used by one goroutine at a time.
type Reader struct {
	feed    *Feed
	filter  Filter
	next    uint64        // the Seq to read next
	leftOut int64         // what left returned at the last read
	news    chan struct{} // capacity 1: there may be an event
	chunk   []*event
}

// readChunk is how many events are looked at in one go.
const readChunk = 256

// Now is after all events that there are.
const Now = math.MaxUint64

// Follow returns a Reader of the events that filter selects, of those that are
// kept from behind the one with the Seq after: from now on if that is beyond
// the latest, such as of another process. The caller closes it. It returns
// ErrReaders if there are too many.
func (f *Feed) Follow(filter Filter, after uint64) (*Reader, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.readers) >= f.bounds.readers {
		return nil, ErrReaders
	}
	r := &Reader{feed: f, filter: filter.ready(), next: min(after, f.seq) + 1, news: make(chan struct{}, 1)}
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

// left returns how many events the budget has left out so far: of the destination
// that the filter selects, or of all; 0 for one that has no counts. The caller holds
// Feed.mu.
func (r *Reader) left() int64 {
	if c := r.feed.lookUp(r.filter.Destination); c != nil {
		return c.leftOut
	}
	return 0
}

// Next waits for events and returns them, oldest first, and how many were left
// out, whether or not the filter would have selected them. The error is that of
// ctx.
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

// read reads the next chunk, and reports whether there is more, and what was
// left out.
func (r *Reader) read() (more bool, skipped int64) {
	f := r.feed
	f.mu.Lock()
	defer f.mu.Unlock()
	left := r.left()
	skipped = max(left-r.leftOut, 0) // below 0 after the destination's counts were forgotten
	r.leftOut = left
	first := f.seq + 1 - uint64(f.events.len())
	if r.next < first {
		skipped += int64(first - r.next)
		r.next = first
	}
	r.chunk = r.chunk[:0]
	for i := int(r.next - first); i < f.events.len() && len(r.chunk) < readChunk; i++ {
		r.chunk = append(r.chunk, f.events.at(i))
	}
	r.next += uint64(len(r.chunk))
	return r.next <= f.seq, skipped
}
