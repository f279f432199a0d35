package natsqueue

import (
	"strings"
	"time"
)

// A series has the entries of a lane whose deliveries have one key. Only its first one is in a queue of
// the lane, or claimed. The order is that of Seq, not that of the messages, because each retry and each
// move stores a delivery anew at the end of the log.
type series struct {
	key    string
	len    int    // of all entries, those included that judge has not looked at yet
	first  *entry // nil while there is none that judge has looked at
	behind queue  // those whose turn has not come
}

// join puts e, a new entry, in the series of a key. The index is locked.
func (l *lane) join(e *entry, key string) {
	if key == "" {
		return
	}
	x := l.series[key]
	if x == nil {
		x = &series{key: strings.Clone(key)}
		if l.series == nil {
			l.series = make(map[string]*series)
		}
		l.series[x.key] = x
	}
	x.len++
	e.series = x
}

// follow queues e, which is no duplicate, unless it is behind another entry. The index is locked.
func (l *lane) follow(e *entry) {
	if x := e.series; x != nil {
		switch first := x.first; {
		case first == nil:
			x.first = e
		case first.seq < e.seq:
			l.putBehind(e)
			return
		default: // e was stored anew before this node took the partition
			l.leave(first)
			l.putBehind(first)
			x.first = e
		}
	}
	l.push(e)
}

// putBehind puts e behind the first entry of its series. The index is locked.
func (l *lane) putBehind(e *entry) {
	e.behind = true
	l.behind++
	l.push(e)
}

// part takes e, which has ended, out of its series. If e was the first one, part releases the next, and
// returns when that is due. Otherwise it returns zero. If e has lapsed, the next has its own due. The
// index is locked.
func (l *lane) part(e *entry, lapsed bool) time.Time {
	x := e.series
	if x == nil {
		return time.Time{}
	}
	if x.len--; x.len == 0 {
		delete(l.series, x.key)
	}
	if x.first != e {
		return time.Time{}
	}
	if x.first = nil; len(x.behind) == 0 {
		return time.Time{}
	}
	next := x.behind[0]
	l.leave(next)
	x.first = next
	if !lapsed {
		next.due = max(next.due, now().UnixMicro())
	}
	if next.delivery != nil {
		next.delivery.Due = next.at()
	}
	l.push(next)
	return next.at()
}
