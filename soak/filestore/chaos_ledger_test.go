package filestore_test

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
)

// A chaosEntry has all that the ledger knows about one message.
type chaosEntry struct {
	of          uint8 // the forwarder that got the message
	destination uint8 // index in chaosMix
	flags       chaosFlag
	arrivals    uint8  // how often a receiver took it
	launch      uint16 // the launch that sent it last
	failed      uint16 // the last launch that reported a failed attempt
	done        uint16 // the launch that reported it done
}

type chaosFlag uint8

const (
	chaosAccepted  chaosFlag = 1 << iota // Forward returned nil
	chaosAnswered                        // a receiver answered 2xx, or was about to
	chaosLost                            // the receiver spoiled the answer to the last arrival
	chaosDiscarded                       // the test has asked to discard its dead letter
)

// A chaosLedger keeps the accounts of TestChaos. The index of an entry is the id of its message.
type chaosLedger struct {
	mu       sync.Mutex
	entries  []chaosEntry
	problems []string
	// How many messages arrived again, by reason. lost: the answer was spoiled. late: the answer
	// came too late. pair: each of two endpoints may take the message.
	lost, late, pair int
	killed           [2]map[int]int // by forwarder and launch
	suspects         [2][]uint32    // arrived again from one launch, which may still report a failed attempt
}

func newChaosLedger() *chaosLedger {
	return &chaosLedger{killed: [2]map[int]int{{}, {}}}
}

func (l *chaosLedger) problem(format string, args ...any) {
	if len(l.problems) < 50 {
		l.problems = append(l.problems, fmt.Sprintf(format, args...))
	}
}

// open adds n entries and returns their ids.
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

// arrived records that a receiver takes a message. well reports whether the receiver will send a
// good answer.
func (l *chaosLedger) arrived(id uint32, launch int, well bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if int(id) >= len(l.entries) {
		l.problem("message %d arrived, but was never made", id)
		return
	}
	e := &l.entries[id]
	name := chaosMix[e.destination]
	switch {
	case e.done != 0 && launch > int(e.done):
		l.problem("message %d for %s was done in launch %d, and arrived again from launch %d", id, name, e.done, launch)
	case e.arrivals == 0:
	case name == "pair":
		l.pair++ // each of the two endpoints may take it
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

// hear records a line that a process printed.
func (l *chaosLedger) hear(launch int, line string) {
	what, rest, _ := strings.Cut(line, " ")
	text, reason, _ := strings.Cut(rest, " ")
	id, err := strconv.ParseUint(text, 10, 32)
	if err != nil || reason == "" {
		return // a kill has cut the line off
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

// ended checks the messages that arrived again from one launch. It is called after the launch has
// ended and all its lines were heard. The launch must have reported a failed attempt: on a busy
// machine, a good answer may come too late.
func (l *chaosLedger) ended(of, launch int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, id := range l.suspects[of] {
		if e := &l.entries[id]; int(e.failed) == launch {
			l.late++
		} else {
			l.problem("message %d for %s arrived again from launch %d, which reported no failed attempt", id, chaosMix[e.destination], launch)
		}
	}
	l.suspects[of] = nil
}

// A chaosCensus has the ids of the deliveries and dead letters in a store.
type chaosCensus struct{ waiting, dead map[uint32]bool }

// A chaosSum counts the messages of a forwarder by outcome.
type chaosSum struct{ accepted, unknown, delivered, discarded, dead, waiting, lost int }

// sum compares the accounts with the census of a store that no process has open.
func (l *chaosLedger) sum(of int, c chaosCensus) (s chaosSum) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for id := range c.waiting {
		if c.dead[id] {
			l.problem("message %d both waits and is a dead letter", id)
		}
	}
	for _, held := range []map[uint32]bool{c.waiting, c.dead} {
		for id := range held {
			if int(id) >= len(l.entries) || int(l.entries[id].of) != of {
				l.problem("the store has message %d, which its forwarder never got", id)
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
			l.problem("message %d for %s was done in launch %d, but is in the store", id, chaosMix[e.destination], e.done)
		}
		there := waiting || dead || e.flags&(chaosAnswered|chaosDiscarded) != 0
		switch {
		case e.flags&chaosAccepted != 0:
			s.accepted++
		case there:
			s.unknown++ // Forward stored it, but a kill came before its answer
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
			l.problem("message %d for %s was accepted, but is neither delivered nor dead nor waiting", id, chaosMix[e.destination])
		}
	}
	return s
}

// kept counts the messages for a destination that a forwarder has accepted.
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
