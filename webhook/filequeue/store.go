// Package filequeue keeps deliveries in one folder of the local disk. It is a webhook.Store that
// needs no server, and that loses nothing it has accepted when the process or the machine goes
// down.
//
//	s, err := filequeue.Open("data", filequeue.Config{})
//	f, err := webhook.New(webhook.Config{Store: s, ...})
//
// The store is a log of segments, files of about 32 MB. It appends the records of concurrent
// callers to the active segment, with one write and one sync for all of them. A body is written
// once, and read only if the delivery is not attempted at once. A retry, a dead letter or an
// outcome is a small record at the end of the log. The store removes a segment once none of its
// records is needed any more. If only few are needed, the store copies these to the active segment,
// and then removes the segment.
//
// The index in memory has 40 bytes for each waiting delivery and for each dead letter, and about 40
// bytes for each remembered put (Config.DedupMax). Bodies are read from the disk, where the system
// usually has them in its cache. For a fast start, each sealed segment but the latest has a hint file
// with all that the index needs from it.
//
// On a full disk, the store refuses puts and nothing else. It keeps a reserve of 8 MB to settle
// stored deliveries, which frees space. While the disk fails, calls return errors, and accepted
// deliveries are not lost. The store works again by itself when the cause is gone.
//
// One process at a time can open the folder; a second Open returns ErrLocked. A closed folder can
// be copied or moved as a whole.
//
// To read the code, begin with record.go (the format), then writer.go and log.go (how records get
// to the disk), index.go and load.go (what is in memory, and how Open builds it), transition.go
// (how a stored delivery changes), and janitor.go (how disk space is freed).
package filequeue

import (
	"context"
	"io"
	"iter"
	"sync"
	"time"

	"github.com/hookferry/analytics/audience"
	"github.com/hookferry/analytics/internal/disk"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/storekit"
)

// A Store is a webhook.Store, webhook.History and audience.Roster. It is safe for concurrent use.
type Store struct {
	*roster
	config  Config
	disk    disk.Disk
	lock    io.Closer
	calls   sync.WaitGroup // calls in progress
	changed signal
	writer  *writer
	janitor *janitor

	index  *index
	closed bool          // guarded by index.mu
	done   chan struct{} // closed at the end of Close
}

var (
	_ webhook.Store   = (*Store)(nil)
	_ webhook.History = (*Store)(nil)
	_ audience.Roster = (*Store)(nil)
)

// enter begins a call. The caller ends it with s.calls.Done.
func (s *Store) enter(ctx context.Context) error {
	return s.view(ctx, func(*index) { s.calls.Add(1) })
}

// view calls f with the index of an open store.
func (s *Store) view(ctx context.Context, f func(x *index)) error {
	// Do not call ctx.Err under the lock: the context may be the caller's own type, whose Err may
	// block.
	if err := ctx.Err(); err != nil {
		return err
	}
	s.index.mu.Lock()
	defer s.index.mu.Unlock()
	if s.closed {
		return webhook.ErrClosed
	}
	f(s.index)
	return nil
}

// Heads implements webhook.Store.
func (s *Store) Heads(ctx context.Context, all bool) iter.Seq2[webhook.Head, error] {
	return storekit.Page(func() (heads []webhook.Head, err error) {
		err = s.view(ctx, func(x *index) { heads = x.heads(all) })
		return heads, err
	})
}

// heads returns the heads that Heads yields. Heads(true) is about all lanes with unclaimed
// deliveries, and Heads(false) about the destinations in x.news, which heads then empties.
func (x *index) heads(all bool) (heads []webhook.Head) {
	if all {
		for _, l := range x.lanes {
			if l.claimed.len < l.waiting() {
				heads = append(heads, l.head())
			}
		}
		return heads
	}
	for name := range x.news {
		if l := x.lanes[name]; l != nil {
			heads = append(heads, l.head())
		} else {
			heads = append(heads, webhook.Head{Destination: name})
		}
	}
	clear(x.news)
	return heads
}

// Changed implements webhook.Store.
func (s *Store) Changed() <-chan struct{} { return s.changed }

// Now implements webhook.Store.
func (s *Store) Now() time.Time { return s.disk.Now().UTC().Truncate(time.Microsecond) }

// Count implements webhook.Keeper.
func (s *Store) Count(ctx context.Context) (c webhook.Counts, err error) {
	err = s.view(ctx, func(x *index) {
		c = webhook.Counts{
			Waiting: x.waiting(), Claimed: len(x.claims),
			Dead: x.dead.len, DeadBytes: x.dead.bytes, OldestDead: dueOf(x.dead.first()),
			Delivered: x.history.len, DeliveredBytes: x.history.bytes,
		}
		for _, l := range x.lanes {
			if at := l.head().Earliest(); c.Oldest.IsZero() || !at.IsZero() && at.Before(c.Oldest) {
				c.Oldest = at
			}
		}
	})
	return c, err
}

// CountByDestination implements webhook.Keeper.
func (s *Store) CountByDestination(ctx context.Context) iter.Seq2[webhook.DestinationCounts, error] {
	return storekit.Page(func() (all []webhook.DestinationCounts, err error) {
		err = s.view(ctx, func(x *index) {
			for name, l := range x.lanes {
				all = append(all, webhook.DestinationCounts{Destination: name, Waiting: l.waiting(), Claimed: l.claimed.len, Oldest: l.head().Earliest()})
			}
		})
		return all, err
	})
}

// Close implements webhook.Store.
func (s *Store) Close() error {
	s.index.mu.Lock()
	first := !s.closed
	s.closed = true
	s.index.mu.Unlock()
	if !first {
		<-s.done
		return nil
	}
	defer close(s.done)
	s.calls.Wait()
	s.janitor.cancel()
	<-s.janitor.ended
	if !s.index.segs.idle() {
		s.writer.do(context.Background(), func(g *group) error {
			r := tagged(kindClosed, nil)
			g.add(&r)
			return nil
		}, recordHeader, false) // an error does not matter: Open does not need this record
	}
	close(s.writer.stop)
	<-s.writer.ended
	if g := s.writer.log.active; g != nil {
		for _, g := range append(s.index.segs.unhinted(), g) {
			s.janitor.hint(g)
		}
	}
	err := s.roster.close()
	closeFiles(s)
	return err
}

func closeFiles(s *Store) {
	for _, g := range s.index.segs {
		g.unpin()
	}
	if s.writer != nil && s.writer.log.reserve != nil {
		s.writer.log.reserve.Close()
	}
	s.lock.Close()
}

// A signal is a channel with room for one value. A value says that there is work.
type signal chan struct{}

func (c signal) give() {
	select {
	case c <- struct{}{}:
	default:
	}
}
