package boltqueue_test

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
)

// A soakEntry is what is known of one message.
type soakEntry struct {
	of          uint8 // the forwarder it was given to
	destination uint8 // index in soakMix
	flags       soakFlag
	arrivals    uint8  // taken so often
	launch      uint16 // that sent it last
	failed      uint16 // launch that said last that an attempt failed
	done        uint16 // launch that said it was done
}

type soakFlag uint8

const (
	soakAccepted  soakFlag = 1 << iota // Forward returned nil
	soakAnswered                       // 2xx was said, or was about to be
	soakLost                           // when it last arrived, the answer was spoiled
	soakDiscarded                      // discarding its dead letter was asked for
)

// A soakLedger keeps the accounts of TestSoak. Its entries are numbered from 0,
// and the numbers are the ids.
type soakLedger struct {
	mu       sync.Mutex
	entries  []soakEntry
	problems []string
	// Messages that arrived again, by why that may be.
	lost, late, pair int
	killed           [2]map[int]int // by forwarder and launch
	suspects         [2][]uint32    // arrived again from one launch, which may yet say why
}

func newSoakLedger() *soakLedger {
	return &soakLedger{killed: [2]map[int]int{{}, {}}}
}

func (l *soakLedger) problem(format string, args ...any) {
	if len(l.problems) < 50 {
		l.problems = append(l.problems, fmt.Sprintf(format, args...))
	}
}

// open makes n entries and returns their ids.
func (l *soakLedger) open(of, destination, n int) (ids []uint32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for range n {
		ids = append(ids, uint32(len(l.entries)))
		l.entries = append(l.entries, soakEntry{of: uint8(of), destination: uint8(destination)})
	}
	return ids
}

func (l *soakLedger) made() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.entries)
}

func (l *soakLedger) set(ids []uint32, flag soakFlag) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, id := range ids {
		l.entries[id].flags |= flag
	}
}

// arrived notes that a receiver takes a message; well says that the answer
// will say so.
func (l *soakLedger) arrived(id uint32, launch int, well bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if int(id) >= len(l.entries) {
		l.problem("message %d arrived and was never made", id)
		return
	}
	e := &l.entries[id]
	name := soakMix[e.destination]
	switch {
	case e.done != 0 && launch > int(e.done):
		l.problem("message %d for %s was done in launch %d, and arrived again from launch %d", id, name, e.done, launch)
	case e.arrivals == 0:
	case name == "pair":
		l.pair++ // both endpoints may take it
	case e.flags&soakLost != 0:
		l.lost++
	case int(e.launch) != launch:
		l.killed[e.of][min(int(e.launch), launch)]++
	default:
		l.suspects[e.of] = append(l.suspects[e.of], id)
	}
	e.arrivals = min(e.arrivals+1, 255)
	e.launch = uint16(launch)
	e.flags &^= soakLost
	if well {
		e.flags |= soakAnswered
	} else {
		e.flags |= soakLost
	}
}

// hear notes what a process printed.
func (l *soakLedger) hear(launch int, line string) {
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
func (l *soakLedger) ended(of, launch int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, id := range l.suspects[of] {
		if e := &l.entries[id]; int(e.failed) == launch {
			l.late++
		} else {
			l.problem("message %d for %s arrived again from launch %d, which has not failed to deliver it", id, soakMix[e.destination], launch)
		}
	}
	l.suspects[of] = nil
}

// A soakCensus is what a store holds.
type soakCensus struct{ waiting, dead map[uint32]bool }

// A soakSum is what has become of the messages of a forwarder.
type soakSum struct{ accepted, unknown, delivered, discarded, dead, waiting, lost int }

// sum compares the accounts with what the store holds, which nobody has open.
func (l *soakLedger) sum(of int, c soakCensus) (s soakSum) {
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
			l.problem("message %d for %s was done in launch %d, and is in the store", id, soakMix[e.destination], e.done)
		}
		there := waiting || dead || e.flags&(soakAnswered|soakDiscarded) != 0
		switch {
		case e.flags&soakAccepted != 0:
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
		case e.flags&soakAnswered != 0:
			s.delivered++
		case e.flags&soakDiscarded != 0:
			s.discarded++
		default:
			s.lost++
			l.problem("message %d for %s was accepted, and is neither delivered nor dead nor waiting", id, soakMix[e.destination])
		}
	}
	return s
}

// kept counts the accepted messages for a destination of a forwarder.
func (l *soakLedger) kept(of int, name string) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range l.entries {
		if e := &l.entries[i]; int(e.of) == of && e.flags&soakAccepted != 0 && soakMix[e.destination] == name {
			n++
		}
	}
	return n
}
