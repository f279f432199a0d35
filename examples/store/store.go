// Package store is a webhook.Store that is simple rather than fast: an example for those
// who write their own. It keeps everything in memory, and appends every change to a log
// file, one line of JSON for each, before it makes the change.
//
// One function, apply, makes the changes. Open calls it for every line of the log, and the
// methods call it for every line that they have appended, so the store is the same before
// and after a restart. Claims are not in the log: they end with the process.
//
// Its limits: each call syncs the file, goes through all deliveries, and waits for the
// calls before it. The log never shrinks. The store copies a whole list before it yields
// the first element. It bounds neither the number nor the size of the deliveries, and
// does not keep a second process from opening the same file.
//
// It passes the suite for stores, package queuetest; see store_test.go.
package store

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/storekit"
)

// The dedup window: how many puts the store remembers, and for how long.
const (
	dedupMax    = 100_000
	dedupWindow = 24 * time.Hour
)

// Config configures a Store.
type Config struct {
	// Path is the file of the log. Open makes it if it is not there.
	Path string
	// NoSync makes calls return before the log is on the disk. The operating system writes
	// the log later, so a loss of power loses deliveries. Set NoSync only in tests.
	NoSync bool
}

// A Store is a webhook.Store.
type Store struct {
	changed chan struct{}

	mu     sync.Mutex // held during every call, the sync of the file included
	closed bool
	window *storekit.Window
	news   map[string]bool // destinations that the next Heads with all = false yields

	log      *os.File
	size     int64  // of the log
	noSync   bool   // as in Config
	failed   error  // why the log cannot be written any more, or nil
	latest   uint64 // the latest number of an entry or of a version of a setting
	entries  entries
	settings map[string]webhook.Setting
	claims   map[uint64]*entry
	claim    uint64 // the number of the latest claim
}

// An entry is a delivery. An entry with a Key is a dead letter, and an entry without a
// Key is a waiting delivery. An entry with a Claim is claimed.
type entry struct {
	n uint64
	webhook.Ended
}

// entries holds entries by their numbers.
type entries map[uint64]*entry

// find returns the entries that want selects: first the waiting deliveries, in the order of Due,
// then the dead letters, in the order in which they died.
func (all entries) find(want func(e *entry) bool) (es []*entry) {
	for _, e := range all {
		if want(e) {
			es = append(es, e)
		}
	}
	slices.SortFunc(es, func(a, b *entry) int {
		if c := strings.Compare(a.Key, b.Key); c != 0 {
			return c
		}
		return cmp.Or(a.Due.Compare(b.Due), cmp.Compare(a.n, b.n))
	})
	return es
}

// A line is a line of the log. It holds the new state of an entry or of a setting.
type line struct {
	N    uint64         `json:"n"`              // the entry's number, or the setting's version
	Name []byte         `json:"name,omitempty"` // of a setting
	Data []byte         `json:"data"`           // delivery or value of a setting; null removes it
	Why  webhook.Reason `json:"why,omitempty"`  // of a dead letter
	At   time.Time      `json:"at"`             // when a dead letter died; otherwise the line's time

	NoDedup bool `json:"noDedup,omitempty"` // as in the webhook.Put of the delivery
}

// lineOf returns the line of the log that stores d as the delivery of the entry with
// the number n.
func lineOf(n uint64, d webhook.Delivery) line {
	data, _ := d.AppendBinary(nil) // no error, because Check has accepted the delivery
	return line{N: n, Data: data, At: now()}
}

// now returns the time to the microsecond.
func now() time.Time { return time.Now().UTC().Truncate(time.Microsecond) }

// Open opens the store whose log is the file c.Path. It makes the file if it is not there.
func Open(c Config) (*Store, error) {
	s := &Store{
		changed:  make(chan struct{}, 1),
		window:   storekit.NewWindow(dedupMax, dedupWindow),
		news:     make(map[string]bool),
		noSync:   c.NoSync,
		entries:  make(entries),
		settings: make(map[string]webhook.Setting),
		claims:   make(map[uint64]*entry),
	}
	if err := s.read(c.Path); err != nil {
		return nil, fmt.Errorf("store: opening %s: %w", c.Path, err)
	}
	return s, nil
}

// read opens the log, and applies each of its lines to the store.
func (s *Store) read(path string) (err error) {
	if s.log, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			s.log.Close()
		}
	}()
	for r := bufio.NewReader(s.log); ; {
		text, err := r.ReadBytes('\n')
		if err == io.EOF {
			return s.log.Truncate(s.size) // drop a line that a crash cut off: its call did not return
		} else if err != nil {
			return err
		}
		var l line
		if err := json.Unmarshal(text, &l); err != nil {
			return err
		}
		known := s.entries[l.N] != nil
		if err := s.apply(l); err != nil {
			return err
		}
		if e := s.entries[l.N]; e != nil && !known && !l.NoDedup {
			s.window.Add(storekit.KeyOf(e.Destination, e.ID), l.At)
		}
		s.size += int64(len(text))
	}
}

