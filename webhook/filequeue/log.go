package filequeue

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hookferry/analytics/internal/disk"
)

// step is by how much the active segment grows. It is filled with zeros beforehand, as a
// sync that has no sizes and no extents to write is the quickest.
const step = 1 << 20

// The names of the files beside the segments and their hints.
const (
	manifestName = "MANIFEST"
	lockName     = "lock"
	nextName     = "next"    // is about to become a segment
	reserveName  = "reserve" // see log
)

// A log is the segments as the writer sees them: it appends to the active one.
//
// The file called reserve has space that puts may not take. It becomes a segment when the disk
// has none left to settle what is stored. Puts are refused until the store could make
// another one.
type log struct {
	disk   disk.Disk
	logger *slog.Logger
	index  *index

	segmentBytes int64 // how long a segment gets
	reserveBytes int64
	step         int64

	// Of the writer alone.
	active  *segment
	before  *segment // the latest that is sealed
	size    int64    // of the file of active
	broken  bool     // nothing may be appended to active
	reserve disk.File
	refused time.Time   // when the reserve could last not be made
	roomier atomic.Bool // a file was removed since
	seq     uint64      // of the record to come
	number  uint32      // of the latest segment
	buf     []byte
}

// full reports whether an error says that there is no space.
func full(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) || errors.Is(err, syscall.EFBIG)
}

// commit makes records durable, and sets where they are. It returns the segment that they
// are in. Puts may not take the reserve.
func (l *log) commit(rs []*record, puts bool) (*segment, error) {
	size := int64(0)
	for _, r := range rs {
		size += recordSize(len(r.payload))
	}
	if l.active == nil || l.broken || l.active.end > segmentStart && l.active.end+size > l.segmentBytes {
		if err := l.roll(size, puts); err != nil {
			return nil, err
		}
	}
	if err := l.grow(size); err != nil {
		if !full(err) || puts {
			return nil, err
		}
		if rerr := l.roll(size, puts); rerr != nil {
			return nil, errors.Join(err, rerr)
		}
		if err := l.grow(size); err != nil {
			return nil, err
		}
	}
	g := l.active
	if err := g.file.Is(segmentName(g.number)); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			err = fmt.Errorf("%w: %w", ErrLost, err)
		}
		return nil, err
	}
	if g.end == segmentStart {
		live := l.liveRecord(g.number)
		rs = append([]*record{&live}, rs...)
	}
	b := l.buf[:0]
	for i, r := range rs {
		off := g.end + int64(len(b))
		r.off = uint32(off)
		h := header{size: uint32(len(r.payload)), kind: r.kind, last: i == len(rs)-1, seq: r.seq, user: r.user, sum: r.sum, index: uint32(i)}
		b = append(b, make([]byte, recordHeader)...)
		h.encode(b[len(b)-recordHeader:], g.salt, off)
		b = append(b, r.payload...)
		for len(b)%8 != 0 {
			b = append(b, 0)
		}
	}
	if l.buf = b; cap(b) > 4<<20 {
		l.buf = nil
	}
	_, err := g.file.WriteAt(b, g.end)
	if err == nil {
		err = g.file.Sync()
	}
	if err != nil {
		// What was written may be on the disk or not. The next commit goes to a new
		// segment, which says where this one ends, or overwrites it if the disk is full.
		l.broken = !full(err)
		return nil, err
	}
	l.size = max(l.size, g.end+int64(len(b)))
	l.index.mu.Lock()
	g.end += int64(len(b))
	for _, r := range rs {
		g.source(&r.summary)
		if g.hint != nil {
			g.hint.add(&r.summary)
		}
	}
	l.index.mu.Unlock()
	return g, nil
}

// liveRecord lists the segments that are there beside one.
func (l *log) liveRecord(but uint32) record {
	var refs []ref
	l.index.mu.Lock()
	for _, n := range l.index.segs.numbers() {
		if n != but {
			refs = append(refs, ref{uint64(l.index.segs[n].end), n})
		}
	}
	l.index.mu.Unlock()
	return listRecord(kindSegments, refs)
}

// grow makes room for size bytes in the active segment, and some more if there is.
func (l *log) grow(size int64) error {
	need := l.active.end + size
	if l.active.end == segmentStart {
		need += recordSize(10 * len(l.index.segs)) // for liveRecord
	}
	if need <= l.size {
		return nil
	}
	to := (need + l.step - 1) / l.step * l.step
	if err := zero(l.active.file, l.size, to); !full(err) {
		if err == nil {
			l.size = to
		}
		return err
	}
	err := zero(l.active.file, l.size, need)
	if err == nil {
		l.size = need
	}
	return err
}

var zeros = make([]byte, 256<<10)

func zero(f disk.File, from, to int64) error {
	for from < to {
		n, err := f.WriteAt(zeros[:min(to-from, int64(len(zeros)))], from)
		if err != nil {
			return err
		}
		from += int64(n)
	}
	return nil
}

