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
		{"Model", "Join sets the generation of members and returns the other users. Leave returns the members with an older generation. Confirm changes the members. Begin returns the chunk in flight.", model},
		{"Superseded", "Join, Leave and Confirm of an older generation, or of one that Begin did not return, change nothing and return ErrSuperseded.", superseded},
		{"InFlight", "Join and Leave with a chunk in flight are an error.", inFlight},
		{"Limits", "An audience has an id of 1 to 767 bytes. A member is a user id of 1 to 255 bytes. A name has up to 255 bytes.", limits},
		{"Many", "Members yields the members whose ids are greater than the argument after, in the order of their bytes. Audiences yields the audiences in the order of the bytes of their ids.", many},
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
	if d := cmp.Diff(want, got, cmpopts.EquateEmpty(), cmpopts.IgnoreFields(audience.Chunk{}, "At")); d != "" {
		k.Fatalf("%s (-want +got)\n%s", what, d)
	}
}

func (k *kit) begin(id string, want uint64) audience.Chunk {
	k.Helper()
	generation, c, err := k.s.Begin(k.ctx, id, "name of "+id)
	if generation != want || err != nil {
		k.Fatalf("Begin(%q) = %d, %v, want %d", id, generation, err, want)
	}
	return c
}

func (k *kit) join(id string, generation uint64, users ...string) audience.Chunk {
	k.Helper()
	c, err := k.s.Join(k.ctx, id, generation, users)
	if err != nil {
		k.Fatalf("Join(%q): %v", id, err)
	}
	return c
}

func (k *kit) confirm(id string, generation uint64, n int) {
	k.Helper()
	if err := k.s.Confirm(k.ctx, id, generation, n); err != nil {
		k.Fatalf("Confirm(%q): %v", id, err)
	}
}

func (k *kit) leave(id string, generation uint64, after string, max int) (audience.Chunk, string) {
	k.Helper()
	c, last, err := k.s.Leave(k.ctx, id, generation, after, max)
	if err != nil {
		k.Fatalf("Leave(%q): %v", id, err)
	}
	return c, last
}

func (k *kit) members(id string, want ...string) {
	k.Helper()
	k.diff("Members of "+id, want, all(k, k.s.Members(k.ctx, id, "")))
}

// changes calls the three methods that change an audience in a generation, and returns their
// errors.
func (k *kit) changes(ctx context.Context, id string, generation uint64, user string) []error {
	_, join := k.s.Join(ctx, id, generation, []string{user})
	_, _, leave := k.s.Leave(ctx, id, generation, "", 10)
	return []error{join, leave, k.s.Confirm(ctx, id, generation, 1)}
}

// modelled is the expected state of an audience.
type modelled struct {
	record audience.Record
	seen   map[string]uint64
}

