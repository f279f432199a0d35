package natsqueue

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/hookferry/analytics/webhook/store"
)

// A letter is a dead letter, which has a message of its own.
type letter struct {
	at   uint64 // the sequence of the message
	died int64  // when it died, in microseconds
	user uint32 // the hash of its user
	size uint32 // its Size
}

// headerLetter is the header of a dead letter. It has the Seq, the time of death, the hash of the user
// and the Size, so that an owner can read which dead letters there are without their bodies.
const headerLetter = "Hookferry-Letter"

// readLetters reads which dead letters earlier owners of p have stored. They can store no more since the
// first record of this node.
func (p *partition) readLetters() {
	subjects, found, seen := p.conn.config.deadIn(p.n), make(map[string][]place), uint64(0)
	last, err := p.get(request{Last: subjects})
	if err == nil && last.Sequence > 0 {
		f := &follower{p: p, subjects: subjects, headers: true}
		f.saw = func(seq uint64, m *nats.Msg) bool {
			if seen = seq; seq < p.epoch {
				p.sawLetter(seq, m, found)
			}
			return seq < last.Sequence
		}
		f.idle = func() bool { // the last one may have been deleted meanwhile
			last, err = p.get(request{Last: subjects})
			return err != nil || seen >= last.Sequence
		}
		f.follow()
	}
	if p.live.Err() == nil {
		p.place(found)
	}
}

// sawLetter adds to found, by destination, the place of a dead letter, from the header of its message.
func (p *partition) sawLetter(seq uint64, m *nats.Msg, found map[string][]place) {
	destination, err := lastToken(m.Subject)
	x, ok := parseLetter(m.Header.Get(headerLetter))
	if !ok || err != nil {
		p.conn.config.Logger.Error("natsqueue: ignoring a dead letter that cannot be read; it stays in the stream", "sequence", seq)
		return
	}
	x.letter.at = seq
	found[destination] = append(found[destination], x)
}

// header returns the headerLetter of a dead letter with the number seq.
func (x *letter) header(seq uint64) string {
	return fmt.Sprintf("%d %d %d %d", seq, x.died, x.user, x.size)
}

// parseLetter is the inverse of header.
func parseLetter(text string) (place, bool) {
	var numbers [4]int64
	fields := strings.Fields(text)
	for i := range numbers {
		var err error
		if len(fields) != len(numbers) {
			return place{}, false
		}
		if numbers[i], err = strconv.ParseInt(fields[i], 10, 64); err != nil {
			return place{}, false
		}
	}
	return place{seq: uint64(numbers[0]), letter: &letter{died: numbers[1], user: uint32(numbers[2]), size: uint32(numbers[3])}}, true
}

// place adds the places of dead letters to the lists of lanes. From then on the lists are complete.
func (p *partition) place(found map[string][]place) {
	p.index.mu.Lock()
	defer p.index.mu.Unlock()
	if p.state == lost {
		return
	}
	for destination, places := range found {
		l := p.lane(destination)
		l.list = append(l.list, places...)
		l.sort()
	}
	close(p.listed)
}

// letters reads and changes the dead letters of the partitions of this node.
type letters struct {
	conn   *conn
	index  *index
	putter *putter
}

// read reads dead letters from the stream. An element of the result is nil if the element of all is
// nil, or if the stream does not have the message.
func (lt *letters) read(ctx context.Context, all []*letter) ([]*jetstream.RawStreamMsg, error) {
	var seqs []uint64
	for _, x := range all {
		if x != nil {
			seqs = append(seqs, x.at)
		}
	}
	messages, err := lt.conn.allMessages(ctx, seqs...)
	for i, x := range all {
		if x == nil {
			messages = slices.Insert(messages, i, nil)
		}
	}
	return messages, err
}

