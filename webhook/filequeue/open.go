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

// The content of the file MANIFEST, which names the format of the folder. It never changes within a
// folder.
const (
	manifestMagic = "hookferry store "
	manifest      = manifestMagic + "3\n"
)

// Open opens the store in a folder. It creates a missing folder, which only the owner may use. Open
// reads no bodies, and takes about a second for a million waiting deliveries.
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

// syncParents makes a new folder durable: it syncs the parent of the folder, and all folders above,
// because these may be new, too. Above the parent, it stops at the first folder that this process
// may not read.
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

// OpenOn opens a store on a disk instead of in a folder. The store's methods of audience.Roster
// return errors.ErrUnsupported.
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
	l := newLog(d, c.Logger, s.index)
	s.writer = &writer{log: l, index: s.index, logger: c.Logger, tidy: c.HistoryAge != 0, wake: make(signal, 1), stop: make(chan struct{}), ended: make(chan struct{})}
	s.roster = newRoster(s, dir)
	defer func() {
		if err != nil {
			closeFiles(s)
		}
	}()
	if err := checkManifest(d, true); err != nil {
		return nil, err
	}
	ld := newLoader(s)
	if err := ld.load(); err != nil {
		return nil, err
	}
	l.seq, l.number = ld.seq+1, ld.number
	if n := s.index.segs.numbers(); len(n) > 0 {
		l.before = s.index.segs[n[len(n)-1]]
		l.secure(time.Now()) // if it fails, the next commit tries again
	}
	s.janitor = newJanitor(s, ld.leftovers)
	s.writer.after = s.janitor.wake.give
	go s.writer.run() // ended by Close
	go s.janitor.run()
	if len(ld.lost) > 0 { // if this cannot be stored, the next Open tries again
		s.writer.do(context.Background(), func(g *group) error { g.gone(kindLost, ld.lost); return nil }, recordHeader, false)
	}
	return s, nil
}

// newStore returns an empty Store without its goroutines.
func newStore(d disk.Disk, c Config, lock io.Closer) *Store {
	return &Store{config: c, lock: lock, disk: d, changed: make(signal, 1), done: make(chan struct{}), index: &index{
		segs: make(segments), claims: make(map[uint64]*claim), lanes: make(map[string]*lane), news: make(map[string]struct{}),
		seen: storekit.NewWindow(c.DedupMax, c.DedupWindow), told: make(map[uint64]bool),
	}}
}

// acquire locks the folder. It waits up to timeout for another process to release it.
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

// checkManifest checks the manifest of a folder. If the folder is empty and the argument create is
// true, checkManifest writes the manifest instead.
func checkManifest(d disk.Disk, create bool) error {
	b, err := readAll(d, manifestName, 1024)
	switch {
	case err == nil && string(b) == manifest:
		return nil
	case err == nil && strings.HasPrefix(string(b), manifestMagic):
		return fmt.Errorf("%w: %q", ErrVersion, strings.TrimSpace(string(b)))
	case err == nil:
		return fmt.Errorf("%w: %s is not the manifest of a store", ErrDamaged, manifestName)
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
	err = replace(d, nextName, manifestName, []byte(manifest))
	if err == nil {
		err = d.SyncNames()
	}
	if err != nil {
		return fmt.Errorf("filequeue: %w", err)
	}
	return nil
}
