// Package store is a webhook.Store that is simple rather than fast: an example for those
// who write their own. It keeps everything in memory, and appends every change to a log
// file, one line of JSON for each, before it makes the change.
//
// One function, apply, makes the changes. Open calls it for every line of the log, and the
// methods call it for every line that they have appended, so the store is the same before
// and after a restart. Claims are not in the log: they end with the process.
//
// What it lacks: each call syncs the file, and calls wait for each other. The log never
// shrinks. Lists are copied whole before they are yielded. There is no bound, and nothing
// keeps a second process from opening the same file.
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

// How many puts are remembered, and how long, so that repeats are left out.
const (
	dedupMax    = 100_000
	dedupWindow = 24 * time.Hour
)

// Config configures a Store.
type Config struct {
	// Path is the file of the log. Open makes it if it is not there.
	Path string
	// NoSync leaves it to the operating system when the log reaches the disk. That is for
	// tests: a power cut loses deliveries.
	NoSync bool
}

// A Store is a webhook.Store.
type Store struct {
	config  Config
	changed chan struct{}

	mu       sync.Mutex // held during every call, the sync of the file included
	closed   bool
	failed   error // the log cannot be written any more
	log      *os.File
	size     int64  // of the log
	latest   uint64 // number that was given to an entry or a version of a setting
	entries  map[uint64]*entry
	queues   map[queue][]*entry // what is not claimed, in order; no queue is empty
	claims   map[uint64]*entry
	claim    uint64   // the latest
	dead     []*entry // in the order of their keys, in which they died
	settings map[string]webhook.Setting
	window   *storekit.Window
	news     map[string]bool // destinations for Heads(false)
}

// An entry is a delivery. It is a dead letter if it has a Key.
type entry struct {
	n uint64
	webhook.DeadLetter
}

// A queue names a queue.
type queue struct {
	destination string
	retries     bool
}

func (e *entry) queue() queue { return queue{e.Destination, !e.Expires.IsZero()} }

func inOrder(a, b *entry) int { return cmp.Or(a.Due.Compare(b.Due), cmp.Compare(a.n, b.n)) }

func byKey(a, b *entry) int { return strings.Compare(a.Key, b.Key) }

// A line is a line of the log. What its fields hold depends on Op.
type line struct {
	Op    string         `json:"op"`
	N     uint64         `json:"n,omitempty"`
	Data  []byte         `json:"data,omitempty"`
	Value []byte         `json:"value"`
	Why   webhook.Reason `json:"why,omitempty"`
	At    time.Time      `json:"at"`
}

// The values of line.Op.
const (
	opPut    = "put"    // N is the entry's number, Data the delivery, At the time
	opRetry  = "retry"  // Data is the delivery without its body
	opBury   = "bury"   // as opRetry; Why and At are those of the dead letter
	opRevive = "revive" // At is when the delivery is due
	opDrop   = "drop"   // the delivery or dead letter is gone
	opSet    = "set"    // N is the version, Data the name; the Value may be null
)

// Open opens the store that is kept in a file, or makes it.
func Open(c Config) (*Store, error) {
	s := &Store{
		config:   c,
		changed:  make(chan struct{}, 1),
		entries:  make(map[uint64]*entry),
		queues:   make(map[queue][]*entry),
		claims:   make(map[uint64]*entry),
		settings: make(map[string]webhook.Setting),
		window:   storekit.NewWindow(dedupMax, dedupWindow),
		news:     make(map[string]bool),
	}
	if err := s.read(); err != nil {
		return nil, fmt.Errorf("store: opening %s: %w", c.Path, err)
	}
	return s, nil
}

// read opens the log and makes the changes that are in it.
func (s *Store) read() (err error) {
	if s.log, err = os.OpenFile(s.config.Path, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600); err != nil {
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
			return s.log.Truncate(s.size) // a crash may have cut off a line: its call did not return
		} else if err != nil {
			return err
		}
		var l line
		if err := json.Unmarshal(text, &l); err != nil {
			return err
		}
		if err := s.apply(l); err != nil {
			return err
		}
		if l.Op == opPut {
			e := s.entries[l.N]
			s.window.Add(storekit.KeyOf(e.Destination, e.ID), l.At)
		}
		s.size += int64(len(text))
	}
}

