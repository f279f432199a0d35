package boltqueue

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/storekit"
)

// Rescued says what Rescue has found.
type Rescued struct {
	// Waiting, Dead and Members count what the new store has of deliveries,
	// dead letters and members of audiences.
	Waiting, Dead, Members int
	// Lost counts the places that could not be read: pages, rows, or stretches
	// of the journal. Zero says that the new store has all that the old one had.
	Lost int
}

// Rescue writes what can be read of the store in the file from, and of its
// journal, to a new store in the file to, which must not exist. It changes
// nothing of the old one, which no process may have open.
//
// Where pages are lost, those are searched too that no page leads to: they may
// hold deliveries that were done before, which are delivered again then.
func Rescue(from, to string) (Rescued, error) {
	return RescueContext(context.Background(), from, to, nil)
}

// RescueContext is Rescue until ctx is done: then it returns the error of ctx,
// and there is no new store. It calls progress, unless that is nil, now and then
// and at the end, with how many bytes are read of about how many: all are read
// twice.
func RescueContext(ctx context.Context, from, to string, progress func(read, of int64)) (r Rescued, err error) {
	f, err := os.Open(from)
	if err != nil {
		return r, fmt.Errorf("boltqueue: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return r, fmt.Errorf("boltqueue: %w", err)
	}
	if lockedByOther(from) {
		return r, fmt.Errorf("%w: %s", ErrLocked, from)
	}
	journals := journalPaths(to)
	for _, path := range append(journals[:], to) {
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			return r, fmt.Errorf("boltqueue: %s exists", path)
		}
	}
	q, err := Open(to, &Config{DedupMax: 1 << 30})
	if err != nil {
		return r, err
	}
	x := &rescue{q: q, reading: newReading(ctx, progress, 2*info.Size()), left: make(map[uint64]uint64), pauses: make(map[string][]byte), player: newPlayer(), generations: make(map[string]uint64)}
	x.player.lenient = true
	err = x.run(f, readJournals(from))
	if cerr := q.Close(); err == nil {
		err = cerr
	}
	if ctx.Err() != nil {
		return r, errors.Join(ctx.Err(), os.Remove(to))
	}
	if err == nil {
		x.reading.end()
	}
	x.result.Lost += x.lost
	return x.result, err
}

// A rescue is one going on.
type rescue struct {
	q       *Queue
	reading *reading
	result  Rescued
	lost    int

	// Of the first pass.
	left   map[uint64]uint64
	epoch  *epoch
	closed bool
	player *player

	keys   []seenKeys
	pauses map[string][]byte

	// What is written next.
	puts        []webhook.Delivery
	dead        []deadRow
	members     []member
	generations map[string]uint64
}

type member struct {
	audience, user string
	generation     uint64
}

func (x *rescue) run(f *os.File, journals [2]journalFile) error {
	// First what says which rows count no more.
	first := &salvage{found: x.note}
	first.reading = x.reading
	if err := first.all(f); err != nil {
		return err
	}
	second := &salvage{found: x.row}
	second.reading = x.reading
	if err := x.journal(journals, second); err != nil {
		return err
	}
	if err := second.all(f); err != nil {
		return err
	}
	x.lost += second.lost
	// Those that are due at the same time keep their order.
	for _, n := range slices.Sorted(maps.Keys(x.player.fresh)) {
		if err := x.put(x.player.fresh[n].row); err != nil {
			return err
		}
	}
	x.dead = append(x.dead, x.player.dead...)
	if err := x.write(); err != nil {
		return err
	}
	// Last, as what was put is left out when it is put again.
	return x.q.do(context.Background(), &request{work: func(e *edit, _ *request) error {
		for _, s := range append(x.keys, x.player.keys...) {
			x.remember(e, s)
		}
		for destination, since := range x.pauses {
			if err := e.bucket(bucketPauses).Put([]byte(destination), since); err != nil {
				return err
			}
		}
		return nil
	}})
}

// remember notes keys of puts.
func (x *rescue) remember(e *edit, s seenKeys) {
	x.q.mu.Lock()
	defer x.q.mu.Unlock()
	for _, k := range s.keys {
		if x.q.seen.Add(k, s.at) {
			e.keys = append(e.keys, k)
		}
	}
}

// journal plays what the files of the journal have that the database, which is read
// second, has not.
func (x *rescue) journal(files [2]journalFile, second *salvage) error {
	for _, f := range files {
		if f.err != nil && !errors.Is(f.err, fs.ErrNotExist) {
			return fmt.Errorf("boltqueue: %w", f.err)
		}
	}
	type part struct {
		file  *journalFile
		epoch epoch
	}
	var parts []part // in the order they were written
	there := false   // the one that the database asks for is
	for i := range files {
		e, ok := files[i].guess()
		if !ok || x.epoch != nil && (e.number() < x.epoch.number() || x.closed && e == *x.epoch) {
			continue
		}
		there = there || x.epoch != nil && e == *x.epoch
		parts = append(parts, part{&files[i], e})
	}
	slices.SortFunc(parts, func(a, b part) int { return compareNumbers(a.epoch.number(), b.epoch.number()) })
	switch {
	case there:
	case x.epoch == nil:
		if len(parts) == 0 {
			x.lost++
		}
	default:
		later := slices.ContainsFunc(files[:], func(f journalFile) bool { return f.later(*x.epoch) })
		if later {
			// The database has lost its latest state, pages of which may be there.
			second.lost++
		}
		if !x.closed {
			x.lost++
		}
	}
	for _, p := range parts {
		x.lost += p.file.salvage(p.epoch, func(b []byte) error { return ops(b, x.player.play) })
	}
	return nil
}

