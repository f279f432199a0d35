package filequeue

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
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
	reserveName  = "reserve" // see log
)

// A log appends commits to the active segment.
//
// The file called reserve takes up space that puts may not use. When the disk is full, the reserve
// becomes a segment, so that stored deliveries can still be settled. Puts are refused until there
// is space for another reserve.
type log struct {
	disk   disk.Disk
	logger *slog.Logger
	index  *index

	segmentBytes int64 // a segment of this length or more is sealed
	reserveBytes int64
	// The active segment grows to a multiple of step bytes. The log fills the new space with zeros,
	// because a sync is fastest if it need not write file sizes and extents.
	step int64

	// Only the writer uses the fields below.
	active  *segment // nil if there is none yet
	size    int64    // bytes of the file of active
	broken  bool     // active takes no more records
	reserve disk.File
	refused time.Time // when the disk last had no space for the reserve
	seq     uint64    // of the next record
	number  uint32    // of the latest segment
	buf     []byte
}

// newLog returns the log of an empty folder, with file sizes that suit the disk.
func newLog(d disk.Disk, logger *slog.Logger, x *index) *log {
	l := &log{disk: d, logger: logger, index: x, segmentBytes: maxSegment, reserveBytes: maxReserve}
	if total, _, err := d.Room(); err == nil {
		l.segmentBytes = max(minSegment, min(maxSegment, total/segmentFraction))
		l.reserveBytes = max(minSegment, min(maxReserve, total/reserveFraction))
	}
	l.step = max(minSegment/4, l.segmentBytes/32) &^ 4095
	return l
}

// resume makes the latest segment of the previous process the active one. That process may have
// ended before it synced its last commit, or its sync may have failed. After a failed sync, another
// sync saves only bytes that are written again. All earlier commits are durable. So resume writes
// the last commit again. It also overwrites an incomplete commit behind it with zeros: a part of
// that one must not look like a part of a later commit.
func (l *log) resume(g *segment, c *scanned) (err error) {
	b := make([]byte, c.end-c.last)
	if _, err = g.file.ReadAt(b, c.last); err == nil || errors.Is(err, io.EOF) {
		_, err = g.file.WriteAt(b, c.last)
	}
	if err == nil {
		err = zero(g.file, c.end, c.end+c.torn)
	}
	if err == nil {
		err = g.file.Sync()
	}
	if err == nil {
		l.size, err = g.file.Size()
	}
	if err != nil {
		return fmt.Errorf("filequeue: %s: %w", g.name(), err)
	}
	g.sealed = false
	l.active = g
	l.secure(time.Now()) // if it fails, the next commit tries again
	return nil
}

// full reports whether an error says that the disk, or a quota, has no space.
func full(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) || errors.Is(err, syscall.EFBIG)
}

// commit makes the records of a group durable and sets their places. Only a group without puts may
// use the reserve.
func (l *log) commit(g *group) error {
	b, err := l.prepare(g)
	if err == errSealed {
		if err = l.roll(nil); err == nil {
			b, err = l.prepare(g)
		}
	}
	if full(err) && !g.puts && l.reserve != nil {
		if err = l.roll(l.reserve); err == nil {
			b, err = l.prepare(g)
		}
	}
	if err != nil {
		return err
	}
	a := l.active
	if err := a.file.Is(a.name()); err != nil {
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
		// The records may be on the disk or not, although the commit has failed, so Open must not
		// read them. The next commit begins a new segment, and stores there that the present
		// segment ends before these records. On a full disk, the next commit overwrites the records
		// instead.
		l.broken = !full(err)
		return err
	}
	l.index.mu.Lock()
	a.end += int64(len(b))
	l.index.mu.Unlock()
	return nil
}

var errSealed = errors.New("the active segment takes no more records")

// prepare encodes the records of a group for the active segment, and makes space for them there. The
// first commit of a segment begins with the list of all others. prepare returns errSealed if the
// active segment takes no more records.
func (l *log) prepare(g *group) (b []byte, err error) {
	a, rs := l.active, g.records
	if a == nil || l.broken || a.end >= l.segmentBytes {
		return nil, errSealed
	}
	if a.end == 0 {
		l.index.mu.Lock()
		list := l.index.segs.record(0)
		list.seq, list.size = l.seq, uint32(l.index.losses) // so that Open knows them
		l.index.mu.Unlock()
		rs = append([]*record{&list}, rs...)
	}
	b = encode(l.buf[:0], a, rs)
	if l.buf = b; cap(b) > 4<<20 {
		l.buf = nil
	}
	need := a.end + int64(len(b))
	for _, to := range []int64{(need + l.step - 1) / l.step * l.step, need} {
		if need <= l.size {
			break
		}
		if err = zero(a.file, l.size, to); err == nil {
			l.size = to
		} else if !full(err) {
			break
		}
	}
	return b, err
}

// encode returns the bytes of a commit that begins at the end of segment g, and sets the places of
// its records. It appends to b, which is empty.
func encode(b []byte, g *segment, rs []*record) []byte {
	for i, r := range rs {
		off := g.end + int64(len(b))
		r.place, r.first, r.last = place{g.number, uint32(off)}, i == 0, i == len(rs)-1
		b = append(r.append(b, g.salt, off), r.payload...)
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
func (l *log) roll(reserve disk.File) (err error) {
	old := l.active
	if old != nil && old.end == 0 { // its first commit has failed
		if err := l.disk.Remove(old.name()); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		l.index.mu.Lock()
		delete(l.index.segs, old.number)
		l.index.mu.Unlock()
		old.unpin()
		old, l.active = nil, nil
	}
	l.number++
	g := &segment{segmentID: segmentID{l.number, newSalt()}, file: reserve}
	g.pins.Store(1)
	size := int64(0)
	if reserve == nil {
		g.file, err = l.disk.Create(g.name())
	} else if err = l.disk.Rename(reserveName, g.name()); err == nil {
		l.reserve, size = nil, l.reserveBytes
		l.logger.Warn("filequeue: the disk is full; new deliveries are refused until there is space, stored ones are delivered as before")
	}
	if err != nil {
		return err
	}
	if old != nil {
		old.file.Truncate(old.end) // gives unused space back
	}
	l.index.mu.Lock()
	l.index.segs[g.number] = g
	if old != nil {
		old.sealed = true
	}
	l.index.tidy.give()
	l.index.mu.Unlock()
	err = l.disk.SyncNames()
	l.active, l.size, l.broken = g, size, err != nil
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
func (l *log) secure(now time.Time) error {
	if l.reserve != nil {
		return nil
	}
	if now.Sub(l.refused) < time.Second && !now.Before(l.refused) {
		return errNoReserve
	}
	f, err := l.disk.Open(reserveName)
	if errors.Is(err, fs.ErrNotExist) {
		f, err = l.disk.Create(reserveName)
	}
	if err == nil {
		if err = l.fill(f); err == nil {
			l.reserve = f
			return nil
		}
		f.Close()
		l.disk.Remove(reserveName) // part of a reserve is useless
	}
	l.refused = now
	return err
}

// fill makes the file of the reserve as long as it has to be.
func (l *log) fill(f disk.File) error {
	size, err := f.Size()
	if err != nil || size >= l.reserveBytes {
		return err
	}
	if _, free, err := l.disk.Room(); err == nil && free < l.reserveBytes-size {
		return errNoReserve
	}
	if err := zero(f, size/4096*4096, l.reserveBytes); err != nil {
		return err
	}
	return f.Sync()
}