// commit appends lines to the log, and then applies them. If the log cannot be written, commit
// leaves it as it was, and returns an error.
func (s *Store) commit(ls ...line) error {
	if len(ls) == 0 || s.failed != nil {
		return s.failed
	}
	var b bytes.Buffer
	for _, l := range ls {
		if err := json.NewEncoder(&b).Encode(l); err != nil {
			return fmt.Errorf("store: %w", err)
		}
	}
	_, err := s.log.Write(b.Bytes())
	if err == nil && !s.noSync {
		err = s.log.Sync()
	}
	if err != nil {
		s.failed = s.log.Truncate(s.size)
		return fmt.Errorf("store: %w", err)
	}
	s.size += int64(b.Len())
	for _, l := range ls {
		if err := s.apply(l); err != nil {
			return fmt.Errorf("store: %w", err) // cannot happen: Encode made the line above
		}
	}
	return nil
}

// apply changes the store as a line says. If the line is about a claimed entry, apply
// ends the claim.
func (s *Store) apply(l line) error {
	s.latest = max(s.latest, l.N)
	if was := s.entries[l.N]; was != nil {
		delete(s.claims, was.Claim)
	}
	switch {
	case l.Name != nil && l.Data == nil:
		delete(s.settings, string(l.Name))
	case l.Name != nil:
		s.settings[string(l.Name)] = webhook.Setting{Name: string(l.Name), Value: l.Data, Version: l.N}
	case l.Data == nil:
		delete(s.entries, l.N)
	default:
		e := &entry{n: l.N}
		if l.Why != "" {
			e.Reason, e.At = l.Why, l.At
			e.Key = fmt.Sprintf("%016x%016x", uint64(l.At.UnixMicro())^1<<63, l.N) // in order of death
		}
		s.entries[l.N] = e
		return e.Delivery.UnmarshalBinary(l.Data)
	}
	return nil
}

// hold claims an entry.
func (s *Store) hold(e *entry) uint64 {
	s.claim++
	e.Claim = s.claim
	s.claims[e.Claim] = e
	return e.Claim
}

// lock locks s.mu for a call, unless its context has ended or the store is closed.
func (s *Store) lock(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return webhook.ErrClosed
	}
	return nil
}

// Put implements webhook.Store.
func (s *Store) Put(ctx context.Context, ps []webhook.Put, out []webhook.Result) error {
	for i := range ps {
		if err := ps[i].Check(); err != nil {
			return err
		}
	}
	if err := s.lock(ctx); err != nil {
		return err
	}
	defer s.mu.Unlock()
	now := s.Now()
	var ls []line
	var added []storekit.Key
	for i := range ps {
		key := storekit.KeyOf(ps[i].Destination, ps[i].ID)
		out[i] = webhook.Result{Stored: ps[i].NoDedup || s.window.Add(key, now)}
		if !out[i].Stored {
			continue
		}
		l := lineOf(s.latest+uint64(len(ls))+1, ps[i].Delivery)
		if l.NoDedup = ps[i].NoDedup; !l.NoDedup {
			added = append(added, key)
		}
		ls = append(ls, l)
	}
	if err := s.commit(ls...); err != nil {
		for _, key := range added {
			s.window.Remove(key)
		}
		return err
	}
	for i := range ps {
		if out[i].Stored {
			if ps[i].Keep {
				out[i].Claim = s.hold(s.entries[ls[0].N])
			}
			ls = ls[1:]
		}
	}
	return nil
}

// Fetch implements webhook.Store.
func (s *Store) Fetch(ctx context.Context, wants []webhook.Want, maxBytes int64, dst []webhook.Delivery) ([]webhook.Delivery, error) {
	if err := s.lock(ctx); err != nil {
		return dst, err
	}
	defer s.mu.Unlock()
	now, had := s.Now(), len(dst)
	for i := range wants {
		w := &wants[i]
		w.Next = time.Time{}
		left := w.Max
		for _, e := range s.entries.find(func(e *entry) bool {
			return e.Key == "" && e.Claim == 0 && e.Destination == w.Destination && e.Expires.IsZero() != w.Retries
		}) {
			size := int64(len(e.Body))
			if left == 0 || e.Due.After(now) || maxBytes < size && len(dst) > had {
				w.Next = e.Due
				break
			}
			s.hold(e)
			dst = append(dst, e.Delivery)
			left--
			maxBytes -= size
		}
	}
	return dst, nil
}

