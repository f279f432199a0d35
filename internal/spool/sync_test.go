package spool_test

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hookferry/analytics/internal/spool"
)

func TestCommitSyncsTheMessagesOfAllGoroutines(t *testing.T) {
	eachMode(t, func(t *testing.T, c spool.Config) {
		c.Sync = spool.SyncEach
		c.MaxMessages, c.MaxData = 500, 1<<14
		path := t.TempDir()
		d, _ := open(t, path, c)
		s := newSegment(t, d)
		var mu sync.Mutex
		var all sync.WaitGroup
		for g := range 8 {
			all.Go(func() {
				for i := range 20 {
					m := fmt.Appendf(nil, "%d", 1000*g+i)
					mu.Lock()
					err := s.Append(m, spool.Checksum(m))
					n := s.Len()
					mu.Unlock()
					if err != nil {
						t.Errorf("Append: %v", err)
					}
					if err := s.Commit(n); err != nil {
						t.Errorf("Commit: %v", err)
					}
				}
			})
		}
		all.Wait()
		if n := spool.Synced(s); n != 160 {
			t.Errorf("%d messages are synced, want 160", n)
		}
		remove(t, s)
		if err := s.Commit(160); err != nil {
			t.Errorf("Commit after Remove: %v", err)
		}
	})
}

// One sync covers all messages that were appended before it. So the later Commits of these
// messages have nothing to do.
func TestOneCommitSyncsAllEarlierMessages(t *testing.T) {
	eachMode(t, func(t *testing.T, c spool.Config) {
		c.Sync = spool.SyncEach
		d, _ := open(t, t.TempDir(), c)
		s := newSegment(t, d, "1", "2", "3")
		for n := 1; n <= 3; n++ {
			if err := s.Commit(n); err != nil {
				t.Error(err)
			}
			equal(t, "synced messages", spool.Synced(s), 3)
		}
	})
}

func TestCommitDoesNotSyncWithoutSyncEach(t *testing.T) {
	eachMode(t, func(t *testing.T, c spool.Config) {
		d, _ := open(t, t.TempDir(), c)
		s := newSegment(t, d, "1")
		if err := s.Commit(1); err != nil {
			t.Error(err)
		}
		equal(t, "synced messages", spool.Synced(s), 0)
	})
}

func TestMessagesAreSyncedAfterEachInterval(t *testing.T) {
	for _, plain := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			c := small()
			c.Sync = time.Second
			if plain {
				spool.Plain(&c)
			}
			d, _ := open(t, t.TempDir(), c)
			s := newSegment(t, d, "1")
			after := func(wait time.Duration, synced int) {
				t.Helper()
				time.Sleep(wait)
				synctest.Wait()
				equal(t, "synced messages", spool.Synced(s), synced)
			}
			after(time.Second-time.Nanosecond, 0)
			after(time.Nanosecond, 1)
			after(5*time.Second, 1)
			add(t, s, "2")
			add(t, s, "3")
			after(time.Second, 3)
			add(t, s, "4")
			if err := s.Unload(); err != nil {
				t.Error(err)
			}
			after(0, 4)
			closeDir(t, d)
		})
	}
}
