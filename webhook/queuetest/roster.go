package queuetest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/hookferry/analytics/webhook"
)

// An audience is the model of one: in which generation each member was last seen.
type audience struct {
	generation uint64
	seen       map[string]uint64
}

func (k *kit) audience(name string) *audience {
	if k.audiences[name] == nil {
		k.audiences[name] = &audience{seen: map[string]uint64{}}
	}
	return k.audiences[name]
}

// announce returns one delivery with an id of its own. It calls the store, which holds no lock.
func (k *kit) announce(user string) ([]webhook.Delivery, error) {
	_, err := k.s.Count(k.ctx)
	return []webhook.Delivery{k.delivery("announcements", fmt.Sprint("notice-", k.told.Add(1)))}, err
}

// announced checks who was announced, and adds what announces them to the model.
func (k *kit) announced(did string, want []string, count int, told map[string][]webhook.Delivery) {
	k.Helper()
	slices.Sort(want)
	if diff := cmp.Diff(want, slices.Sorted(maps.Keys(told)), cmpopts.EquateEmpty()); count != len(want) || diff != "" {
		k.Fatalf("%d %s, announced (-want +got)\n%s", count, did, diff)
	}
	for _, ds := range told {
		k.held[key(&ds[0])] = &ds[0]
	}
}

// note returns announce, which fills told and fails for a user that is there.
func (k *kit) note(told map[string][]webhook.Delivery) func(string) ([]webhook.Delivery, error) {
	return func(user string) (ds []webhook.Delivery, err error) {
		if told[user] != nil {
			return nil, fmt.Errorf("queuetest: %q is announced twice", user)
		}
		told[user], err = k.announce(user)
		return told[user], err
	}
}

func (k *kit) roster() webhook.Roster { return k.s.(webhook.Roster) }

func (k *kit) begin(name string) {
	k.Helper()
	a := k.audience(name)
	a.generation++
	if got, err := k.roster().Begin(k.ctx, name); got != a.generation || err != nil {
		k.Errorf("Begin(%q) = %d, %v, want %d", name, got, err, a.generation)
	}
}

func (k *kit) join(name string, generation uint64, users ...string) {
	k.Helper()
	told := make(map[string][]webhook.Delivery)
	n, err := k.roster().Join(k.ctx, name, generation, users, k.note(told))
	if err != nil {
		k.Fatalf("Join: %v", err)
	}
	var want []string
	seen := k.audience(name).seen
	for _, user := range users {
		if seen[user] == 0 {
			want = append(want, user)
		}
		seen[user] = max(seen[user], generation)
	}
	k.announced("joined", want, n, told)
}

// leave asks for a few members at a time.
func (k *kit) leave(name string, generation uint64) {
	k.Helper()
	told := make(map[string][]webhook.Delivery)
	left := 0
	for after, more := "", true; more; {
		last, n, err := k.roster().Leave(k.ctx, name, generation, after, 4, k.note(told))
		if err != nil || n > 4 || last != "" && last <= after {
			k.Fatalf("Leave after %q = %q, %d, %v", after, last, n, err)
		}
		left += n
		after, more = last, last != ""
	}
	var want []string
	for user, seen := range k.audience(name).seen {
		if seen < generation {
			want = append(want, user)
			delete(k.audience(name).seen, user)
		}
	}
	k.announced("left", want, left, told)
}

func (k *kit) compareRoster(after string) {
	k.Helper()
	var begun []webhook.RosterAudience
	for _, name := range slices.Sorted(maps.Keys(k.audiences)) {
		want := slices.DeleteFunc(slices.Sorted(maps.Keys(k.audiences[name].seen)), func(user string) bool { return user <= after })
		if diff := cmp.Diff(want, all(k, k.roster().Members(k.ctx, name, after)), cmpopts.EquateEmpty()); diff != "" {
			k.Fatalf("Members(%q, %q) (-want +got)\n%s", name, after, diff)
		}
		if g := k.audiences[name].generation; g > 0 {
			begun = append(begun, webhook.RosterAudience{Name: name, Generation: g})
		}
	}
	if r, ok := k.s.(webhook.Rosters); ok {
		if diff := cmp.Diff(begun, all(k, r.Audiences(k.ctx)), cmpopts.EquateEmpty()); diff != "" {
			k.Fatalf("Audiences (-want +got)\n%s", diff)
		}
	}
}