// isIn reports whether names lead to a bucket.
func isIn(names [][]byte, bucket []byte) bool {
	return len(names) == 1 && string(names[0]) == string(bucket)
}

// note is the first pass: settlements, and the epoch.
func (x *rescue) note(names [][]byte, k, v []byte) error {
	switch {
	case isIn(names, bucketLeft) && len(k) == 8 && len(v) == 8:
		x.left[binary.BigEndian.Uint64(k)] = binary.BigEndian.Uint64(v)
	case isIn(names, bucketMeta) && string(k) == string(rowJournal):
		if e, closed, err := readEpoch(v); err == nil {
			x.epoch, x.closed = &e, closed
		}
	}
	return nil
}

// row is the second pass: everything else. A row of no bucket is known by its
// checksum and the length of its key.
func (x *rescue) row(names [][]byte, k, v []byte) error {
	orphan := names == nil
	switch {
	case isIn(names, bucketWaiting), isIn(names, bucketDamaged), orphan && len(k) == waitingKeyLen:
		if x.player.gone[string(k)] {
			return nil
		}
		return x.orLost(orphan, x.put(v))
	case isIn(names, bucketDead), orphan && len(k) == deadKeyLen:
		if len(k) != deadKeyLen || unseal(v, new(webhook.DeadLetter)) != nil {
			return x.orLost(orphan, errRow)
		}
		x.dead = append(x.dead, deadRow{readOrder(k), append([]byte(nil), v...)})
	case isIn(names, bucketBlocks), orphan && len(k) == 8 && len(v) > 64:
		return x.block(orphan, k, v)
	case isIn(names, bucketSeen):
		const size = len(storekit.Key{})
		if len(v) < 8 || len(v)%size != 8 {
			return x.orLost(orphan, errRow)
		}
		s := seenKeys{at: time.UnixMicro(int64(binary.BigEndian.Uint64(v)))}
		for b := v[8:]; len(b) > 0; b = b[size:] {
			s.keys = append(s.keys, storekit.Key(b[:size]))
		}
		x.keys = append(x.keys, s)
	case isIn(names, bucketPauses):
		if len(v) != 8 {
			return x.orLost(orphan, errRow)
		}
		x.pauses[string(k)] = bytes.Clone(v)
	case len(names) == 2 && string(names[0]) == string(bucketAudiences) && string(k) == string(rowGeneration):
		x.generations[string(names[1])] = generation(v)
	case len(names) == 3 && string(names[0]) == string(bucketAudiences):
		x.members = append(x.members, member{string(names[1]), string(k), generation(v)})
	}
	if len(x.dead)+len(x.members) >= 1000 {
		return x.write()
	}
	return nil
}

// block takes in what is left of a block.
func (x *rescue) block(orphan bool, k, v []byte) error {
	if len(k) != 8 {
		return x.orLost(orphan, errRow)
	}
	number := binary.BigEndian.Uint64(k)
	left, ok := x.left[number]
	if !ok {
		left = ^uint64(0)
	}
	left &^= x.player.bits[number]
	err := entries(v, func(i int, n uint64, row []byte) error {
		if left&(1<<i) == 0 || x.player.settled[n] {
			return nil
		}
		return x.orLost(orphan, x.put(row))
	})
	return x.orLost(orphan, err)
}

// orLost counts what cannot be read. What belongs to no bucket may be anything.
func (x *rescue) orLost(orphan bool, err error) error {
	if !errors.Is(err, errRow) {
		return err
	}
	if !orphan {
		x.lost++
	}
	return nil
}

// put takes in the row of a delivery.
func (x *rescue) put(row []byte) error {
	var d webhook.Delivery
	if err := unseal(row, &d); err != nil {
		return errRow
	}
	if x.puts = append(x.puts, d); len(x.puts) >= 1000 {
		return x.write()
	}
	return nil
}

// write stores what has gathered.
func (x *rescue) write() error {
	ctx := context.Background()
	n, err := x.q.Put(ctx, x.puts...)
	if err != nil {
		return err
	}
	x.result.Waiting += n
	x.puts = x.puts[:0]
	if len(x.dead)+len(x.members)+len(x.generations) == 0 {
		return nil
	}
	dead := 0
	err = x.q.do(ctx, &request{work: func(e *edit, _ *request) error {
		b := e.bucket(bucketDead)
		for _, d := range x.dead {
			if k := orderKey(nil, d.order); b.Get(k) == nil {
				if err := b.Put(k, d.row); err != nil {
					return err
				}
				dead++
				e.changed.dead++
			}
		}
		for audience, gen := range x.generations {
			a, err := e.makeAudience(audience)
			if err == nil {
				err = a.Put(rowGeneration, numberKey(gen))
			}
			if err != nil {
				return err
			}
		}
		for _, m := range x.members {
			a, err := e.makeAudience(m.audience)
			if err == nil {
				err = a.Bucket(bucketMembers).Put([]byte(m.user), numberKey(m.generation))
			}
			if err != nil {
				return err
			}
		}
		return nil
	}})
	if err != nil {
		return err
	}
	x.result.Dead += dead
	x.result.Members += len(x.members)
	x.dead, x.members = nil, nil
	clear(x.generations)
	return nil
}
