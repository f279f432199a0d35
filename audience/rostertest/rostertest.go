// Package rostertest tests an audience.Roster. It has a case for each part of the contract
// of Roster, compares random operations with a model, and runs syncs that crash or that run
// on two nodes.
//
//	func TestRoster(t *testing.T) {
//		rostertest.Run(t, open, rostertest.Traits{Durable: true})
//	}
package rostertest

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/hookferry/analytics/audience"
	"github.com/hookferry/analytics/webhook"
)

// A Store is a Roster that can be closed.
type Store interface {
	audience.Roster
	Close() error
}

// Open opens the store in dir, which is an empty folder or one that was opened before. If Open
// fails, it fails the test.
type Open = func(t testing.TB, dir string) Store

// Traits says what a store can do.
type Traits struct {
	// Durable: the store keeps its data until the same folder is opened again.
	Durable bool
	// Bubble: the cases may run in synctest bubbles.
	Bubble bool
	// Share: several stores may have the same folder open at once.
	Share bool
}

// A kit holds the store and the test of one case.
type kit struct {
	*testing.T
	ctx    context.Context
	open   Open
	traits Traits
	dir    string
	s      Store
}

// Run runs all cases, each as a subtest with its own store.
func Run(t *testing.T, open Open, traits Traits) {
	for _, c := range []struct {
		name     string
		sentence string
		run      func(k *kit)
	}{
		{"Model", "UpdateAudience stores the changes that f makes to the record and the members. Get returns a Member for each user. Next returns the first max members after an id. An audience has an id of 1 to 767 bytes. A member is a user id of 1 to 255 bytes. A name has up to 255 bytes.", model},
		{"Refused", "If f returns an error, the audience stays as it was, and the error wraps that of f.", refused},
		{"Many", "Members yields the members, in the order of their bytes. Audiences yields the audiences in the order of the bytes of their ids.", many},
		{"Ended", "After Close the methods return webhook.ErrClosed. If their context has ended, they return its error.", ended},
		{"Crash", "After a crash, only the chunk in flight may be announced twice, with the same ids.", crash},
		{"Nodes", "The latest generation owns the audience.", nodes},
	} {
		t.Run(c.name, func(t *testing.T) {
			body := func(t *testing.T) {
				k := &kit{T: t, ctx: t.Context(), open: open, traits: traits, dir: t.TempDir()}
				k.s = open(t, k.dir)
				defer func() {
					if err := k.s.Close(); err != nil {
						t.Errorf("Close: %v", err)
					}
					if t.Failed() {
						t.Logf("the contract: %s", c.sentence)
					}
				}()
				c.run(k)
			}
			if traits.Bubble {
				synctest.Test(t, body)
			} else {
				body(t)
			}
		})
	}
}

// restart closes the store and opens it again, if it is durable.
func (k *kit) restart() {
	k.Helper()
	if !k.traits.Durable {
		return
	}
	if err := k.s.Close(); err != nil {
		k.Fatalf("Close: %v", err)
	}
	k.s = k.open(k.T, k.dir)
}

func all[T any](k *kit, seq iter.Seq2[T, error]) (vs []T) {
	k.Helper()
	for v, err := range seq {
		if err != nil {
			k.Fatal(err)
		}
		vs = append(vs, v)
	}
	return vs
}

func (k *kit) diff(what string, want, got any) {
	k.Helper()
	if d := cmp.Diff(want, got, cmpopts.EquateEmpty()); d != "" {
		k.Fatalf("%s (-want +got)\n%s", what, d)
	}
}

// update calls UpdateAudience. f returns the error of Members.
func (k *kit) update(id string, f func(rec *audience.Record, members audience.Members) error) {
	k.Helper()
	if err := k.s.UpdateAudience(k.ctx, id, f); err != nil {
		k.Fatalf("UpdateAudience(%q): %v", id, err)
	}
}

// create stores an audience of the generation 1 with these members.
func (k *kit) create(id string, users ...string) {
	k.Helper()
	k.update(id, func(rec *audience.Record, members audience.Members) error {
		rec.Name, rec.Generation = "name of "+id, 1
		if len(users) == 0 {
			return nil
		}
		return members.Set(users, 1)
	})
}

func (k *kit) members(id string, want ...string) {
	k.Helper()
	k.diff("Members of "+id, want, all(k, k.s.Members(k.ctx, id)))
}