// joinTogether has users join through several nodes at once, and checks that each joins once.
func (k *kit) joinTogether(rs ...webhook.Roster) {
	k.Helper()
	k.begin("vip")
	joined := make([]int, 6)
	var wg sync.WaitGroup
	for g := range joined {
		wg.Go(func() {
			for i := range 20 {
				n, err := rs[g%len(rs)].Join(k.ctx, "vip", 1, []string{fmt.Sprint("u", i), fmt.Sprint("u", (i+g)%20)}, k.announce)
				if err != nil {
					k.Errorf("Join: %v", err)
				}
				joined[g] += n
			}
		})
	}
	wg.Wait()
	c, err := k.s.Count(k.ctx)
	for _, n := range joined {
		c.Claimed += n
	}
	if c.Claimed != 20 || c.Waiting != 20 {
		k.Errorf("%d joined and %d were announced, want 20; %v", c.Claimed, c.Waiting, err)
	}
}

var rosterCases = []testCase{
	{"Roster", "Begin raises the generation of audience and returns it: 1 for an audience that was not known. Join marks users as seen in generation; for each that was no member before, it makes it one and puts the deliveries that announce returns, and returns how many joined. Announce is called once for a user in a call, at most, and with no lock held. Leave goes through up to max members after the one named after, in the order of their bytes. It removes those last seen before generation and puts the deliveries that announce returns for each. It returns the last member it looked at, \"\" once there are no more, and how many left.", roster, func(k *kit) {
		users := []string{"b", "a", "c", "a", "\x00\xff", strings.Repeat("u", 255)}
		for i := range 25 {
			users = append(users, fmt.Sprintf("u%02d", i*7%25))
		}
		k.join("joined", 1, "a")
		k.compareRoster("")
		for range 3 {
			k.begin("vip")
			generation := k.audience("vip").generation
			k.join("vip", generation, users...)
			k.join("vip", generation)
			k.restart()
			k.compareRoster("")
			k.leave("vip", generation)
			k.leave("vip", generation)
			k.compareRoster("")
			users = append(users[4:], "new", "a") // who left joins again
		}
		k.leave("unknown", 1)
		k.begin("other")
		k.compareRoster("u03")
		k.compare()
		k.news(k.s, func(name string) bool { return name == "announcements" })
	}},
	{"RosterAnnounceFails", "Join and Leave store the members and the deliveries that announce them together. The members are user ids of 1 to 255 bytes.", roster, func(k *kit) {
		k.begin("vip")
		k.join("vip", 1, "a", "b")
		k.begin("vip")
		ctx, cancel := context.WithCancel(k.ctx)
		for _, announce := range []func(string) ([]webhook.Delivery, error){
			func(user string) ([]webhook.Delivery, error) {
				if user == "z" || user == "b" {
					return nil, errors.New("queuetest: announce fails")
				}
				return k.announce(user)
			},
			func(user string) ([]webhook.Delivery, error) {
				return []webhook.Delivery{k.delivery("announcements", user), {Destination: "x"}}, nil
			},
			func(user string) ([]webhook.Delivery, error) { // the last, as it cancels the call
				cancel()
				return k.announce(user)
			},
		} {
			if n, err := k.roster().Join(ctx, "vip", 2, []string{"y", "z"}, announce); n != 0 || err == nil {
				k.Errorf("Join, when announce fails = %d, %v", n, err)
			}
			if _, n, err := k.roster().Leave(ctx, "vip", 2, "", 10, announce); n != 0 || err == nil {
				k.Errorf("Leave, when announce fails = %d, %v", n, err)
			}
		}
		for _, bad := range []string{"", strings.Repeat("u", 256)} {
			if n, err := k.roster().Join(k.ctx, "vip", 2, []string{"good", bad}, k.announce); n != 0 || err == nil {
				k.Errorf("Join of a user of %d bytes = %d, %v, want an error", len(bad), n, err)
			}
		}
		k.compareRoster("")
		k.compare()
	}},
	{"RosterMany", "Members yields the members after the one named after, in the order of their bytes. Audiences yields the audiences that Begin was called for, in the order of the bytes of their names.", roster, func(k *kit) {
		var users []string
		for i := range 2500 { // more than a store reads at once
			users = append(users, fmt.Sprintf("%x", i*i))
		}
		n, err := k.roster().Join(k.ctx, "vip", 1, users, func(string) ([]webhook.Delivery, error) { return nil, nil })
		if n != 2500 || err != nil {
			k.Fatalf("Join = %d, %v", n, err)
		}
		for _, user := range users {
			k.audience("vip").seen[user] = 1
		}
		for _, after := range []string{"", users[1200], "zzz"} {
			k.compareRoster(after)
		}
		for i := range 1100 {
			k.begin(fmt.Sprintf("a\x00%04d", i))
		}
		k.begin("\xff")
		k.restart()
		k.compareRoster("")
	}},
	{"RosterConcurrently", "For each that was no member before, Join makes it one. All methods may be called concurrently.", roster, func(k *kit) {
		k.joinTogether(k.roster())
	}},
}