// write appends lines to the log. After an error the log is as it was.
func (s *Store) write(ls []line) error {
	if s.failed != nil {
		return s.failed
	}
	var b bytes.Buffer
	for _, l := range ls {
		if err := json.NewEncoder(&b).Encode(l); err != nil {
			return err
		}
	}
	_, err := s.log.Write(b.Bytes())
	if err == nil && !s.config.NoSync {
		err = s.log.Sync()
	}
	if err != nil {
		s.failed = s.log.Truncate(s.size)
		return err
	}
	s.size += int64(b.Len())
	return nil
}

// commit writes lines, and makes their changes.
func (s *Store) commit(ls []line) error {
	if len(ls) == 0 {
		return nil
	}
	if err := s.write(ls); err != nil {
		return fmt.Errorf("store: %w", err)
	}
	for _, l := range ls {
		if err := s.apply(l); err != nil {
			return fmt.Errorf("store: %w", err) // cannot be: it was written a moment ago
		}
	}
	return nil
}

// apply makes the change that a line stands for.
func (s *Store) apply(l line) error {
	s.latest = max(s.latest, l.N)
	switch l.Op {
	case opSet:
		if name := string(l.Data); l.Value == nil {
			delete(s.settings, name)
		} else {
			s.settings[name] = webhook.Setting{Name: name, Value: l.Value, Version: l.N}
		}
		return nil
	case opPut:
		s.entries[l.N] = &entry{n: l.N}
	}
	e := s.entries[l.N]
	if e == nil {
		return fmt.Errorf("a line is about number %d, which is not there", l.N)
	}
	if l.Op != opPut {
		s.take(e)
	}
	switch l.Op {
	case opPut, opRetry, opBury:
		body := e.Body
		if err := e.Delivery.UnmarshalBinary(l.Data); err != nil {
			return err
		}
		if l.Op != opPut {
			e.Body = body
		}
		if l.Op == opBury {
			e.Reason, e.Died = l.Why, l.At
			e.Key = fmt.Sprintf("%016x%016x", uint64(l.At.UnixMicro())^1<<63, e.n) // sorts as they died
		}
	case opRevive:
		e.DeadLetter = webhook.DeadLetter{Delivery: e.Delivery}
		e.Due, e.Expires, e.Tries, e.Closed = l.At, time.Time{}, 0, nil
	case opDrop:
		delete(s.entries, l.N)
		return nil
	}
	s.place(e)
	return nil
}

// place puts an entry where it belongs: among the dead letters, or into its queue.
func (s *Store) place(e *entry) {
	if e.Key != "" {
		i, _ := slices.BinarySearchFunc(s.dead, e, byKey)
		s.dead = slices.Insert(s.dead, i, e)
		return
	}
	q := s.queues[e.queue()]
	i, _ := slices.BinarySearchFunc(q, e, inOrder)
	s.queues[e.queue()] = slices.Insert(q, i, e)
}

// take takes an entry out of where it is: claimed, among the dead letters, or in its queue.
func (s *Store) take(e *entry) {
	if e.Claim != 0 {
		delete(s.claims, e.Claim)
		e.Claim = 0
		return
	}
	if e.Key != "" {
		i, _ := slices.BinarySearchFunc(s.dead, e, byKey)
		s.dead = slices.Delete(s.dead, i, i+1)
		return
	}
	q := s.queues[e.queue()]
	i, _ := slices.BinarySearchFunc(q, e, inOrder)
	if q = slices.Delete(q, i, i+1); len(q) == 0 {
		delete(s.queues, e.queue())
	} else {
		s.queues[e.queue()] = q
	}
}

// hold claims an entry.
func (s *Store) hold(e *entry) uint64 {
	s.take(e)
	s.claim++
	e.Claim = s.claim
	s.claims[e.Claim] = e
	return e.Claim
}