// model does random operations on a few audiences, and compares the results with a model.
func model(k *kit) {
	type modelled struct {
		record audience.Record
		seen   map[string]uint64 // the generations of the members
	}
	r := rand.New(rand.NewPCG(1, 0))
	ids := []string{"a\x00", "a\x00b", strings.Repeat("\xff", 767)}
	models := make([]modelled, len(ids))
	pool := []string{"\x00", "\x00\xff", ".*>", "ü", strings.Repeat("u", audience.MaxUser), strings.Repeat("\xff", audience.MaxUser)}
	for i := range 40 {
		pool = append(pool, fmt.Sprintf("u%02d", i))
	}
	for step := range 400 {
		i := r.IntN(len(ids))
		id, m := ids[i], &models[i]
		if m.seen == nil {
			m.seen = make(map[string]uint64)
		}
		users := make([]string, 1+r.IntN(20))
		for i := range users {
			users[i] = pool[r.IntN(len(pool))]
		}
		slices.Sort(users)
		users = slices.Compact(users)
		after, max := pool[r.IntN(len(pool))], 1+r.IntN(20)
		if r.IntN(2) == 0 {
			after = ""
		}
		name, generation, left := "name of "+id, m.record.Generation+1, r.IntN(3) == 0
		changed := audience.Record{
			Name: name[:min(255, len(name))], Generation: generation,
			InFlight: audience.Chunk{Generation: generation, At: time.UnixMilli(int64(step)).UTC(), Left: left, Users: users},
		}
		if left {
			generation = 0
		}
		var record audience.Record
		var found, next []audience.Member
		k.update(id, func(rec *audience.Record, members audience.Members) (err error) {
			record, *rec = *rec, changed
			if next, err = members.Next(after, max); err != nil {
				return err
			}
			if found, err = members.Get(users); err != nil {
				return err
			}
			return members.Set(users, generation)
		})
		var wantFound, wantNext []audience.Member
		for _, user := range users {
			wantFound = append(wantFound, audience.Member{User: user, Generation: m.seen[user]})
		}
		for _, user := range slices.Sorted(maps.Keys(m.seen)) {
			if user > after && len(wantNext) < max {
				wantNext = append(wantNext, audience.Member{User: user, Generation: m.seen[user]})
			}
		}
		k.diff("the record", m.record, record)
		k.diff("Get", wantFound, found)
		k.diff(fmt.Sprintf("Next(%q, %d)", after, max), wantNext, next)
		m.record = changed
		for _, user := range users {
			if m.seen[user] = generation; generation == 0 {
				delete(m.seen, user)
			}
		}
		if step%20 == 0 {
			k.restart()
			var entries []audience.Entry
			for i, m := range models {
				if rec := &m.record; rec.Generation > 0 {
					entries = append(entries, audience.Entry{ID: ids[i], Name: rec.Name, Generation: rec.Generation})
				}
				k.members(ids[i], slices.Sorted(maps.Keys(m.seen))...)
			}
			k.diff("Audiences", entries, all(k, k.s.Audiences(k.ctx)))
		}
	}
}

func refused(k *kit) {
	failed := errors.New("refused")
	refuse := func(rec *audience.Record, _ audience.Members) error {
		rec.Name, rec.Generation = "another", rec.Generation+1
		return failed
	}
	k.create("vip", "a", "b")
	for _, id := range []string{"vip", "other"} {
		if err := k.s.UpdateAudience(k.ctx, id, refuse); !errors.Is(err, failed) {
			k.Errorf("UpdateAudience(%q) = %v, want the error of f", id, err)
		}
	}
	k.restart()
	k.members("vip", "a", "b")
	k.members("other")
	k.diff("Audiences", []audience.Entry{{ID: "vip", Name: "name of vip", Generation: 1}}, all(k, k.s.Audiences(k.ctx)))
}

func many(k *kit) {
	var users []string
	for i := range 2500 { // more than one page of a store
		users = append(users, fmt.Sprintf("%x-%s", i*i, strings.Repeat("u", 200)))
	}
	slices.Sort(users)
	for chunk := range slices.Chunk(users, 2048) {
		k.create("vip", chunk...)
	}
	k.members("vip", users...)
	for range k.s.Members(k.ctx, "vip") {
		break
	}
	want := []audience.Entry{}
	for i := range 1100 {
		id := fmt.Sprintf("a\x00%04d", i)
		k.create(id)
		want = append(want, audience.Entry{ID: id, Name: "name of " + id, Generation: 1})
	}
	k.restart()
	k.diff("Audiences", append(want, audience.Entry{ID: "vip", Name: "name of vip", Generation: 1}), all(k, k.s.Audiences(k.ctx)))
}

func ended(k *kit) {
	calls := func(ctx context.Context, want error) {
		k.Helper()
		errs := []error{k.s.UpdateAudience(ctx, "vip", func(*audience.Record, audience.Members) error { return nil })}
		for _, err := range k.s.Members(ctx, "vip") {
			errs = append(errs, err)
		}
		for _, err := range k.s.Audiences(ctx) {
			errs = append(errs, err)
		}
		if len(errs) != 3 {
			k.Fatalf("%d errors, want 3", len(errs))
		}
		for i, err := range errs {
			if !errors.Is(err, want) {
				k.Errorf("call %d: %v, want %v", i, err, want)
			}
		}
	}
	k.create("vip")
	ctx, cancel := context.WithCancel(k.ctx)
	cancel()
	calls(ctx, context.Canceled)
	if err := k.s.Close(); err != nil {
		k.Fatal(err)
	}
	calls(k.ctx, webhook.ErrClosed)
}