// model does random operations on a few audiences, and compares the results with a model.
func model(k *kit) {
	const audiences = 3
	r := rand.New(rand.NewPCG(1, 0))
	models := make(map[string]*modelled)
	var pool []string
	for i := range 40 {
		pool = append(pool, fmt.Sprintf("u%02d", i))
	}
	pool = append(pool, "\x00", "\x00\xff", ".*>", "ü", strings.Repeat("u", audience.MaxUser))
	for step := range 400 {
		id := fmt.Sprintf("a\x00%d", r.IntN(audiences))
		m := models[id]
		if m == nil {
			m = &modelled{seen: make(map[string]uint64)}
			m.record.Name = "name of " + id
			models[id] = m
		}
		rec := &m.record
		op := r.IntN(10)
		if len(rec.InFlight.Users) > 0 && op < 6 {
			op = 6
		}
		switch {
		case rec.Generation == 0 || op == 9:
			rec.Generation++
			k.diff("the chunk in flight", rec.InFlight, k.begin(id, rec.Generation))
		case op < 4:
			var some []string
			for range r.IntN(20) {
				some = append(some, pool[r.IntN(len(pool))])
			}
			var joining []string
			for _, user := range slices.Compact(slices.Sorted(slices.Values(some))) {
				if _, member := m.seen[user]; member {
					m.seen[user] = rec.Generation
				} else {
					joining = append(joining, user)
				}
			}
			rec.InFlight = audience.NewChunk(rec.Generation, false, joining)
			k.diff("Join", rec.InFlight, k.join(id, rec.Generation, some...))
		case op < 6:
			after, max := pool[r.IntN(len(pool))], 1+r.IntN(20)
			if r.IntN(2) == 0 {
				after = ""
			}
			users := slices.DeleteFunc(slices.Sorted(maps.Keys(m.seen)), func(u string) bool { return u <= after })
			want := ""
			if len(users) > max {
				users = users[:max]
				want = users[max-1]
			}
			full := len(users) == max
			users = slices.DeleteFunc(users, func(u string) bool { return m.seen[u] == rec.Generation })
			rec.InFlight = audience.NewChunk(rec.Generation, true, users)
			c, last := k.leave(id, rec.Generation, after, max)
			if last != want && !(full && want == "") { // Leave need not know that a full page is the last
				k.Fatalf("Leave after %q = %q, want %q", after, last, want)
			}
			k.diff("Leave", rec.InFlight, c)
		case op < 9:
			c := rec.InFlight
			n := r.IntN(len(c.Users) + 1)
			k.confirm(id, rec.Generation, n)
			for _, user := range c.Users[:n] {
				if c.Left {
					delete(m.seen, user)
				} else {
					m.seen[user] = c.Generation
				}
			}
			rec.InFlight = c.Rest(n)
		}
		if step%20 == 0 {
			k.restart()
			var entries []audience.Entry
			for _, id := range slices.Sorted(maps.Keys(models)) {
				rec := &models[id].record
				if rec.Generation > 0 {
					entries = append(entries, audience.Entry{ID: id, Name: rec.Name, Generation: rec.Generation})
				}
				k.members(id, slices.Sorted(maps.Keys(models[id].seen))...)
			}
			k.diff("Audiences", entries, all(k, k.s.Audiences(k.ctx)))
		}
	}
}

func superseded(k *kit) {
	k.begin("vip", 1)
	k.join("vip", 1, "a", "b")
	k.confirm("vip", 1, 2)
	k.begin("vip", 2)
	k.join("vip", 2, "a", "c")
	for _, tt := range []struct {
		id         string
		generation uint64
	}{{"vip", 0}, {"vip", 1}, {"vip", 3}, {"other", 1}} {
		for _, err := range k.changes(k.ctx, tt.id, tt.generation, "d") {
			if !errors.Is(err, audience.ErrSuperseded) {
				k.Errorf("generation %d of %q: %v, want ErrSuperseded", tt.generation, tt.id, err)
			}
		}
	}
	k.members("vip", "a", "b")
	k.members("other")
	k.confirm("vip", 2, 1)
	c, last := k.leave("vip", 2, "", 10)
	k.diff("Leave", audience.NewChunk(2, true, []string{"b"}), c)
	if last != "" {
		k.Errorf("Leave = %q, want no further members", last)
	}
}

func inFlight(k *kit) {
	k.begin("vip", 1)
	first := k.join("vip", 1, "c", "a", "b", "a")
	k.diff("Join", audience.NewChunk(1, false, []string{"a", "b", "c"}), first)
	k.begin("other", 1) // returns no chunk: only "vip" has one in flight
	k.confirm("vip", 1, 1)
	k.restart()
	rest := k.begin("vip", 2)
	k.diff("the chunk in flight", first.Rest(1), rest)
	if !rest.At.Equal(first.At) {
		k.Errorf("the time of the chunk in flight is %v, want %v", rest.At, first.At)
	}
	for _, err := range k.changes(k.ctx, "vip", 2, "d")[:2] {
		if err == nil || errors.Is(err, audience.ErrSuperseded) {
			k.Errorf("Join or Leave with a chunk in flight: %v", err)
		}
	}
	k.confirm("vip", 2, 1)
	k.confirm("vip", 2, 2) // nothing is in flight now
	k.members("vip", "a", "b", "c")
	k.members("other")
	// Generation 2 has not seen the three members, because their chunk was made in generation 1.
	c, _ := k.leave("vip", 2, "", 10)
	k.diff("Leave", audience.NewChunk(2, true, []string{"a", "b", "c"}), c)
}

