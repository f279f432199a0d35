package pgqueue

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/storekit"
)

// headsPage is how many destinations one query is about.
const headsPage = 1000

// A first says of both queues of a destination what the first unclaimed chunk is.
type first struct {
	destination  string
	fresh, retry unclaimed
}

// An unclaimed is a chunk that is not claimed; held is 0 if there is none.
type unclaimed struct {
	due  int64
	held int
}

func scanFirst(rs pgx.CollectableRow) (f first, err error) {
	var (
		name                 []byte
		due, held, due2, hd2 *int64
	)
	err = rs.Scan(&name, &due, &held, &due2, &hd2)
	f.destination = string(name)
	if due != nil {
		f.fresh = unclaimed{*due, int(*held)}
	}
	if due2 != nil {
		f.retry = unclaimed{*due2, int(*hd2)}
	}
	return f, err
}

// Heads implements webhook.Store. It may yield destinations that this node itself has changed.
// A look at all destinations forgets the lines that it does not find.
func (s *Store) Heads(ctx context.Context, all bool) iter.Seq2[webhook.Head, error] {
	return func(yield func(webhook.Head, error) bool) {
		began := time.Now()
		s.mu.Lock()
		names, at := slices.Collect(maps.Keys(s.news)), s.beginLook()
		all = all || s.allNew
		clear(s.news)
		s.allNew = false
		s.mu.Unlock()
		found, rest, after := make(map[string]bool), names, []byte{}
		ended := false // there are no more pages
		for h, err := range storekit.Pages("more", func(more string) (hs []webhook.Head, _ string, err error) {
			switch {
			case ended:
				return s.restOf(found, at, began), "", nil
			case all:
				hs, err = s.headsOf(ctx, s.sql.headsAfter, after, headsPage)
				if ended = len(hs) < headsPage; !ended {
					after = []byte(hs[headsPage-1].Destination)
				}
				return hs, more, err
			}
			some := rest[:min(len(rest), headsPage)]
			if rest = rest[len(some):]; len(rest) == 0 {
				more = ""
			}
			args := make([][]byte, len(some))
			for i, name := range some {
				args[i] = []byte(name)
			}
			hs, err = s.headsOf(ctx, s.sql.heads, args)
			return hs, more, err
		}) {
			found[h.Destination] = true
			if !yield(h, err) || err != nil {
				s.mu.Lock() // what was not yielded is still news
				s.allNew = s.allNew || all
				for _, name := range names {
					s.news[name] = true
				}
				s.mu.Unlock()
				s.signal()
				return
			}
		}
	}
}

// restOf returns the heads of what is in memory alone, at the end of a look at all destinations.
func (s *Store) restOf(found map[string]bool, at look, began time.Time) (hs []webhook.Head) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, l := range s.lines {
		if found[key.destination] {
			continue
		}
		if s.learn(l, unclaimed{}, at); len(l.free) == 0 && l.beyond == never {
			delete(s.lines, key)
			continue
		}
		found[key.destination] = true
		hs = append(hs, s.head(key.destination))
	}
	s.looked = time.Since(began)
	return hs
}

// headsOf returns the heads that a query finds, with those of what is in memory.
func (s *Store) headsOf(ctx context.Context, sql string, args ...any) (hs []webhook.Head, err error) {
	if err := s.calls.Enter(ctx); err != nil {
		return nil, err
	}
	defer s.calls.Leave()
	if names, ok := args[0].([][]byte); ok && len(names) == 0 {
		return nil, nil
	}
	s.mu.Lock()
	at := s.beginLook()
	s.mu.Unlock()
	var firsts []first
	var b pgx.Batch
	b.Queue(byIndex)
	b.Queue(sql, args...).Query(func(rows pgx.Rows) (err error) {
		firsts, err = pgx.CollectRows(rows, scanFirst)
		return err
	})
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	if err := s.pool.SendBatch(ctx, &b).Close(); err != nil {
		return nil, fmt.Errorf("pgqueue: looking for what is due: %w", oneLine(err))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range firsts {
		s.learn(s.lineOf(lineKey{f.destination, false}), f.fresh, at)
		s.learn(s.lineOf(lineKey{f.destination, true}), f.retry, at)
		hs = append(hs, s.head(f.destination))
	}
	return hs, nil
}

// head returns the head of a destination. The store is locked.
func (s *Store) head(name string) webhook.Head {
	h := webhook.Head{Destination: name}
	if l := s.lines[lineKey{name, false}]; l != nil {
		h.Fresh = l.next()
	}
	if l := s.lines[lineKey{name, true}]; l != nil {
		h.Retry = l.next()
	}
	return h
}

// Changed implements webhook.Store.
func (s *Store) Changed() <-chan struct{} { return s.changed }

func (s *Store) signal() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// heard notes that others have changed these destinations.
func (s *Store) heard(names iter.Seq[string]) {
	s.mu.Lock()
	for name := range names {
		s.news[name] = true
		for _, retries := range []bool{false, true} {
			if l := s.lines[lineKey{name, retries}]; l != nil {
				s.clock++
				l.clock, l.known = s.clock, 0
			}
		}
	}
	s.mu.Unlock()
	s.signal()
}

// heardAny notes that others may have changed any destination.
func (s *Store) heardAny() {
	s.mu.Lock()
	s.allNew = true
	s.epoch++
	s.mu.Unlock()
	s.signal()
}