// first returns when the first delivery of a queue is due, zero if there is none.
func (s *Store) first(q queue) time.Time {
	if es := s.queues[q]; len(es) > 0 {
		return es[0].Due
	}
	return time.Time{}
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
		out[i] = webhook.Result{Stored: s.window.Add(key, now)}
		if !out[i].Stored {
			continue
		}
		data, _ := ps[i].AppendBinary(nil) // Check found nothing wrong
		ls = append(ls, line{Op: opPut, N: s.latest + uint64(len(ls)) + 1, Data: data, At: now})
		added = append(added, key)
	}
	if err := s.commit(ls); err != nil {
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
		q := queue{w.Destination, w.Retries}
		for n := 0; n < w.Max && len(s.queues[q]) > 0 && !s.queues[q][0].Due.After(now); n++ {
			e := s.queues[q][0]
			if maxBytes -= int64(len(e.Body)); maxBytes < 0 && len(dst) > had {
				break // at the next want, too: maxBytes stays below zero
			}
			s.hold(e)
			dst = append(dst, e.Delivery)
		}
		w.Next = s.first(q)
	}
	return dst, nil
}

// Settle implements webhook.Store.
func (s *Store) Settle(ctx context.Context, ss []webhook.Settlement) (int, error) {
	if err := s.lock(ctx); err != nil {
		return 0, err
	}
	defer s.mu.Unlock()
	var ls []line
	var back []*entry
	claims := make(map[uint64]bool)
	n, wrong := len(ss), error(nil)
	for i := range ss {
		l, err := lineOf(&ss[i])
		if err != nil {
			n, wrong = i, err
			break
		}
		claim := ss[i].Delivery.Claim
		e := s.claims[claim]
		if e == nil || claims[claim] {
			continue
		}
		claims[claim] = true
		if l.N = e.n; ss[i].Verdict == webhook.Return {
			back = append(back, e)
		} else {
			ls = append(ls, l)
		}
	}
	if err := s.commit(ls); err != nil {
		return 0, err
	}
	for _, e := range back {
		s.take(e)
		s.place(e)
	}
	return n, wrong
}

// lineOf returns the line for a settlement, without its number.
func lineOf(by *webhook.Settlement) (line, error) {
	switch by.Verdict {
	case webhook.Done, webhook.Return:
		return line{Op: opDrop}, nil
	case webhook.Retry, webhook.Bury:
	default:
		return line{}, fmt.Errorf("store: settlement with verdict %d", by.Verdict)
	}
	d := by.Delivery
	d.Body = nil
	data, err := d.AppendBinary(nil)
	if by.Verdict == webhook.Bury {
		return line{Op: opBury, Data: data, Why: by.Reason, At: by.At}, err
	}
	return line{Op: opRetry, Data: data}, err
}

// Heads implements webhook.Store.
func (s *Store) Heads(ctx context.Context, all bool) iter.Seq2[webhook.Head, error] {
	return copied(ctx, s, func() (hs []webhook.Head) {
		names := s.news
		if all {
			names = make(map[string]bool)
			for q := range s.queues {
				names[q.destination] = true
			}
		}
		for name := range names {
			hs = append(hs, webhook.Head{Destination: name, Fresh: s.first(queue{name, false}), Retry: s.first(queue{name, true})})
		}
		clear(names)
		return hs
	})
}

// copied yields what list returns, which is called while the store is locked.
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
func (s *Store) Now() time.Time { return time.Now().UTC().Truncate(time.Microsecond) }

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
func (s *Store) DeadLetter(ctx context.Context, key string) (webhook.DeadLetter, error) {
	if err := s.lock(ctx); err != nil {
		return webhook.DeadLetter{}, err
	}
	defer s.mu.Unlock()
	if i, found := s.find(key); found {
		return s.dead[i].DeadLetter, nil
	}
	return webhook.DeadLetter{}, webhook.ErrNoDeadLetter
}

// find returns the index of the dead letter with a key, or where it would be.
func (s *Store) find(key string) (int, bool) {
	return slices.BinarySearchFunc(s.dead, &entry{DeadLetter: webhook.DeadLetter{Key: key}}, byKey)
}

// Dead implements webhook.Keeper.
func (s *Store) Dead(ctx context.Context, filter webhook.DeadFilter, after string) iter.Seq2[webhook.DeadLetter, error] {
	return copied(ctx, s, func() (ds []webhook.DeadLetter) {
		for _, e := range s.dead {
			if e.Key > after && filter.Match(&e.DeadLetter) {
				ds = append(ds, e.DeadLetter)
			}
		}
		return ds
	})
}

// Revive implements webhook.Keeper.
func (s *Store) Revive(ctx context.Context, keys ...string) (int, error) {
	return s.exhume(ctx, opRevive, keys)
}

