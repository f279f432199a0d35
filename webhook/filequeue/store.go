// Package filequeue keeps deliveries in one folder of the local disk: a webhook.Store that
// needs no server, and loses nothing it has accepted when the process or the machine goes
// down.
//
//	s, err := filequeue.Open("data", filequeue.Config{})
//	f, err := webhook.New(webhook.Config{Store: s, ...})
//
// All that concurrent callers store is gathered and appended to a segment, a file of up to
// 32 MB, by one write and one sync. The segments are the store: a body is written once, and
// read again only if the delivery is not attempted at once. What is retried, buried or done is a
// small record behind. A segment in which nothing is needed any more is removed, and one with
// little is merged into the active one, so that the disk's space comes back by itself.
//
// Memory has 40 bytes for each delivery that waits, and as many for a dead letter, and about 32
// for each put that is remembered (Config.DedupMax). Bodies are read from the disk, where
// the system's cache usually has them.
//
// A full disk refuses puts and nothing else: a reserve of 8 MB is left to settle what is stored,
// and what is settled gives space back. While the disk fails, calls return errors; nothing
// that was accepted is lost, and the store works again by itself when the cause is gone.
//
// The folder belongs to one process at a time; a second Open is ErrLocked. It may be copied or
// moved as a whole while it is closed.
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

// A Store is a webhook.Store, webhook.History and audience.Roster.
type Store struct {
	*roster
	config     Config
	disk       disk.Disk
	lock       io.Closer
	calls      sync.WaitGroup // calls in progress
	changed    signal
	complaints complaints
	writer     *writer
	janitor    *janitor

	index  *index
	closed bool          // guarded by the lock of index
	done   chan struct{} // closed when Close is through
}

var (
	_ webhook.Store   = (*Store)(nil)
	_ webhook.History = (*Store)(nil)
	_ audience.Roster = (*Store)(nil)
)

// enter begins a call; the caller ends it by s.calls.Done.
func (s *Store) enter(ctx context.Context) error {
	if err := ctx.Err(); err != nil { // a caller's code, which may wait: not under the lock
		return err
	}
	s.index.mu.Lock()
	defer s.index.mu.Unlock()
	if s.closed {
		return webhook.ErrClosed
	}
	s.calls.Add(1)
	return nil
}

// Heads implements webhook.Store.
func (s *Store) Heads(ctx context.Context, all bool) iter.Seq2[webhook.Head, error] {
	return storekit.Page(func() ([]webhook.Head, error) {
		if err := s.enter(ctx); err != nil {
			return nil, err
		}
		defer s.calls.Done()
		s.index.mu.Lock()
		defer s.index.mu.Unlock()
		var heads []webhook.Head
		if all {
			heads = make([]webhook.Head, 0, len(s.index.lanes))
			for name, l := range s.index.lanes {
				if l.claimed < l.waiting() {
					heads = append(heads, s.index.head(name))
				}
			}
			return heads, nil
		}
		for name := range s.index.news {
			heads = append(heads, s.index.head(name))
		}
		clear(s.index.news)
		return heads, nil
	})
}

// Changed implements webhook.Store.
func (s *Store) Changed() <-chan struct{} { return s.changed }

// Now implements webhook.Store.
func (s *Store) Now() time.Time { return time.Now().UTC().Truncate(time.Microsecond) }

// Count implements webhook.Keeper.
func (s *Store) Count(ctx context.Context) (webhook.Counts, error) {
	if err := s.enter(ctx); err != nil {
		return webhook.Counts{}, err
	}
	defer s.calls.Done()
	s.index.mu.Lock()
	defer s.index.mu.Unlock()
	x := s.index
	c := webhook.Counts{
		Waiting: x.waiting, Claimed: len(x.claims.byID),
		Dead: x.dead.len, DeadBytes: x.dead.bytes, OldestDead: dueOf(x.dead.first()),
		Delivered: x.history.len, DeliveredBytes: x.history.bytes,
	}
	for _, l := range x.lanes {
		if at := l.oldest(); c.Oldest.IsZero() || !at.IsZero() && at.Before(c.Oldest) {
			c.Oldest = at
		}
	}
	return c, nil
}

// CountByDestination implements webhook.Keeper.
func (s *Store) CountByDestination(ctx context.Context) iter.Seq2[webhook.DestinationCounts, error] {
	return storekit.Page(func() ([]webhook.DestinationCounts, error) {
		if err := s.enter(ctx); err != nil {
			return nil, err
		}
		defer s.calls.Done()
		s.index.mu.Lock()
		defer s.index.mu.Unlock()
		all := make([]webhook.DestinationCounts, 0, len(s.index.lanes))
		for name, l := range s.index.lanes {
			all = append(all, webhook.DestinationCounts{Destination: name, Waiting: l.waiting(), Claimed: l.claimed, Oldest: l.oldest()})
		}
		return all, nil
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
	s.janitor.close()
	if !s.index.segs.sealed() {
		s.writer.do(context.Background(), func(g *group) error {
			r := newRecord(kindClosed, nil)
			g.add(&r)
			return nil
		}, recordHeader, false) // if it fails, Open does without
	}
	close(s.writer.stop)
	<-s.writer.ended
	s.janitor.hint(s.writer.log.active)
	err := s.roster.close()
	s.closeFiles()
	return err
}

func (s *Store) closeFiles() {
	for _, g := range s.index.segs {
		g.unpin()
	}
	if s.writer != nil && s.writer.log.reserve != nil {
		s.writer.log.reserve.Close()
	}
	s.lock.Close()
}

// A signal has room for one value, which says that there is something to do.
type signal chan struct{}

func (c signal) give() {
	select {
	case c <- struct{}{}:
	default:
	}
}
