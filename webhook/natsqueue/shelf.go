package natsqueue

import (
	"slices"

	"github.com/hookferry/analytics/webhook/internal/lanes"
)

// A shelf is what the owner of a partition knows of one subject.
type shelf struct {
	subject string
	p       *partition
	lane    *lanes.Lane
	live    []uint64            // in ascending order: what is in memory, and some that was
	done    map[uint64]struct{} // settled, and still on the server
	damaged map[uint64]struct{} // what cannot be read, and stays on the server
	// Of what is on the server alone: how many there are, a sequence that none is
	// before, and where the first of them stands, as far as that is known.
	away   int
	cursor uint64
	first  lanes.Order
	// blank counts the readings in a row that found none of these.
	blank int
}

// A home is what the Queue knows of a lane.
type home struct {
	p       *partition
	known   int      // its shelves
	shelves []*shelf // those of them with something away
}

// add notes that seq is in memory.
func (s *shelf) add(seq uint64) {
	if n := len(s.live); n == 0 || s.live[n-1] < seq {
		s.live = append(s.live, seq)
		return
	}
	if i, found := slices.BinarySearch(s.live, seq); !found {
		s.live = slices.Insert(s.live, i, seq)
	}
}

// leave notes that one more, which stands at o, is on the server alone.
func (s *shelf) leave(o lanes.Order) {
	if s.away++; s.away == 1 {
		s.cursor, s.first = o.Seq, o
		h := s.lane.Home.(*home)
		h.shelves = append(h.shelves, s)
	} else {
		s.cursor = min(s.cursor, o.Seq)
		if o.Before(s.first) {
			s.first = o
		}
	}
	if s.first.Before(s.lane.Beyond) {
		s.lane.Beyond = s.first
	}
}

// fetched notes that nothing, or less, is on the server alone.
func (s *shelf) fetched() {
	h := s.lane.Home.(*home)
	if s.away <= 0 {
		s.away, s.first = 0, lanes.Last
		h.shelves = slices.DeleteFunc(h.shelves, func(x *shelf) bool { return x == s })
	}
	s.lane.Beyond = lanes.Last
	for _, x := range h.shelves {
		if x.first.Before(s.lane.Beyond) {
			s.lane.Beyond = x.first
		}
	}
}

// settledBelow returns the sequence below which everything of the shelf is settled,
// and seen to be.
func (s *shelf) settledBelow() uint64 {
	below := s.p.seen + 1
	if s.away > 0 {
		below = min(below, s.cursor)
	}
	if s.trim(); len(s.live) > 0 {
		below = min(below, s.live[0])
	}
	return below
}

// trim drops what is settled, and seen to be, from the beginning of live.
func (s *shelf) trim() {
	n := 0
	for n < len(s.live) && s.p.held[s.live[n]] == nil && s.p.unproven[s.live[n]] == nil {
		n++
	}
	s.live = s.live[n:]
}

// intactBelow returns the sequence of the first damaged message, at most below.
func (s *shelf) intactBelow(below uint64) uint64 {
	for seq := range s.damaged {
		below = min(below, seq)
	}
	return below
}

// deleted notes that the server does not have a message any more that was settled.
func (s *shelf) deleted(seq uint64) {
	if _, ok := s.done[seq]; ok {
		delete(s.done, seq)
		s.p.done--
	}
}

// erased notes that the server has nothing below seq any more. A shelf of which nothing is
// left is forgotten, unless that was done before.
func (s *shelf) erased(below uint64) {
	for seq := range s.done {
		if seq < below {
			delete(s.done, seq)
			s.p.done--
		}
	}
	s.trim()
	// What is in memory may not have been seen yet.
	if len(s.done) == 0 && len(s.damaged) == 0 && s.away == 0 && len(s.live) == 0 && s.p.shelves[s.subject] == s {
		delete(s.p.shelves, s.subject)
		s.lane.Home.(*home).known--
	}
}