// Discard implements webhook.Keeper.
func (s *Store) Discard(ctx context.Context, keys ...string) (int, error) {
	return s.exhume(ctx, opDrop, keys)
}

func (s *Store) exhume(ctx context.Context, op string, keys []string) (int, error) {
	if err := s.lock(ctx); err != nil {
		return 0, err
	}
	defer s.mu.Unlock()
	var ls []line
	for _, key := range slices.Compact(slices.Sorted(slices.Values(keys))) {
		if i, found := s.find(key); found {
			ls = append(ls, line{Op: op, N: s.dead[i].n, At: s.Now()})
		}
	}
	if err := s.commit(ls); err != nil || op != opRevive {
		return len(ls), err
	}
	for _, l := range ls {
		s.news[s.entries[l.N].Destination] = true
	}
	select {
	case s.changed <- struct{}{}:
	default: // it has a value that nobody has taken yet
	}
	return len(ls), nil
}

// Waiting implements webhook.Keeper.
func (s *Store) Waiting(ctx context.Context, destination, after string) iter.Seq2[webhook.Delivery, error] {
	return copied(ctx, s, func() (ds []webhook.Delivery) {
		var es []*entry
		for _, e := range s.entries {
			if e.Destination == destination && e.Key == "" {
				es = append(es, e)
			}
		}
		slices.SortFunc(es, inOrder)
		for _, e := range es[slices.IndexFunc(es, func(e *entry) bool { return e.ID == after })+1:] {
			ds = append(ds, e.Delivery)
		}
		return ds
	})
}

// Erase implements webhook.Keeper. The log keeps what was erased: to be rid of it, it would
// have to be written anew.
func (s *Store) Erase(ctx context.Context, user string) (erased, claimed int, err error) {
	if user == "" {
		return 0, 0, errors.New("store: erasure without a user")
	}
	if err := s.lock(ctx); err != nil {
		return 0, 0, err
	}
	defer s.mu.Unlock()
	var ls []line
	for n, e := range s.entries {
		switch {
		case e.User != user:
		case e.Claim != 0:
			claimed++
		default:
			ls = append(ls, line{Op: opDrop, N: n})
		}
	}
	if err := s.commit(ls); err != nil {
		return 0, 0, err
	}
	return len(ls), claimed, nil
}

// Count implements webhook.Keeper. DeadBytes are not known.
func (s *Store) Count(ctx context.Context) (webhook.Counts, error) {
	if err := s.lock(ctx); err != nil {
		return webhook.Counts{}, err
	}
	defer s.mu.Unlock()
	c := webhook.Counts{Waiting: len(s.entries) - len(s.dead), Claimed: len(s.claims), Dead: len(s.dead), DeadBytes: -1}
	if len(s.dead) > 0 {
		c.OldestDead = s.dead[0].Died
	}
	for q := range s.queues {
		if at := s.first(q); c.Oldest.IsZero() || at.Before(c.Oldest) {
			c.Oldest = at
		}
	}
	return c, nil
}

// CountByDestination implements webhook.Keeper.
func (s *Store) CountByDestination(ctx context.Context) iter.Seq2[webhook.DestinationCounts, error] {
	return copied(ctx, s, func() []webhook.DestinationCounts {
		counts := make(map[string]webhook.DestinationCounts)
		for _, e := range s.entries {
			if e.Key != "" {
				continue
			}
			c := counts[e.Destination]
			c.Destination = e.Destination
			if c.Waiting++; e.Claim != 0 {
				c.Claimed++
			} else if c.Oldest.IsZero() || e.Due.Before(c.Oldest) {
				c.Oldest = e.Due
			}
			counts[e.Destination] = c
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
	if n := len(e.Name); n < 1 || n > 512 || len(e.Value) > webhook.MaxSetting {
		return 0, fmt.Errorf("store: setting with a name of %d bytes and a value of %d", n, len(e.Value))
	}
	if err := s.lock(ctx); err != nil {
		return 0, err
	}
	defer s.mu.Unlock()
	if s.settings[e.Name].Version != e.Version {
		return 0, webhook.ErrConflict
	}
	l := line{Op: opSet, N: s.latest + 1, Data: []byte(e.Name), Value: bytes.Clone(e.Value)}
	return l.N, s.commit([]line{l})
}
