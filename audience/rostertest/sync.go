package rostertest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"sync"

	"github.com/hookferry/analytics/audience"
	"github.com/hookferry/analytics/event"
)

// A change is an announcement that a user joins or leaves.
type change struct {
	ID, User string
	Member   bool
}

// A recorder is an audience.Forwarder that keeps the announcements in memory.
type recorder struct {
	mu   sync.Mutex
	told []change
}

// ForwardEvents implements audience.Forwarder.
func (r *recorder) ForwardEvents(_ context.Context, _ []string, events ...event.Event) error {
	runtime.Gosched() // let the other node run
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range events {
		e := &events[i]
		var body struct {
			Traits map[string]bool `json:"traits"`
		}
		if err := json.Unmarshal(e.Body, &body); err != nil {
			return err
		}
		member, ok := body.Traits["vip"]
		if !e.NoDedup || !ok || len(body.Traits) != 1 {
			return fmt.Errorf("rostertest: announcement %+v", e)
		}
		r.told = append(r.told, change{e.ID, e.User, member})
	}
	return nil
}

// check fails the test if the announcements do not lead to these members. A member must have joined
// once more often than it left, and any other user must have joined as often as it left. Repeated
// announcements do not count for this. check returns the repeated announcements.
func (r *recorder) check(k *kit, members []string) (again []change) {
	k.Helper()
	seen := make(map[change]bool)
	want, balance := make(map[string]int), make(map[string]int)
	for _, c := range r.told {
		switch {
		case seen[c]:
			again = append(again, c)
		case c.Member:
			balance[c.User]++
		default:
			balance[c.User]--
		}
		seen[c] = true
	}
	for _, user := range members {
		want[user] = 1
	}
	maps.DeleteFunc(balance, func(_ string, n int) bool { return n == 0 })
	k.diff("how much more often each user joined than left", want, balance)
	return again
}

var errCrash = errors.New("rostertest: crash")

// crashing is an audience.Forwarder and an audience.Roster in one. It simulates a crash of a sync:
// from one call on, the methods below return errCrash and do nothing.
type crashing struct {
	audience.Roster
	*recorder
	calls  int // so far
	crash  int // the number of the first call that fails
	stored int // how many announcements were made before the last change of the Roster
}

func (c *crashing) UpdateAudience(ctx context.Context, id string, f func(*audience.Record, audience.Members) error) error {
	if c.calls++; c.calls >= c.crash {
		return errCrash
	}
	c.stored = len(c.told)
	return c.Roster.UpdateAudience(ctx, id, f)
}

func (c *crashing) ForwardEvents(ctx context.Context, destinations []string, events ...event.Event) error {
	if len(events) == 0 {
		return nil
	}
	if c.calls++; c.calls >= c.crash {
		return errCrash
	}
	return c.recorder.ForwardEvents(ctx, destinations, events...)
}

// sync syncs the audience "vip" of a destination, and returns the error of Sync.
func (k *kit) sync(a *audience.Announcer, destination string, members ...string) error {
	k.Helper()
	vip, err := a.Audience(destination, "vip")
	if err != nil {
		k.Fatal(err)
	}
	_, err = vip.AllowShrink().Sync(k.ctx, audience.Users(slices.Values(members)))
	return err
}

// crash tests a crash before each call of a sync in turn, followed by a sync with other members.
func crash(k *kit) {
	for call := 1; ; call++ {
		destination, told := fmt.Sprintf("crm %02d", call), new(recorder)
		if err := k.sync(audience.New(told, k.s), destination, "a", "b", "c"); err != nil {
			k.Fatal(err)
		}
		c := &crashing{Roster: k.s, recorder: told, crash: call, stored: len(told.told)}
		err := k.sync(audience.New(c, c), destination, "b", "c", "d", "e") // d and e join, and a leaves
		if err == nil && c.calls < call {
			return
		}
		if !errors.Is(err, errCrash) || c.calls != call {
			k.Fatalf("a crash before call %d: %v, after %d calls", call, err, c.calls)
		}
		// A sync announces a change again only if the crashed sync announced it, but did not store
		// the change.
		want := slices.Clone(told.told[c.stored:])
		k.restart()
		// This sync makes c leave and f join. If the crashed sync had put d or a into a chunk in
		// flight, this sync also undoes that change: d leaves again, and a joins again.
		members := []string{"a", "b", "e", "f"}
		if err := k.sync(audience.New(told, k.s), destination, members...); err != nil {
			k.Fatal(err)
		}
		k.members(destination+"\x00vip", members...)
		k.diff(fmt.Sprintf("announced again after a crash before call %d", call), want, told.check(k, members))
	}
}

// nodes syncs the same audience on two nodes at the same time.
func nodes(k *kit) {
	other := k.s
	if k.traits.Share {
		other = k.open(k.T, k.dir)
		defer func() {
			if err := other.Close(); err != nil {
				k.Error(err)
			}
		}()
	}
	told := new(recorder)
	var wg sync.WaitGroup
	for i, s := range []Store{k.s, other} {
		a := audience.New(told, s)
		wg.Go(func() {
			for round := range 10 {
				var members []string
				for n := range 100 {
					if (n+round+i)%3 > 0 {
						members = append(members, fmt.Sprintf("u%02d", n))
					}
				}
				if err := k.sync(a, "crm", members...); err != nil && !errors.Is(err, audience.ErrSuperseded) {
					k.Errorf("Sync: %v", err)
				}
			}
		})
	}
	wg.Wait()
	members := []string{"u00", "u01", "v"}
	if err := k.sync(audience.New(told, other), "crm", members...); err != nil {
		k.Fatal(err)
	}
	k.members("crm\x00vip", members...)
	told.check(k, members) // ignore the result: a node that takes over may repeat a chunk
}
