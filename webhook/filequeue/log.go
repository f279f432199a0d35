package filequeue

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
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
	// maxStep bounds log.step: the active segment grows to a multiple of log.step bytes. The log
	// fills the new space with zeros, because a sync is fastest if it need not write file sizes and
	// extents.
	maxStep = 1 << 20
)

// The names of the files beside the segments.
const (
	manifestName = "MANIFEST"
	lockName     = "lock"
	nextName     = "next"    // a file that is about to become a segment
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
	step         int64

	// Only the writer uses the fields below.
	active  *segment // nil if there is none yet
	size    int64    // bytes of the file of active
	broken  bool     // active takes no more records
	reserve disk.File
	refused time.Time // when the disk last had no space for the reserve
	seq     uint64    // of the next record
	number  uint32    // of the latest segment
	salt    uint64    // of the next segment
	buf     []byte
}

// newLog returns the log of an empty folder, with file sizes that suit the disk.
func newLog(d disk.Disk, logger *slog.Logger, x *index) *log {
	l := &log{disk: d, logger: logger, index: x, segmentBytes: maxSegment, reserveBytes: maxReserve, step: maxStep, salt: newSalt()}
	if total, _, err := d.Room(); err == nil {
		l.segmentBytes = max(minSegment, min(maxSegment, total/segmentFraction))
		l.reserveBytes = max(minSegment, min(maxReserve, total/reserveFraction))
		l.step = max(minSegment/4, min(maxStep, l.segmentBytes/4)) &^ 4095
	}
	return l
}

