package filestore_test

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
)

// A chaosEntry is what is known of one message.
type chaosEntry struct {
	of          uint8 // the forwarder it was given to
	destination uint8 // index in chaosMix
	flags       chaosFlag
	arrivals    uint8  // taken so often
	launch      uint16 // that sent it last
	failed      uint16 // launch that said last that an attempt failed
	done        uint16 // launch that said it was done
}

type chaosFlag uint8

const (
	chaosAccepted  chaosFlag = 1 << iota // Forward returned nil
	chaosAnswered                        // 2xx was said, or was about to be
	chaosLost                            // when it last arrived, the answer was spoiled
	chaosDiscarded                       // discarding its dead letter was asked for
)

// A chaosLedger keeps the accounts of TestChaos. Its entries are numbered from 0,
// and the numbers are the ids.
type chaosLedger struct {
	mu       sync.Mutex
	entries  []chaosEntry
	problems []string
	// Messages that arrived again, by why that may be.
	lost, late, pair int
	killed           [2]map[int]int // by forwarder and launch
	suspects         [2][]uint32    // arrived again from one launch, which may yet say why
}

func newChaosLedger() *chaosLedger {
	return &chaosLedger{killed: [2]map[int]int{{}, {}}}
}

func (l *chaosLedger) problem(format string, args ...any) {
	if len(l.problems) < 50 {
		l.problems = append(l.problems, fmt.Sprintf(format, args...))
	}
}

// open makes n entries and returns their ids.
func (l *chaosLedger) open(of, destination, n int) (ids []uint32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for range n {
		ids = append(ids, uint32(len(l.entries)))
		l.entries = append(l.entries, chaosEntry{of: uint8(of), destination: uint8(destination)})
	}
	return ids
}

func (l *chaosLedger) made() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.entries)
}

func (l *chaosLedger) set(ids []uint32, flag chaosFlag) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, id := range ids {
		l.entries[id].flags |= flag
	}
}

// arrived notes that a receiver takes a message; well says that the answer
// will say so.
func (l *chaosLedger) arrived(id uint32, launch int, well bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if int(id) >= len(l.entries) {
		l.problem("message %d arrived and was never made", id)
		return
	}
	e := &l.entries[id]
	name := chaosMix[e.destination]
	switch {
	case e.done != 0 && launch > int(e.done):
		l.problem("message %d for %s was done in launch %d, and arrived again from launch %d", id, name, e.done, launch)
	case e.arrivals == 0:
	case name == "pair":
		l.pair++ // both endpoints may take it
	case e.flags&chaosLost != 0:
		l.lost++
	case int(e.launch) != launch:
		l.killed[e.of][min(int(e.launch), launch)]++
	default:
		l.suspects[e.of] = append(l.suspects[e.of], id)
	}
	e.arrivals = min(e.arrivals+1, 255)
	e.launch = uint16(launch)
	e.flags &^= chaosLost
	if well {
		e.flags |= chaosAnswered
	} else {
		e.flags |= chaosLost
	}
}

// hear notes what a process printed.
func (l *chaosLedger) hear(launch int, line string) {
	what, rest, _ := strings.Cut(line, " ")
	text, reason, _ := strings.Cut(rest, " ")
	id, err := strconv.ParseUint(text, 10, 32)
	if err != nil || reason == "" {
		return // cut off by a kill
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch what {
	case "f":
		l.entries[id].failed = uint16(launch)
	case "d":
		l.entries[id].done = uint16(launch)
	}
}

// ended judges what arrived again from a launch that has ended, all of whose
// lines have been heard. It must have said that an attempt failed: on a machine
// that is busy, a good answer may come too late.
func (l *chaosLedger) ended(of, launch int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, id := range l.suspects[of] {
		if e := &l.entries[id]; int(e.failed) == launch {
			l.late++
		} else {
			l.problem("message %d for %s arrived again from launch %d, which has not failed to deliver it", id, chaosMix[e.destination], launch)
		}
	}
	l.suspects[of] = nil
}

// A chaosCensus is what a store holds.
type chaosCensus struct{ waiting, dead map[uint32]bool }

// A chaosSum is what has become of the messages of a forwarder.
type chaosSum struct{ accepted, unknown, delivered, discarded, dead, waiting, lost int }

// sum compares the accounts with what the store holds, which nobody has open.
func (l *chaosLedger) sum(of int, c chaosCensus) (s chaosSum) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for id := range c.waiting {
		if c.dead[id] {
			l.problem("message %d waits and is dead", id)
		}
	}
	for _, held := range []map[uint32]bool{c.waiting, c.dead} {
		for id := range held {
			if int(id) >= len(l.entries) || int(l.entries[id].of) != of {
				l.problem("the store holds message %d, which it was never given", id)
			}
		}
	}
	for i := range l.entries {
		e, id := &l.entries[i], uint32(i)
		if int(e.of) != of {
			continue
		}
		waiting, dead := c.waiting[id], c.dead[id]
		if e.done != 0 && (waiting || dead) {
			l.problem("message %d for %s was done in launch %d, and is in the store", id, chaosMix[e.destination], e.done)
		}
		there := waiting || dead || e.flags&(chaosAnswered|chaosDiscarded) != 0
		switch {
		case e.flags&chaosAccepted != 0:
			s.accepted++
		case there:
			s.unknown++ // taken, and the answer was lost to a kill
		default:
			continue
		}
		switch {
		case waiting:
			s.waiting++
		case dead:
			s.dead++
		case e.flags&chaosAnswered != 0:
			s.delivered++
		case e.flags&chaosDiscarded != 0:
			s.discarded++
		default:
			s.lost++
			l.problem("message %d for %s was accepted, and is neither delivered nor dead nor waiting", id, chaosMix[e.destination])
		}
	}
	return s
}

// kept counts the accepted messages for a destination of a forwarder.
func (l *chaosLedger) kept(of int, name string) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range l.entries {
		if e := &l.entries[i]; int(e.of) == of && e.flags&chaosAccepted != 0 && chaosMix[e.destination] == name {
			n++
		}
	}
	return n
}
