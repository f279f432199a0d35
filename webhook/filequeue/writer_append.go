package filequeue

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"syscall"
	"time"

	"github.com/hookferry/analytics/internal/disk"
)

// The sizes of files, in bytes. On a small disk a segment takes at most 1/segmentFraction of the
// disk, and the reserve at most 1/reserveFraction.
const (
	maxSegment      = 32 << 20
	segmentFraction = 32
	maxReserve      = 8 << 20
	reserveFraction = 32
	minSegment      = 64 << 10 // also the smallest reserve
)

// The names of the files beside the segments.
const (
	manifestName = "MANIFEST"
	lockName     = "lock"
	nextName     = "next"    // a file that is about to become the manifest
	reserveName  = "reserve" // see writer
)

// resume makes the latest segment of the previous process the active one. That process may have
// ended before it synced its last commit, or its sync may have failed. After a failed sync, another
// sync saves only bytes that are written again. All earlier commits are durable. So resume writes
// the last commit again. Instead of the ops that scan left out, it writes records without content.
// It also overwrites an incomplete commit behind it with zeros: a part of that one must not look
// like a part of a later commit.
func (w *writer) resume(g *segment, c *scanned) (err error) {
	b := make([]byte, c.end-c.last)
	if _, err = g.file.ReadAt(b, c.last); err == nil || errors.Is(err, io.EOF) {
		c.mend(b, g.id.salt)
		_, err = g.file.WriteAt(b, c.last)
	}
	if err == nil {
		err = zero(g.file, c.end, c.end+c.torn)
	}
	if err == nil {
		err = g.file.Sync()
	}
	if err == nil {
		w.size, err = g.file.Size()
	}
	if err != nil {
		return fmt.Errorf("filequeue: %s: %w", g.id.name(), err)
	}
	g.sealed = false
	w.active = g
	w.manifest.set(mark{g.id, g.end})
	w.secure(time.Now()) // if it fails, the next commit tries again
	return nil
}

// full reports whether an error says that the disk, or a quota, has no space.
func full(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) || errors.Is(err, syscall.EFBIG)
}

// append makes the records of a group durable and sets their places. Only a group without puts may
// use the reserve.
func (w *writer) append(g *group) error {
	var b []byte
	var err error
	if a := w.active; a == nil || w.broken || a.end >= w.segmentBytes {
		err = w.roll(nil)
	}
	if err == nil {
		b, err = w.prepare(g)
	}
	if full(err) && !g.puts && w.reserve != nil {
		if err = w.roll(w.reserve); err == nil {
			b, err = w.prepare(g)
		}
	}
	if err != nil {
		return err
	}
	a := w.active
	if err := a.file.Is(a.id.name()); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			err = fmt.Errorf("%w: %w", ErrLost, err)
		}
		return err
	}
	_, err = a.file.WriteAt(b, a.end)
	if err == nil {
		err = a.file.Sync()
	}
	if err != nil {
		// The records may be on the disk although the commit has failed, so Open must not read them.
		// The next commit begins a new segment, and stores there that this one ends before these
		// records. On a full disk, the next commit overwrites the records instead.
		w.broken = !full(err)
		return err
	}
	w.index.mu.Lock()
	a.end += int64(len(b))
	w.index.mu.Unlock()
	w.manifest.set(mark{a.id, a.end})
	return nil
}

// prepare encodes the records of a group for the active segment, and makes space there. The first
// commit of a segment begins with the lists of all others, and of the tables.
func (w *writer) prepare(g *group) (b []byte, err error) {
	a, rs := w.active, g.records
	if a.end == 0 {
		w.index.mu.Lock()
		list := w.index.segs.record(0)
		list.seq, list.size, list.flags = w.seq, uint32(w.index.losses), flagBegin|flagEnd // so that Open knows the numbers
		tables := tablesRecord(w.index.documents.tables, w.index.history.tables, w.index.documents.flushed)
		tables.flags = flagBegin | flagEnd
		w.index.mu.Unlock()
		rs = append([]*record{&list, &tables}, rs...)
	}
	b = encode(w.buf[:0], a, rs)
	if w.buf = b; cap(b) > 4<<20 {
		w.buf = nil
	}
	need := a.end + int64(len(b))
	for _, to := range []int64{(need + w.step - 1) / w.step * w.step, need} {
		if need <= w.size {
			break
		}
		if err = zero(a.file, w.size, to); err == nil {
			w.size = to
		} else if !full(err) {
			break
		}
	}
	return b, err
}

// encode returns the bytes of a commit that begins at the end of segment g, and sets the places of
// its records. It appends to b, which is empty.
func encode(b []byte, g *segment, rs []*record) []byte {
	flag(rs, flagFirst, flagLast)
	for _, r := range rs {
		off := g.end + int64(len(b))
		r.pos = position{g.id.number, uint32(off)}
		b = append(r.append(b, g.id.salt, off), r.payload...)
		b = append(b, zeros[:-len(b)&7]...)
	}
	return b
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

// roll seals the active segment and begins another one, with the reserve as its file, or else with a
// new file.
func (w *writer) roll(reserve disk.File) (err error) {
	old := w.active
	if old != nil && old.end == 0 { // its first commit has failed
		if err := w.disk.Remove(old.id.name()); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		w.index.mu.Lock()
		delete(w.index.segs, old.id.number)
		w.index.mu.Unlock()
		old.unpin()
		old, w.active = nil, nil
	}
	w.number++
	g := &segment{id: segmentID{w.number, newSalt()}, file: reserve}
	g.pins.Store(1)
	size := int64(0)
	if reserve == nil {
		g.file, err = w.disk.Create(g.id.name())
	} else if err = w.disk.Rename(reserveName, g.id.name()); err == nil {
		w.reserve, size = nil, w.reserveBytes
	}
	if err != nil {
		return err
	}
	if old != nil {
		old.file.Truncate(old.end) // gives unused space back
	}
	w.index.mu.Lock()
	w.index.segs[g.id.number] = g
	if old != nil {
		old.sealed = true
	}
	w.index.tidy.Set()
	w.index.mu.Unlock()
	err = w.disk.SyncNames()
	w.active, w.size, w.broken = g, size, err != nil
	return err
}

// newSalt returns the salt of a segment.
func newSalt() uint64 {
	var salt [8]byte
	rand.Read(salt[:])
	return binary.LittleEndian.Uint64(salt[:])
}

var errNoReserve = fmt.Errorf("no space for the reserve: %w", syscall.ENOSPC)

// secure opens or makes the reserve if there is none. While the disk has no space for the reserve,
// secure tries at most once a second.
func (w *writer) secure(now time.Time) error {
	if w.reserve != nil {
		return nil
	}
	if now.Sub(w.refused) < time.Second && !now.Before(w.refused) {
		return errNoReserve
	}
	f, err := w.disk.Open(reserveName)
	if errors.Is(err, fs.ErrNotExist) {
		f, err = w.disk.Create(reserveName)
	}
	if err == nil {
		if err = w.fill(f); err == nil {
			w.reserve = f
			return nil
		}
		f.Close()
		w.disk.Remove(reserveName) // part of a reserve is useless
	}
	w.refused = now
	return err
}

// fill makes the file of the reserve as long as it has to be.
func (w *writer) fill(f disk.File) error {
	size, err := f.Size()
	if err != nil || size >= w.reserveBytes {
		return err
	}
	if _, free, err := w.disk.Room(); err == nil && free < w.reserveBytes-size {
		return errNoReserve
	}
	if err := zero(f, size/4096*4096, w.reserveBytes); err != nil {
		return err
	}
	return f.Sync()
}
