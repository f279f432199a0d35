package memqueue

import (
	"time"

	"github.com/hookferry/analytics/webhook/store"
)

// The items of a lane that have one key, and wait, are a list in the order of their Seq. Its first
// item is in a queue or claimed, and the others are behind it. lane.last has the last item of each
// key.

// follow puts an item, which is new, at the end of its key. It returns false if the item is behind
// another one.
func (it *item) follow() bool {
	key := it.record.Key
	if key == "" {
		return true
	}
	if it.ahead = it.lane.last[key]; it.ahead != nil {
		it.ahead.behind, it.record.State = it, store.StateBehind
		it.record.Expires = time.Time{}
		it.lane.behind++
	} else if it.lane.last == nil {
		it.lane.last = make(map[string]*item)
	}
	it.lane.last[key] = it
	return it.ahead == nil
}

// part takes an item out of its key. It releases the next item if this one was the first, and
// returns when that is due. Otherwise it returns zero.
func (it *item) part() time.Time {
	key, next := it.record.Key, it.behind
	switch {
	case key == "":
		return time.Time{}
	case next != nil:
		next.ahead = it.ahead
	case it.ahead != nil:
		it.lane.last[key] = it.ahead
	default:
		delete(it.lane.last, key)
	}
	if it.ahead != nil {
		it.ahead.behind = next
		it.lane.behind--
		next = nil
	}
	it.ahead, it.behind = nil, nil
	if next == nil {
		return time.Time{}
	}
	return next.release(it.record.Reason)
}

// release makes an item, which was behind another one, the first of its key. It returns when the item
// is due. The argument is the reason why the other one was buried, if it was.
func (it *item) release(reason store.Reason) time.Time {
	it.lane.behind--
	it.record.State = store.StateWaiting
	if now := now(); !reason.Lapsed() && it.record.Due.Before(now) {
		it.record.Due = now
	}
	it.queue().push(it)
	return it.record.Due
}

// replace puts a copy of the item it, which is the first of its key, in its place there.
func (it *item) replace(by *item) {
	switch {
	case it.record.Key == "":
	case it.behind != nil:
		it.behind.ahead = by
	default:
		it.lane.last[it.record.Key] = by
	}
}