// Settle implements webhook.Store.
func (s *Store) Settle(ctx context.Context, ss []webhook.Settlement) (int, error) {
	if err := s.lock(ctx); err != nil {
		return 0, err
	}
	defer s.mu.Unlock()
	for i := range ss {
		if err := s.settle(&ss[i]); err != nil {
			return i, fmt.Errorf("store: %w", err)
		}
	}
	return len(ss), nil
}

func (s *Store) settle(by *webhook.Settlement) error {
	if err := by.Check(); err != nil {
		return err
	}
	d := &by.Delivery
	e := s.claims[d.Claim]
	if e == nil {
		return nil
	}
	l := line{N: e.n, At: s.Now()}
	switch then := e.Delivery; by.Verdict {
	case webhook.Return:
		delete(s.claims, e.Claim)
		e.Claim = 0
		return nil
	case webhook.Retry, webhook.Bury:
		then.Tries, then.Closed, then.Attempts = d.Tries, d.Closed, d.Attempts
		if by.Verdict == webhook.Retry {
			then.Due, then.Expires = d.Due, d.Expires
		}
		if l = lineOf(e.n, then); by.Verdict == webhook.Bury {
			l.Why, l.At = by.Reason, by.At
		}
	}
	return s.commit(l)
}

// Heads implements webhook.Store.
func (s *Store) Heads(ctx context.Context, all bool) iter.Seq2[webhook.Head, error] {
	return copied(ctx, s, func() (hs []webhook.Head) {
		heads := make(map[string]webhook.Head)
		for name := range s.news {
			heads[name] = webhook.Head{Destination: name}
		}
		for _, e := range s.entries.find(func(e *entry) bool { return e.Key == "" && e.Claim == 0 && (all || s.news[e.Destination]) }) {
			h := heads[e.Destination]
			h.Destination = e.Destination
			if e.Expires.IsZero() {
				h.Fresh = cmp.Or(h.Fresh, e.Due)
			} else {
				h.Retry = cmp.Or(h.Retry, e.Due)
			}
			heads[h.Destination] = h
		}
		if !all {
			clear(s.news)
		}
		return slices.Collect(maps.Values(heads))
	})
}

// copied calls list with the store locked, and yields the result afterwards.
func copied[T any](ctx context.Context, s *Store, list func() []T) iter.Seq2[T, error] {
	return storekit.Page(func() ([]T, error) {
		if err := s.lock(ctx); err != nil {
			return nil, err
		}
		defer s.mu.Unlock()
		return list(), nil
	})
}

// Changed implements webhook.Store.
func (s *Store) Changed() <-chan struct{} { return s.changed }

// Now implements webhook.Store.
func (s *Store) Now() time.Time { return now() }

// Close implements webhook.Store.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	return s.log.Close()
}

// DeadLetter implements webhook.Keeper.
func (s *Store) DeadLetter(ctx context.Context, key string) (webhook.Ended, error) {
	if err := s.lock(ctx); err != nil {
		return webhook.Ended{}, err
	}
	defer s.mu.Unlock()
	es := s.entries.find(withKey([]string{key}))
	if len(es) == 0 {
		return webhook.Ended{}, webhook.ErrNoDeadLetter
	}
	return es[0].Ended, nil
}

// Dead implements webhook.Keeper.
func (s *Store) Dead(ctx context.Context, filter webhook.EndedFilter, after string) iter.Seq2[webhook.Ended, error] {
	return copied(ctx, s, func() (ds []webhook.Ended) {
		for _, e := range s.entries.find(func(e *entry) bool {
			behind := e.Key > after
			if filter.NewestFirst {
				behind = e.Key != "" && (after == "" || e.Key < after)
			}
			return behind && filter.Match(&e.Ended)
		}) {
			ds = append(ds, e.Ended)
		}
		if filter.NewestFirst {
			slices.Reverse(ds)
		}
		return ds
	})
}

// Revive implements webhook.Keeper.
func (s *Store) Revive(ctx context.Context, keys ...string) (int, error) {
	n, _, err := s.change(ctx, withKey(keys), func(e *entry) (line, bool) {
		d := e.Delivery
		d.Due, d.Expires, d.Tries, d.Closed = s.Now(), time.Time{}, 0, nil
		s.news[d.Destination] = true
		return lineOf(e.n, d), true
	})
	return n, err
}

// Discard implements webhook.Keeper.
func (s *Store) Discard(ctx context.Context, keys ...string) (int, error) {
	n, _, err := s.change(ctx, withKey(keys), removal)
	return n, err
}

// withKey returns a function that selects the dead letters with these keys.
func withKey(keys []string) func(*entry) bool {
	return func(e *entry) bool { return e.Key != "" && slices.Contains(keys, e.Key) }
}

// removal returns the line of the log that removes an entry.
func removal(e *entry) (line, bool) { return line{N: e.n, At: now()}, true }