// take reports whether the caller may revive or erase the dead letter x: it is still there, and no other
// call does so now. A revival stores a fresh delivery before it deletes the dead letter, and an erasure
// between the two would miss that delivery. Afterwards the caller calls give.
func (p *partition) take(ref store.Ref, x *letter) bool {
	p.index.mu.Lock()
	defer p.index.mu.Unlock()
	if p.state != lost && (p.busy[x] || p.letter(ref) != x) {
		return false
	}
	p.busy[x] = true
	return true
}

func (p *partition) give(x *letter) {
	p.index.mu.Lock()
	defer p.index.mu.Unlock()
	delete(p.busy, x)
}

// change revives, discards or erases dead letters of p. Elements of all may be nil. It revives dead
// letters with the same key one after the other. It returns how many it has changed, and how many it
// has missed because another call has changed them or is about to.
func (lt *letters) change(ctx context.Context, p *partition, refs []store.Ref, all []*letter, q *question) (n, missed int, err error) {
	messages := make([]*jetstream.RawStreamMsg, len(all))
	if q.Change != changeDiscard {
		if messages, err = lt.read(ctx, all); err != nil {
			return 0, 0, err
		}
	}
	var mu sync.Mutex
	change := func(i int) error {
		if q.Change != changeDiscard {
			if !p.take(refs[i], all[i]) {
				mu.Lock()
				defer mu.Unlock()
				missed++
				return nil
			}
			defer p.give(all[i])
		}
		gone, failed := lt.changeOne(ctx, all[i], messages[i], q)
		if gone {
			lt.index.forget(refs[i], all[i])
		}
		mu.Lock()
		defer mu.Unlock()
		if err = cmp.Or(err, failed); gone {
			n++
		}
		return failed
	}
	type name struct{ destination, key string }
	ordered := make(map[name][]int)
	var wg sync.WaitGroup
	for i, x := range all {
		var d store.Record
		switch {
		case x == nil:
		case q.Change == changeRevive && messages[i] != nil && d.UnmarshalBinary(messages[i].Data) == nil && d.Key != "":
			of := name{refs[i].Destination, d.Key}
			ordered[of] = append(ordered[of], i)
		default:
			wg.Go(func() { change(i) })
		}
	}
	for _, all := range ordered {
		wg.Go(func() {
			for _, i := range all {
				if change(i) != nil {
					return
				}
			}
		})
	}
	wg.Wait()
	return n, missed, err
}

// changeOne changes a dead letter, and reports whether it has. m is its message, unless it is discarded.
func (lt *letters) changeOne(ctx context.Context, x *letter, m *jetstream.RawStreamMsg, q *question) (bool, error) {
	if q.Change != changeDiscard && m != nil {
		var d store.Record
		if err := d.UnmarshalBinary(m.Data); err != nil {
			return false, fmt.Errorf("reading a dead letter: %w", err)
		}
		if q.Change == changeErase && d.User != q.Query.User {
			return false, nil
		}
		if q.Change == changeRevive {
			if err := lt.revive(ctx, &d.Delivery, x.at); err != nil {
				return false, err
			}
		}
	}
	return lt.conn.delete(ctx, x.at)
}

// revive stores a dead letter as a fresh delivery. If there is no room for the attempts, it leaves
// them out.
func (lt *letters) revive(ctx context.Context, d *store.Delivery, at uint64) error {
	d.Accepted = now()
	d.Due, d.Expires, d.Tries, d.Closed = d.Accepted, time.Time{}, 0, nil
	p, err := lt.putter.newPut(store.Put{Delivery: *d, NoDedup: true})
	if errors.Is(err, store.ErrTooLarge) {
		d.Attempts = nil
		p, err = lt.putter.newPut(store.Put{Delivery: *d, NoDedup: true})
	}
	if err != nil {
		return err
	}
	p.once = "revived " + decimal(at)
	return lt.putter.put(ctx, p)
}

// forget removes the place of a dead letter from the list of its lane.
func (ix *index) forget(ref store.Ref, x *letter) {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	if l := ix.lanes[ref.Destination]; l != nil {
		if at := l.at(ref.Seq); at != nil && at.letter == x {
			l.vacate(at)
			ix.prune(l)
		}
	}
}
