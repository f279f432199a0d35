// Package filequeue keeps deliveries in one folder of the local disk. It is a store.Store that
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
// The index in memory has 40 bytes for each waiting delivery and for each dead letter, about 40
// bytes for each remembered put (Config.DedupMax), and about 60 for each key of waiting deliveries.
// Documents, and deliveries that are kept after they were delivered, are in tables: sorted files that
// never change. Of them the index has a path for each 16 KB, and the latest changes: up to 1 MB of
// documents, and entries for 32 MB of deliveries. Bodies are read from the disk, where
// the system usually has them in its cache. For a fast start, each sealed segment but the latest ends
// with a hint, which has all that the index needs from it. Open goes on with the latest segment.
//
// On a full disk, the store refuses puts and nothing else. It keeps a reserve of 8 MB to settle
// stored deliveries, which frees space. While the reserve is in use, the history gives way: what is
// delivered is not kept, and tables are removed, until there is space for a reserve. While the disk
// fails, calls return errors, and accepted deliveries are not lost. The store works again by itself
// when the cause is gone.
//
// One process at a time can open the folder; a second Open returns ErrLocked. A closed folder can
// be copied or moved as a whole.
//
// To read the code, begin with record.go (the format), then writer.go and group.go (how records get
// to the disk), index.go and loader.go (what is in memory, and how Open builds it), transition.go
// (how a stored delivery changes), order.go (which of those with one key is first), reader.go (how
// it is read), store_documents.go and table.go (documents), history.go (what was delivered), and
// janitor.go (how disk space is freed).
package filequeue

import (
	"context"
	"io"
	"iter"
	"slices"
	"sync"
	"time"

	"github.com/hookferry/analytics/internal/disk"
	"github.com/hookferry/analytics/webhook/store"
)

// A Store is a store.Store, store.History and store.Maintained. It is safe for concurrent use.
type Store struct {
	reader  *reader
	config  Config
	disk    disk.Disk
	lock    io.Closer
	gate    store.Gate
	writer  *writer
	janitor *janitor
	upkeep  *store.Upkeep
	running sync.WaitGroup // the janitor
	index   *index
}

var (
	_ store.Store      = (*Store)(nil)
	_ store.History    = (*Store)(nil)
	_ store.Maintained = (*Store)(nil)
)

// view calls f with the index of an open store.
func (s *Store) view(ctx context.Context, f func(x *index)) error {
	if err := s.gate.Enter(ctx); err != nil {
		return err
	}
	defer s.gate.Leave()
	s.index.mu.Lock()
	defer s.index.mu.Unlock()
	f(s.index)
	return nil
}

// Heads implements store.Store. Heads(true) is about all lanes with unclaimed deliveries, and
// Heads(false) about the destinations in index.news, which it empties.
func (s *Store) Heads(ctx context.Context, all bool) iter.Seq2[store.Head, error] {
	return store.Page(func() (heads []store.Head, err error) {
		err = s.view(ctx, func(x *index) {
			if all {
				for _, l := range x.lanes {
					if l.claimed+l.behind.len < l.waiting() {
						heads = append(heads, l.head())
					}
				}
				return
			}
			for name := range x.news {
				head := store.Head{Destination: name}
				if l := x.lanes[name]; l != nil {
					head = l.head()
				}
				heads = append(heads, head)
			}
			clear(x.news)
		})
		return heads, err
	})
}

// Changed implements store.Store.
func (s *Store) Changed() <-chan struct{} { return s.index.changed }

// Now implements store.Store.
func (s *Store) Now() time.Time { return s.disk.Now().UTC().Truncate(time.Microsecond) }

// Count implements store.Inspector.
func (s *Store) Count(ctx context.Context) (c store.Counts, err error) {
	err = s.view(ctx, func(x *index) {
		c = store.Counts{
			Waiting: x.waiting(), Claimed: len(x.claims), Delivered: x.history.n, DeliveredBytes: x.keptBytes(),
		}
		for _, t := range x.history.tables {
			c.Delivered += t.sum.n
		}
		for _, l := range x.lanes {
			c.Dead, c.DeadBytes = c.Dead+l.dead.len, c.DeadBytes+l.dead.bytes
			c.Behind += l.behind.len
			c.OldestDead = earlier(c.OldestDead, l.dead.first().dueAt())
			c.Oldest = earlier(c.Oldest, l.head().Earliest())
		}
	})
	return c, err
}

// earlier returns the earlier of two times. Zero is no time.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// CountByDestination implements store.Inspector.
func (s *Store) CountByDestination(ctx context.Context, only ...string) iter.Seq2[store.DestinationCounts, error] {
	return store.Page(func() (all []store.DestinationCounts, err error) {
		err = s.view(ctx, func(x *index) {
			for name, l := range store.Among(x.lanes, only) {
				if l.waiting() > 0 {
					all = append(all, store.DestinationCounts{Destination: name, Waiting: l.waiting(), Claimed: l.claimed, Behind: l.behind.len, Bytes: l.fresh.bytes + l.retries.bytes + l.behind.bytes, Oldest: l.head().Earliest()})
				}
			}
		})
		return all, err
	})
}

// Close implements store.Store.
func (s *Store) Close() error {
	if !s.gate.Close() {
		return nil
	}
	s.janitor.cancel()
	s.running.Wait()
	s.writer.requests.Close()
	m := s.writer.manifest
	m.close()
	writeManifest(s.disk, m.mark) // an error does not matter: the marks only help to notice damage
	closeFiles(s)
	return nil
}

func closeFiles(s *Store) {
	for _, g := range s.index.segs {
		g.unpin()
	}
	for _, t := range slices.Concat(s.index.documents.tables, s.index.history.tables) {
		t.unpin()
	}
	if w := s.writer; w != nil {
		w.manifest.close()
		if w.reserve != nil {
			w.reserve.Close()
		}
	}
	s.lock.Close()
}

// Failing implements store.Maintained.
func (s *Store) Failing() map[string]time.Time { return s.upkeep.Failing() }

// lose removes a delivery that cannot be read. It logs that, unless all transitions find that the
// delivery has left its queue. d has the parts of the delivery that could be read.
func (s *Store) lose(d *store.Record, seq uint64, cause error, ts ...transition) {
	for i := range ts {
		ts[i].record.kind, ts[i].lost = kindGone, true
	}
	if n, err := s.transit(context.Background(), ts); n > 0 || err != nil {
		s.reader.complain("a delivery, or a dead letter, cannot be read and is lost", seq, d, cause)
	}
}

// Lost returns how many deliveries and dead letters were lost because they could not be read, since
// the folder was created. No other count includes them.
func (s *Store) Lost() int {
	s.index.mu.Lock()
	defer s.index.mu.Unlock()
	return s.index.losses
}

// transit commits transitions, and returns once they are durable. moved is the number of deliveries
// that were moved. The commit may use the reserve, unless it stores bodies.
func (s *Store) transit(ctx context.Context, ts []transition) (moved int, err error) {
	size, puts := int64(recordHeader), false
	for i := range ts {
		puts = puts || ts[i].record.whole()
		size += 16 + recordSize(len(ts[i].record.payload))
	}
	if err := s.writer.do(ctx, func(g *group) error { moved = g.transit(ts); return nil }, size, puts); err != nil {
		return 0, err
	}
	return moved, nil
}
