package filequeue

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/hookferry/analytics/internal/disk"
	"github.com/hookferry/analytics/webhook/storekit"
)

// The manifest says what the folder is. It never changes.
const (
	manifestMagic = "hookferry store "
	manifest      = manifestMagic + "1\n"
)

// How long a segment gets and how much the reserve has, in bytes, and the part of a small disk
// that each has at most.
const (
	maxSegment      = 32 << 20
	segmentFraction = 32
	maxReserve      = 8 << 20
	reserveFraction = 32
	minSegment      = 64 << 10
)

// Open opens the store in a folder, which is made, for its owner alone, if it is not there. It
// reads what the segments hold, but not the bodies: about a second for a million deliveries.
func Open(dir string, c Config) (*Store, error) {
	c, err := c.withDefaults()
	if err != nil {
		return nil, err
	}
	_, missing := os.Stat(dir)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("filequeue: %w", err)
	}
	if missing != nil {
		if err := syncParents(dir); err != nil {
			return nil, fmt.Errorf("filequeue: %w", err)
		}
	}
	return open(disk.Folder(dir), dir, c)
}

// syncParents makes a new folder durable, and those above it, which may be as new, as far up as
// this process may read.
func syncParents(dir string) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	parent := filepath.Dir(dir)
	if err := disk.SyncFolder(parent); err != nil {
		return err
	}
	for dir := filepath.Dir(parent); dir != filepath.Dir(dir) && disk.SyncFolder(dir) == nil; {
		dir = filepath.Dir(dir)
	}
	return nil
}

// OpenOn is Open on a disk. Its Roster returns errors.ErrUnsupported.
func OpenOn(d disk.Disk, c Config) (*Store, error) {
	c, err := c.withDefaults()
	if err != nil {
		return nil, err
	}
	return open(d, "", c)
}

func open(d disk.Disk, dir string, c Config) (_ *Store, err error) {
	lock, err := acquire(d, c.LockTimeout)
	if err != nil {
		return nil, err
	}
	s := newStore(d, c, lock)
	l := &log{disk: d, logger: c.Logger, index: s.index}
	s.writer = newWriter(l, c.Logger)
	s.roster = newRoster(s, dir)
	defer func() {
		if err != nil {
			s.closeFiles()
		}
	}()
	if err := checkManifest(d, true); err != nil {
		return nil, err
	}
	l.resize()
	ld := newLoader(s)
	if err := ld.load(); err != nil {
		return nil, err
	}
	l.seq, l.number = ld.seq+1, ld.number
	if n := s.index.segs.numbers(); len(n) > 0 {
		l.before = s.index.segs[n[len(n)-1]]
	}
	if len(s.index.segs) > 0 {
		l.secure(time.Now()) // if it fails, the next commit tries again
	}
	s.janitor = newJanitor(s, ld.leftovers)
	s.writer.after, s.writer.tidy = s.janitor.wake.give, c.HistoryAge != 0
	go s.writer.run() // Close ends it
	go s.janitor.run()
	if len(ld.lost) > 0 {
		s.writer.do(context.Background(), func(g *group) error {
			lost := g.list(kindLost, ld.lost)
			g.then(func(seg *segment) { g.addLost(lost, seg) })
			return nil
		}, recordHeader, false) // or else the next start does
	}
	return s, nil
}

// newStore returns a Store that is empty and does nothing yet.
func newStore(d disk.Disk, c Config, lock io.Closer) *Store {
	s := &Store{config: c, complaints: complaints{logger: c.Logger, told: make(map[uint64]bool)}, lock: lock, disk: d, changed: make(signal, 1), done: make(chan struct{})}
	s.index = &index{
		segs: make(segments), claims: claims{byID: make(map[uint64]*claim)}, lanes: make(map[string]*lane), news: make(map[string]struct{}),
		seen: storekit.NewWindow(c.DedupMax, c.DedupWindow),
	}
	return s
}

// acquire locks the folder, and waits for another process to let go of it.
func acquire(d disk.Disk, timeout time.Duration) (io.Closer, error) {
	for began := time.Now(); ; {
		lock, err := d.Lock(lockName)
		switch {
		case err == nil:
			return lock, nil
		case !errors.Is(err, disk.ErrLocked):
			return nil, fmt.Errorf("filequeue: %w", err)
		case time.Since(began) >= timeout:
			return nil, ErrLocked
		}
		time.Sleep(min(10*time.Millisecond, timeout))
	}
}

// checkManifest reads the manifest of a folder. It makes that of an empty one if it may.
func checkManifest(d disk.Disk, create bool) error {
	b, err := readAll(d, manifestName, 1024)
	switch {
	case err == nil && string(b) == manifest:
		return nil
	case err == nil && strings.HasPrefix(string(b), manifestMagic):
		return fmt.Errorf("%w: %q", ErrVersion, strings.TrimSpace(string(b)))
	case err == nil:
		return fmt.Errorf("%w: %s is not that of a store", ErrDamaged, manifestName)
	case !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("filequeue: %w", err)
	}
	files, err := d.List()
	if err != nil {
		return fmt.Errorf("filequeue: %w", err)
	}
	if slices.ContainsFunc(files, func(f disk.Info) bool { return f.Name != lockName && f.Name != nextName }) {
		return fmt.Errorf("%w: it has files, but no %s", ErrDamaged, manifestName)
	}
	if !create {
		return fmt.Errorf("%w: it is empty", ErrDamaged)
	}
	d.Remove(nextName)
	f, err := d.Create(nextName)
	if err == nil {
		if _, err = f.WriteAt([]byte(manifest), 0); err == nil {
			err = f.Sync()
		}
		f.Close()
	}
	if err == nil {
		err = d.Rename(nextName, manifestName)
	}
	if err == nil {
		err = d.SyncNames()
	}
	if err != nil {
		return fmt.Errorf("filequeue: %w", err)
	}
	return nil
}

// resize sets the sizes of files for the disk.
func (l *log) resize() {
	l.segmentBytes, l.reserveBytes, l.step = maxSegment, maxReserve, step
	total, _, err := l.disk.Room()
	if err != nil {
		return // unknown
	}
	l.segmentBytes = max(minSegment, min(maxSegment, total/segmentFraction))
	l.reserveBytes = max(minSegment, min(maxReserve, total/reserveFraction))
	l.step = max(minSegment/4, min(step, l.segmentBytes/4)) &^ 4095
}