// roll seals the active segment and begins another one, with room for size bytes.
func (l *log) roll(size int64, puts bool) error {
	f, room, err := l.next(size)
	name := nextName
	if err != nil {
		switch {
		case !full(err) || puts:
			return err
		case l.reserve == nil:
			return l.resume(size, err)
		}
		f, name, room = l.reserve, reserveName, l.reserveBytes
	}
	var salt [8]byte
	rand.Read(salt[:])
	g := &segment{
		segmentHeader: segmentHeader{number: l.number + 1, salt: binary.LittleEndian.Uint64(salt[:]), seq: l.seq},
		file:          f, end: segmentStart, sources: make(map[uint32]struct{}),
	}
	g.hint = newHintWriter()
	if l.active != nil {
		l.before = l.active
	}
	if l.before != nil {
		g.prev, g.prevEnd = l.before.number, l.before.end
	}
	if _, err = f.WriteAt(g.encode(), 0); err == nil {
		err = f.Sync()
	}
	if err == nil {
		// From here on a crash may show a segment that says where the active one ends.
		l.broken = true
		err = l.disk.Rename(name, segmentName(g.number))
		if err == nil {
			if err = l.disk.SyncNames(); err != nil && l.disk.Rename(segmentName(g.number), name) != nil {
				name = "" // the next segment replaces it
			}
		}
	}
	if err != nil {
		if name != reserveName {
			f.Close()
		}
		if f == l.reserve && name != reserveName {
			l.reserve = nil
		}
		return err
	}
	if name == reserveName {
		l.reserve = nil
		l.logger.Warn("filequeue: the disk is full; settling goes on in the reserve, and puts are refused until there is space")
	}
	g.pins.Store(1)
	l.index.mu.Lock()
	l.index.segs[g.number] = g
	if l.active != nil {
		l.active.sealed = true
	}
	l.index.mu.Unlock()
	if l.before != nil {
		l.before.file.Truncate(l.before.end) // gives the rest back
	}
	l.active, l.size, l.broken, l.number = g, room, false, g.number
	return nil
}

// resume makes the latest segment of the process before the active one, if it has room for size
// bytes. That process may have taken the reserve and ended before it could make another one.
// Else resume returns err.
func (l *log) resume(size int64, err error) error {
	g := l.before
	if l.active != nil || g == nil {
		return err
	}
	room, serr := g.file.Size()
	if serr != nil || g.end+size > room || g.end == segmentStart {
		return err
	}
	// These would hide what comes: a hint that says less than the segment, and a later segment that
	// says where this one ended, if one was made, and its making could be neither finished nor undone.
	for _, name := range []string{hintName(g.number), segmentName(l.number + 1)} {
		if rerr := l.disk.Remove(name); rerr != nil && !errors.Is(rerr, fs.ErrNotExist) {
			return rerr
		}
	}
	if rerr := l.disk.SyncNames(); rerr != nil {
		return rerr
	}
	l.index.mu.Lock()
	g.sealed, g.hint = false, nil
	l.index.mu.Unlock()
	l.active, l.before, l.size, l.broken = g, nil, room, false
	return nil
}

// next makes a file that is to become a segment. A disk without space for a whole step may have
// enough for size bytes.
func (l *log) next(size int64) (f disk.File, room int64, err error) {
	need := segmentStart + size + recordSize(10*len(l.index.segs))
	for _, room := range []int64{max(l.step, (need+l.step-1)/l.step*l.step), need} {
		if err = l.disk.Remove(nextName); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, 0, err
		}
		if f, err = l.disk.Create(nextName); err != nil {
			return nil, 0, err
		}
		if err = zero(f, 0, room); err == nil {
			return f, room, nil
		}
		f.Close()
		if !full(err) {
			break
		}
	}
	l.disk.Remove(nextName)
	return nil, 0, err
}

var errNoReserve = fmt.Errorf("no room for the reserve: %w", syscall.ENOSPC)

// secure makes the reserve if there is none. While the disk has no room for it, it looks once
// a second, or after a file was removed.
func (l *log) secure(now time.Time) (err error) {
	if l.reserve != nil {
		return nil
	}
	if !l.roomier.Swap(false) && now.Sub(l.refused) < time.Second && !now.Before(l.refused) {
		return errNoReserve
	}
	defer func() {
		if err != nil {
			l.refused = now
		}
	}()
	f, err := l.disk.Open(reserveName)
	missing := errors.Is(err, fs.ErrNotExist)
	if err != nil && !missing {
		return err
	}
	size := int64(0)
	if !missing {
		if size, err = f.Size(); err != nil {
			f.Close()
			return err
		}
	}
	if _, free, rerr := l.disk.Room(); rerr == nil && free < l.reserveBytes-size {
		err = errNoReserve
	} else if missing {
		f, err = l.disk.Create(reserveName)
		missing = err != nil
	}
	if err == nil {
		err = zero(f, size/4096*4096, l.reserveBytes)
	}
	if err == nil && size < l.reserveBytes {
		err = f.Sync()
	}
	if err != nil {
		if !missing { // a part of it is of no use
			f.Close()
			l.disk.Remove(reserveName)
		}
		return err
	}
	l.reserve = f
	return nil
}
