package rostertest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/hookferry/analytics/audience"
	"github.com/hookferry/analytics/event"
)

// A change is an announcement that a user joins or leaves.
type change struct {
	id, user string
	member   bool
}

// A recorder is an audience.Forwarder that keeps the announcements in memory.
type recorder struct {
	mu   sync.Mutex
	told []change
}

// Announce implements audience.Forwarder.
func (r *recorder) Announce(_ context.Context, _ []string, events ...event.Event) error {
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
		if !e.NoDedup || len(body.Traits) != 1 {
			return fmt.Errorf("rostertest: announcement %+v", e)
		}
		for _, member := range body.Traits {
			r.told = append(r.told, change{e.ID, e.User, member})
		}
	}
	return nil
}

// check fails the test if the announcements do not lead to these members. A member must have joined
// once more often than it left, and any other user must have joined as often as it left. Repeated
// announcements do not count for this. check returns the repeated announcements.
func (r *recorder) check(k *kit, members []string) (again []change) {
	k.Helper()
	times := make(map[change]int)
	balance := make(map[string]int)
	for _, c := range r.told {
		switch times[c]++; {
		case times[c] > 1:
			again = append(again, c)
		case c.member:
			balance[c.user]++
		default:
			balance[c.user]--
		}
	}
	var want []string
	for _, user := range slices.Sorted(maps.Keys(balance)) {
		switch n := balance[user]; n {
		case 1:
			want = append(want, user)
		case 0:
		default:
			k.Errorf("%q joined %d times more often than it left", user, n)
		}
	}
	k.diff("the members, by the announcements", want, members)
	return again
}

var errCrash = errors.New("rostertest: crash")

// crashing is an audience.Forwarder and an audience.Roster in one. It simulates a crash of a sync:
// from one call on, the methods below return an error and do nothing.
type crashing struct {
	audience.Roster
	*recorder
	countdown int // each call lowers it; the call that makes it 0 returns the error
	calls     []string
}

// next counts a call, and returns an error if the crash comes before the call.
func (c *crashing) next(call string) error {
	c.calls = append(c.calls, call)
	if c.countdown--; c.countdown == 0 {
		return errCrash
	}
	if c.countdown < 0 {
		return errors.New("rostertest: a call after the crash")
	}
	return nil
}

func (c *crashing) UpdateAudience(ctx context.Context, id string, f func(*audience.Record, audience.Members) error) error {
	if err := c.next("UpdateAudience"); err != nil {
		return err
	}
	return c.Roster.UpdateAudience(ctx, id, f)
}

func (c *crashing) Announce(ctx context.Context, destinations []string, events ...event.Event) error {
	if len(events) == 0 {
		return nil
	}
	if err := c.next("Announce"); err != nil {
		return err
	}
	return c.recorder.Announce(ctx, destinations, events...)
}

func users(ids ...string) iter.Seq2[string, error] { return audience.Users(slices.Values(ids)) }

// sync syncs the audience "vip" of a destination, and returns the error of Sync.
func (k *kit) sync(a *audience.Announcer, destination string, members ...string) error {
	k.Helper()
	vip, err := a.Audience(destination, "vip")
	if err != nil {
		k.Fatal(err)
	}
	_, err = vip.Sync(k.ctx, users(members...))
	return err
}

// crash tests a crash before each call of a sync in turn, followed by a sync with other members.
func crash(k *kit) {
	for call := 1; ; call++ {
		destination, told := fmt.Sprintf("crm %02d", call), new(recorder)
		if err := k.sync(audience.New(told, k.s), destination, "a", "b", "c"); err != nil {
			k.Fatal(err)
		}
		c := &crashing{Roster: k.s, recorder: told, countdown: call}
		err := k.sync(audience.New(c, c), destination, "b", "c", "d", "e") // d and e join, and a leaves
		if err == nil && call == len(c.calls)+1 {
			return
		}
		if !errors.Is(err, errCrash) {
			k.Fatalf("a crash before %s: %v", c.calls[len(c.calls)-1], err)
		}
		k.restart()
		// This sync makes c leave and f join. If the crashed sync had put d or a into a chunk in
		// flight, this sync also undoes that change: d leaves again, and a joins again.
		if err := k.sync(audience.New(told, k.s), destination, "a", "b", "e", "f"); err != nil {
			k.Fatal(err)
		}
		members := []string{"a", "b", "e", "f"}
		k.members(destination+"\x00vip", members...)
		again := told.check(k, members)
		last := c.calls[len(c.calls)-1]
		// A sync announces a change again only if the crashed sync announced it, and did not store
		// that it has.
		var want []string
		if n := len(c.calls); n > 1 && c.calls[n-2] == "Announce" {
			if want = []string{"d", "e"}; slices.Index(c.calls, "Announce") < n-2 {
				want = []string{"a"} // the second announcement is that of a user who leaves
			}
		}
		var got []string
		for _, c := range again {
			got = append(got, c.user)
		}
		k.diff(fmt.Sprintf("announced again after a crash before %s (%s)", last, strings.Join(c.calls, ", ")), want, got)
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
