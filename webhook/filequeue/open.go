package filequeue

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/hookferry/analytics/internal/disk"
	"github.com/hookferry/analytics/webhook/store"
)

// Open opens the store in a folder. It creates a missing folder, which only the owner may use. It
// refuses a folder that belongs to another user but root, or to which all users can write, or a group.
// That group is allowed if it is the group of the process, or if the folder has the set-group-ID bit.
// Open reads no bodies, and takes about a second for a million waiting deliveries.
func Open(dir string, c Config) (*Store, error) {
	c, err := c.withDefaults()
	if err != nil {
		return nil, err
	}
	if d := disk.Mounted(dir); d != nil {
		return open(d, c)
	}
	if err := disk.MakeFolder(dir); err != nil {
		return nil, fmt.Errorf("filequeue: %w", err)
	}
	return open(disk.Folder(dir), c)
}

// CheckFolder returns an error that says what to do if Open refuses a folder because of its owner or its
// mode. It is for the folders above that of a store.
func CheckFolder(dir string) error { return disk.CheckFolder(dir) }

func open(d disk.Disk, c Config) (_ *Store, err error) {
	lock, err := acquire(d, c.LockTimeout)
	if err != nil {
		return nil, err
	}
	ld := newLoader(d, c, lock)
	s := ld.store
	defer func() {
		if err != nil {
			closeFiles(s)
		}
	}()
	m, err := readManifest(d)
	if err == errEmpty {
		m, err = &manifest{page: 1}, writeManifest(d, mark{})
	}
	if err == nil {
		ld.marked = m.mark
		err = ld.load()
	}
	if err == nil {
		// A segment that the last process removed must not come back with the next loss of power, as it
		// would be taken for the end of the log.
		if err = d.SyncNames(); err != nil {
			err = fmt.Errorf("filequeue: %w", err)
		}
	}
	if err == nil {
		err = m.open(d)
	}
	if err != nil {
		return nil, err
	}
	s.writer = newWriter(d, c.Logger, s.index, m)
	s.writer.seq, s.writer.number = ld.seq+1, ld.number
	if s.index.historyBytes = s.writer.segmentBytes; c.HistoryBytes != store.Unlimited {
		s.index.historyBytes = min(s.index.historyBytes, c.HistoryBytes/16)
	}
	s.index.historyMost = 4 * s.index.historyBytes
	if ld.latest != nil {
		if err := s.writer.resume(ld.latest, &ld.tail); err != nil {
			return nil, err
		}
	}
	s.writer.start() // ended by Close
	if len(ld.lost) > 0 {
		s.writer.do(context.Background(), func(g *group) error {
			g.gone(ld.lost, len(ld.lost))
			return nil
		}, recordHeader, false) // after an error, the next Open tries again
	}
	s.janitor = &janitor{store: s, busy: make(chan struct{}, 1), leftovers: ld.leftovers, given: surrender{seqs: make(seqSet)}}
	s.janitor.ctx, s.janitor.cancel = context.WithCancel(context.Background())
	s.running.Go(s.janitor.run) // ended by Close
	return s, nil
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