// Waiting implements webhook.Keeper.
func (s *Store) Waiting(ctx context.Context, destination, after string) iter.Seq2[webhook.Delivery, error] {
	return copied(ctx, s, func() (ds []webhook.Delivery) {
		es := s.entries.find(func(e *entry) bool { return e.Destination == destination && e.Key == "" })
		for _, e := range es[slices.IndexFunc(es, func(e *entry) bool { return e.ID == after })+1:] {
			ds = append(ds, e.Delivery)
		}
		return ds
	})
}

// Erase implements webhook.Keeper. The log keeps the erased data, because removing it would mean
// rewriting the log.
func (s *Store) Erase(ctx context.Context, user string) (erased, claimed int, err error) {
	if user == "" {
		return 0, 0, errors.New("store: erasure without a user")
	}
	return s.change(ctx, func(e *entry) bool { return e.User == user }, removal)
}

// Change implements webhook.Keeper.
func (s *Store) Change(ctx context.Context, filter webhook.WaitingFilter, to webhook.Change) (n, claimed int, err error) {
	if err := to.Check(&filter); err != nil {
		return 0, 0, err
	}
	return s.change(ctx, func(e *entry) bool { return e.Key == "" && filter.Match(&e.Delivery) }, func(e *entry) (line, bool) {
		if to == webhook.Discarded {
			return removal(e)
		}
		d := e.Delivery
		if !d.Hasten(s.Now()) {
			return line{}, false
		}
		s.news[d.Destination] = true
		return lineOf(e.n, d), true
	})
}

// change writes a line to the log for each entry that matches and is not claimed, and signals
// Changed. The function become makes the line, or returns false to leave the entry as it is. change
// returns how many entries it has changed, and how many matching entries are claimed.
func (s *Store) change(ctx context.Context, match func(*entry) bool, become func(*entry) (line, bool)) (n, claimed int, err error) {
	if err := s.lock(ctx); err != nil {
		return 0, 0, err
	}
	defer s.mu.Unlock()
	var ls []line
	for _, e := range s.entries.find(match) {
		if e.Claim != 0 {
			claimed++
		} else if l, changes := become(e); changes {
			ls = append(ls, l)
		}
	}
	if err := s.commit(ls...); err != nil {
		return 0, claimed, err
	}
	select {
	case s.changed <- struct{}{}:
	default: // a signal is already waiting
	}
	return len(ls), claimed, nil
}

// Count implements webhook.Keeper. DeadBytes are not known.
func (s *Store) Count(ctx context.Context) (webhook.Counts, error) {
	if err := s.lock(ctx); err != nil {
		return webhook.Counts{}, err
	}
	defer s.mu.Unlock()
	c := webhook.Counts{DeadBytes: -1}
	for _, e := range s.entries.find(func(*entry) bool { return true }) {
		switch {
		case e.Key != "":
			c.Dead++
			c.OldestDead = cmp.Or(c.OldestDead, e.At)
			continue
		case e.Claim != 0:
			c.Claimed++
		default:
			c.Oldest = cmp.Or(c.Oldest, e.Due)
		}
		c.Waiting++
	}
	return c, nil
}

// CountByDestination implements webhook.Keeper.
func (s *Store) CountByDestination(ctx context.Context) iter.Seq2[webhook.DestinationCounts, error] {
	return copied(ctx, s, func() []webhook.DestinationCounts {
		counts := make(map[string]webhook.DestinationCounts)
		for _, e := range s.entries.find(func(e *entry) bool { return e.Key == "" }) {
			c := counts[e.Destination]
			c.Destination = e.Destination
			if c.Waiting++; e.Claim != 0 {
				c.Claimed++
			} else {
				c.Oldest = cmp.Or(c.Oldest, e.Due)
			}
			counts[c.Destination] = c
		}
		return slices.Collect(maps.Values(counts))
	})
}

// Settings implements webhook.Keeper.
func (s *Store) Settings(ctx context.Context, prefix string) iter.Seq2[webhook.Setting, error] {
	return copied(ctx, s, func() (found []webhook.Setting) {
		for _, name := range slices.Sorted(maps.Keys(s.settings)) {
			if strings.HasPrefix(name, prefix) {
				found = append(found, s.settings[name])
			}
		}
		return found
	})
}

// Set implements webhook.Keeper.
func (s *Store) Set(ctx context.Context, e webhook.Setting) (uint64, error) {
	if err := e.Check(); err != nil {
		return 0, fmt.Errorf("store: %w", err)
	}
	if err := s.lock(ctx); err != nil {
		return 0, err
	}
	defer s.mu.Unlock()
	if s.settings[e.Name].Version != e.Version {
		return 0, webhook.ErrConflict
	}
	l := line{N: s.latest + 1, Name: []byte(e.Name), Data: bytes.Clone(e.Value), At: s.Now()}
	return l.N, s.commit(l)
}