// resume makes the latest segment of the previous process the active one.
func (l *log) resume(g *segment) (err error) {
	if l.size, err = g.file.Size(); err != nil {
		return fmt.Errorf("filequeue: %w", err)
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

// commit makes records durable and sets their places. Only commits without puts may use the reserve.
func (l *log) commit(rs []*record, puts bool) error {
	size := int64(0)
	for _, r := range rs {
		size += recordSize(len(r.payload))
	}
	err := l.grow(size)
	if err == errSealed || full(err) && !puts {
		if err = l.roll(size, puts); err == nil {
			err = l.grow(size)
		}
	}
	if err != nil {
		return err
	}
	g := l.active
	if err := g.file.Is(g.name()); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			err = fmt.Errorf("%w: %w", ErrLost, err)
		}
		return err
	}
	b := encode(l.buf[:0], g, rs)
	if l.buf = b; cap(b) > 4<<20 {
		l.buf = nil
	}
	_, err = g.file.WriteAt(b, g.end)
	if err == nil {
		err = g.file.Sync()
	}
	if err != nil {
		// The records may be on the disk or not, although the commit has failed, so Open must not
		// read them. The next commit begins a new segment, and stores there that the present
		// segment ends before these records. On a full disk, the next commit overwrites the records
		// instead.
		l.broken = !full(err)
		return err
	}
	l.size = max(l.size, g.end+int64(len(b)))
	l.index.mu.Lock()
	g.end += int64(len(b))
	l.index.mu.Unlock()
	return nil
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

var errSealed = errors.New("the active segment takes no more records")

// grow makes space for size bytes in the active segment, or returns errSealed. If the disk has the
// space, grow makes the file even longer, so that its length is a multiple of l.step.
func (l *log) grow(size int64) (err error) {
	if l.active == nil || l.broken || l.active.end >= l.segmentBytes {
		return errSealed
	}
	if need := l.active.end + size; need > l.size {
		l.size, err = l.extend(l.active.file, l.size, need)
	}
	return err
}

// extend appends zeros to a file whose length is the argument from. The new length is need, rounded
// up to a multiple of l.step, or need itself if the disk has no space for more. extend returns the
// new length, or from after an error.
func (l *log) extend(f disk.File, from, need int64) (to int64, err error) {
	for _, to := range []int64{(need + l.step - 1) / l.step * l.step, need} {
		if err = zero(f, from, to); !full(err) {
			if err == nil {
				from = to
			}
			break
		}
	}
	return from, err
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

// roll seals the active segment and begins another one, with space for size bytes. If puts is true,
// the commit has puts, and roll must not turn the reserve into the new segment.
func (l *log) roll(size int64, puts bool) error {
	g := &segment{segmentID: segmentID{l.number + 1, l.salt}}
	l.index.mu.Lock()
	list, losses := l.index.segs.record(0), l.index.losses
	l.index.mu.Unlock()
	list.seq = l.seq // so that Open knows the latest sequence number
	list.size = uint32(losses)
	first := encode(nil, g, []*record{&list})
	f, room, err := l.next(g.name(), int64(len(first))+size)
	name := nextName
	if err != nil {
		if !full(err) || puts || l.reserve == nil {
			return err
		}
		f, name, room = l.reserve, reserveName, l.reserveBytes
		l.reserve = nil
	}
	g.file, g.end = f, int64(len(first))
	if _, err = f.WriteAt(first, 0); err == nil {
		err = f.Sync()
	}
	if err == nil {
		// From here on, the new segment may exist on the disk. The new segment says where the
		// active one ends, and Open ignores records after that end. So the active segment takes no
		// more records.
		l.broken = true
		if err = l.disk.Rename(name, g.name()); err == nil {
			err = l.disk.SyncNames()
		}
	}
	if err != nil { // if the file has the name of the segment already, the next roll removes it
		f.Close()
		return err
	}
	if name == reserveName {
		l.logger.Warn("filequeue: the disk is full; new deliveries are refused until there is space, stored ones are delivered as before")
	}
	g.pins.Store(1)
	if l.active != nil {
		l.active.file.Truncate(l.active.end) // gives unused space back
	}
	l.index.mu.Lock()
	l.index.segs[g.number] = g
	if l.active != nil {
		l.active.sealed = true
	}
	l.index.tidy.give()
	l.index.mu.Unlock()
	l.active, l.size, l.broken, l.number, l.salt = g, room, false, g.number, newSalt()
	return nil
}

// next makes a file of at least size bytes that can become the segment with the argument name, and
// returns its length. It removes what a failed roll has left.
func (l *log) next(name string, size int64) (f disk.File, room int64, err error) {
	for _, name := range []string{name, nextName} {
		if err = l.disk.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, 0, err
		}
	}
	if f, err = l.disk.Create(nextName); err != nil {
		return nil, 0, err
	}
	if room, err = l.extend(f, 0, size); err != nil {
		f.Close()
		l.disk.Remove(nextName)
	}
	return f, room, err
}

// newSalt returns the salt of a segment.
func newSalt() uint64 {
	var salt [8]byte
	rand.Read(salt[:])
	return binary.LittleEndian.Uint64(salt[:])
}

var errNoReserve = fmt.Errorf("no space for the reserve: %w", syscall.ENOSPC)

// secure makes the reserve if there is none. While the disk has no space for the reserve, secure
// tries at most once a second.
func (l *log) secure(now time.Time) (err error) {
	if l.reserve != nil {
		return nil
	}
	if now.Sub(l.refused) < time.Second && !now.Before(l.refused) {
		return errNoReserve
	}
	if l.reserve, err = l.makeReserve(); err != nil {
		l.refused = now
	}
	return err
}

// makeReserve opens the file called reserve; see log. It creates the file if it is missing, and fills
// it up if it is too short.
func (l *log) makeReserve() (disk.File, error) {
	f, err := l.disk.Open(reserveName)
	if errors.Is(err, fs.ErrNotExist) {
		f, err = l.disk.Create(reserveName)
	}
	if err != nil {
		return nil, err
	}
	size, err := f.Size()
	if _, free, rerr := l.disk.Room(); err == nil && rerr == nil && free < l.reserveBytes-size {
		err = errNoReserve
	}
	if err == nil && size < l.reserveBytes {
		if err = zero(f, size/4096*4096, l.reserveBytes); err == nil {
			err = f.Sync()
		}
	}
	if err != nil { // part of a reserve is useless
		f.Close()
		l.disk.Remove(reserveName)
		return nil, err
	}
	return f, nil
}