func limits(k *kit) {
	k.begin("vip", 1)
	for _, bad := range []string{"", strings.Repeat("u", audience.MaxUser+1)} {
		if _, err := k.s.Join(k.ctx, "vip", 1, []string{"good", bad}); err == nil {
			k.Errorf("Join of a user of %d bytes is no error", len(bad))
		}
	}
	for _, bad := range [][2]string{{"", "n"}, {strings.Repeat("i", 768), "n"}, {"i", strings.Repeat("n", 256)}} {
		if _, _, err := k.s.Begin(k.ctx, bad[0], bad[1]); err == nil {
			k.Errorf("Begin of an id of %d bytes, a name of %d bytes is no error", len(bad[0]), len(bad[1]))
		}
	}
	long := audience.Entry{ID: strings.Repeat("\xff", 767), Name: strings.Repeat("\xff", 255), Generation: 2}
	for range long.Generation {
		if _, _, err := k.s.Begin(k.ctx, long.ID, long.Name); err != nil {
			k.Fatal(err)
		}
	}
	k.diff("Join after errors", audience.NewChunk(1, false, []string{"good"}), k.join("vip", 1, "good"))
	k.join(long.ID, 2, "u")
	k.confirm(long.ID, 2, 1)
	k.restart()
	k.members(long.ID, "u")
	k.diff("Audiences", []audience.Entry{{ID: "vip", Name: "name of vip", Generation: 1}, long}, all(k, k.s.Audiences(k.ctx)))
	if _, _, err := k.s.Begin(k.ctx, "vip", "another"); err != nil { // the first name stays
		k.Fatal(err)
	}
	k.diff("the first audience", audience.Entry{ID: "vip", Name: "name of vip", Generation: 2}, all(k, k.s.Audiences(k.ctx))[0])
}

func many(k *kit) {
	var users []string
	for i := range 2500 { // more than one page of a store
		users = append(users, fmt.Sprintf("%x-%s", i*i, strings.Repeat("u", 200)))
	}
	k.begin("vip", 1)
	for chunk := range slices.Chunk(users, 2048) {
		k.confirm("vip", 1, len(k.join("vip", 1, chunk...).Users))
	}
	slices.Sort(users)
	for _, after := range []string{"", users[0], users[1200], "8", users[2499], "zzz"} {
		want := slices.DeleteFunc(slices.Clone(users), func(u string) bool { return u <= after })
		k.diff("Members", want, all(k, k.s.Members(k.ctx, "vip", after)))
	}
	for range k.s.Members(k.ctx, "vip", "") {
		break
	}
	want := []audience.Entry{}
	for i := range 1100 {
		id := fmt.Sprintf("a\x00%04d", i)
		k.begin(id, 1)
		want = append(want, audience.Entry{ID: id, Name: "name of " + id, Generation: 1})
	}
	k.restart()
	k.diff("Audiences", append(want, audience.Entry{ID: "vip", Name: "name of vip", Generation: 1}), all(k, k.s.Audiences(k.ctx)))
}

func ended(k *kit) {
	calls := func(ctx context.Context, want error) {
		k.Helper()
		_, _, err := k.s.Begin(ctx, "vip", "")
		errs := append(k.changes(ctx, "vip", 1, "u"), err)
		for _, err := range k.s.Members(ctx, "vip", "") {
			errs = append(errs, err)
		}
		for _, err := range k.s.Audiences(ctx) {
			errs = append(errs, err)
		}
		if len(errs) != 6 {
			k.Fatalf("%d errors, want 6", len(errs))
		}
		for i, err := range errs {
			if !errors.Is(err, want) {
				k.Errorf("call %d: %v, want %v", i, err, want)
			}
		}
	}
	k.begin("vip", 1)
	ctx, cancel := context.WithCancel(k.ctx)
	cancel()
	calls(ctx, context.Canceled)
	if err := k.s.Close(); err != nil {
		k.Fatal(err)
	}
	calls(k.ctx, webhook.ErrClosed)
}
