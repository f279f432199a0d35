package queuetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/hookferry/analytics/webhook"
)

// announcer is the type of the functions that announce members.
type announcer = func(user string) ([]webhook.Delivery, error)

func nobody(string) ([]webhook.Delivery, error) { return nil, nil }

// announce returns one delivery with an id of its own, to the destination
// "announcements".
func (k *kit) announce(user string) ([]webhook.Delivery, error) {
	d := k.delivery("announcements", fmt.Sprint("notice-", k.told.Add(1)))
	d.Body = []byte(user)
	return []webhook.Delivery{d}, nil
}

func (k *kit) roster() webhook.Roster { return k.s.(webhook.Roster) }

func (k *kit) begin(audience string, want uint64) {
	k.Helper()
	if got, err := k.roster().Begin(k.ctx, audience); got != want || err != nil {
		k.Errorf("Begin(%q) = %d, %v, want %d", audience, got, err, want)
	}
}

// join checks who joins.
func (k *kit) join(audience string, generation uint64, users []string, want ...string) {
	k.Helper()
	var told []string
	n, err := k.roster().Join(k.ctx, audience, generation, users, func(user string) ([]webhook.Delivery, error) {
		told = append(told, user)
		return k.announce(user)
	})
	slices.Sort(told)
	if diff := cmp.Diff(want, told, cmpopts.EquateEmpty()); n != len(want) || err != nil || diff != "" {
		k.Fatalf("Join(%q, %d, %q) = %d, %v, want %d, announced (-want +got)\n%s", audience, generation, users, n, err, len(want), diff)
	}
}

// leave checks who leaves. It asks for a few members at a time.
func (k *kit) leave(audience string, generation uint64, want ...string) {
	k.Helper()
	var told []string
	left := 0
	for after, calls := "", 0; ; calls++ {
		last, n, err := k.roster().Leave(k.ctx, audience, generation, after, 4, func(user string) ([]webhook.Delivery, error) {
			told = append(told, user)
			return k.announce(user)
		})
		if err != nil || n > 4 || calls > 100 || last != "" && last <= after {
			k.Fatalf("Leave after %q = %q, %d, %v", after, last, n, err)
		}
		left += n
		if after = last; last == "" {
			break
		}
	}
	if diff := cmp.Diff(want, told, cmpopts.EquateEmpty()); left != len(want) || diff != "" {
		k.Fatalf("%d left %q, want %d, announced (-want +got)\n%s", left, audience, len(want), diff)
	}
}

func (k *kit) members(audience, after string, want ...string) {
	k.Helper()
	got, err := list(k.roster().Members(k.ctx, audience, after))
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); err != nil || diff != "" {
		k.Fatalf("Members(%q, %q): %v (-want +got)\n%s", audience, after, err, diff)
	}
}

func (k *kit) audiences(want ...webhook.RosterAudience) {
	k.Helper()
	got, err := list(k.s.(webhook.Rosters).Audiences(k.ctx))
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); err != nil || diff != "" {
		k.Fatalf("Audiences: %v (-want +got)\n%s", err, diff)
	}
}

// announced fetches what waits, checks that it announces these users, and
// settles it.
func (k *kit) announced(want ...string) {
	k.Helper()
	ds := k.fetch(len(want)+10, "announcements")
	var got []string
	for _, d := range ds {
		got = append(got, string(d.Body))
	}
	k.settle(webhook.Done, ds...)
	slices.Sort(got)
	if diff := cmp.Diff(slices.Sorted(slices.Values(want)), got, cmpopts.EquateEmpty()); diff != "" {
		k.Fatalf("announced (-want +got)\n%s", diff)
	}
}

var rosterCases = []testCase{
	{"RosterBegin", "Begin raises the generation of audience and returns it: 1 for an audience that was not known.", roster, func(k *kit) {
		for want := range uint64(3) {
			k.begin("vip", want+1)
			k.restart()
		}
		k.begin("other", 1)
		k.begin("vip", 4)
	}},
	{"RosterJoin", "Join marks users as seen in generation. For each that was no member before, it makes it one and puts the deliveries that announce returns. It returns how many joined.", roster, func(k *kit) {
		k.begin("vip", 1)
		k.join("vip", 1, []string{"b", "a", "c", "a"}, "a", "b", "c")
		k.restart()
		k.members("vip", "", "a", "b", "c")
		k.announced("a", "b", "c")
		k.begin("vip", 2)
		k.join("vip", 2, []string{"d", "b", "a"}, "d")
		k.announced("d")
		k.join("other", 1, []string{"a"}, "a")
		k.members("other", "", "a")
		k.members("unknown", "")
		k.join("vip", 2, nil)
	}},
	{"RosterLeave", "Leave goes through up to max members after the one named after, in the order of their bytes. It removes those last seen before generation and puts the deliveries that announce returns for each. It returns the last member it looked at, \"\" once there are no more, and how many left.", roster, func(k *kit) {
		k.begin("vip", 1)
		var users, stay, gone []string
		for i := range 25 {
			u := fmt.Sprintf("u%02d", i)
			users = append(users, u)
			if i%3 == 0 {
				stay = append(stay, u)
			} else {
				gone = append(gone, u)
			}
		}
		k.join("vip", 1, users, users...)
		k.announced(users...)
		k.begin("vip", 2)
		k.join("vip", 2, stay)
		k.leave("vip", 2, gone...)
		k.restart()
		k.members("vip", "", stay...)
		k.announced(gone...)
		k.leave("vip", 2)
		k.leave("unknown", 1)
		k.join("vip", 2, gone[:1], gone[:1]...) // who left may join again
		k.announced(gone[0])
	}},
	{"RosterAnnounceFails", "Join and Leave store the members and the deliveries that announce them together.", roster, func(k *kit) {
		k.begin("vip", 1)
		k.join("vip", 1, []string{"a", "b"}, "a", "b")
		k.announced("a", "b")
		k.begin("vip", 2)
		ctx, cancel := context.WithCancel(k.ctx)
		for _, announce := range []announcer{
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
		k.members("vip", "", "a", "b")
		k.announced()
	}},
	{"RosterLimits", "The members are user ids of 1 to 255 bytes.", roster, func(k *kit) {
		k.begin("vip", 1)
		long := strings.Repeat("u", 255)
		for _, bad := range []string{"", long + "u"} {
			if n, err := k.roster().Join(k.ctx, "vip", 1, []string{"good", bad}, nobody); n != 0 || err == nil {
				k.Errorf("Join of a user of %d bytes = %d, %v, want an error", len(bad), n, err)
			}
		}
		k.members("vip", "")
		k.join("vip", 1, []string{long, "\x00\xff"}, "\x00\xff", long)
		k.members("vip", "", "\x00\xff", long)
	}},
	{"RosterMembers", "Members yields the members after the one named after, in the order of their bytes. It holds no lock between two yields.", roster, func(k *kit) {
		k.begin("vip", 1)
		var users []string
		for i := range 2500 {
			users = append(users, fmt.Sprintf("%x", i*i))
		}
		slices.Sort(users)
		if n, err := k.roster().Join(k.ctx, "vip", 1, users, nobody); n != len(users) || err != nil {
			k.Fatalf("Join = %d, %v", n, err)
		}
		k.members("vip", "", users...)
		k.members("vip", users[1200], users[1201:]...)
		k.members("vip", "zzz")
		for user, err := range k.roster().Members(k.ctx, "vip", "") {
			if err != nil {
				k.Fatal(err)
			}
			k.put(k.delivery("a", user))
			if user == users[10] {
				break
			}
		}
	}},
	{"RosterAnnounceWithoutLock", "Announce is called once for a user in a call, at most, and with no lock held.", roster, func(k *kit) {
		told := map[string]int{}
		announce := func(user string) ([]webhook.Delivery, error) {
			told[user]++
			k.put(k.delivery("a", fmt.Sprint(user, "-", k.told.Add(1))))
			return nil, nil
		}
		k.begin("vip", 1)
		if n, err := k.roster().Join(k.ctx, "vip", 1, []string{"b", "a", "b"}, announce); n != 2 || err != nil {
			k.Errorf("Join, announce calling the store = %d, %v, want 2", n, err)
		}
		k.begin("vip", 2)
		if _, n, err := k.roster().Leave(k.ctx, "vip", 2, "", 10, announce); n != 2 || err != nil {
			k.Errorf("Leave, announce calling the store = %d, %v, want 2", n, err)
		}
		if diff := cmp.Diff(map[string]int{"a": 2, "b": 2}, told); diff != "" {
			k.Errorf("announce was called (-want +got)\n%s", diff)
		}
		k.counts(4, 0, 0)
	}},
	{"RosterConcurrentJoin", "For each that was no member before, it makes it one and puts the deliveries that announce returns. All methods may be called concurrently.", roster, func(k *kit) {
		k.begin("vip", 1)
		var joined atomic.Int64
		var wg sync.WaitGroup
		for g := range 6 {
			wg.Go(func() {
				for i := range 20 {
					n, err := k.roster().Join(k.ctx, "vip", 1, []string{fmt.Sprint("u", i), fmt.Sprint("u", (i+g)%20)}, k.announce)
					if err != nil {
						k.Errorf("Join: %v", err)
					}
					joined.Add(int64(n))
				}
			})
		}
		wg.Wait()
		if n, told := joined.Load(), len(k.fetch(1000, "announcements")); n != 20 || told != 20 {
			k.Errorf("%d joined and %d were announced, want 20", n, told)
		}
	}},
	{"RosterAudiences", "Audiences yields the audiences that Begin was called for, in the order of the bytes of their names. It holds no lock between two yields.", roster | rosters, func(k *kit) {
		k.join("joined", 1, []string{"a"}, "a")
		k.audiences()
		var want []webhook.RosterAudience
		var begun sync.WaitGroup // together, to share commits
		for i := range 1100 {    // more than a store reads at once
			name := fmt.Sprintf("a\x00%04d", i)
			want = append(want, webhook.RosterAudience{Name: name, Generation: 1})
			begun.Go(func() { k.begin(name, 1) })
		}
		begun.Wait()
		k.begin("\xff", 1)
		k.begin("\xff", 2)
		want = append(want, webhook.RosterAudience{Name: "\xff", Generation: 2})
		k.audiences(want...)
		k.restart()
		k.audiences(want...)
		next := uint64(3)
		for _, err := range k.s.(webhook.Rosters).Audiences(k.ctx) {
			if err != nil {
				k.Fatal(err)
			}
			k.begin("\xff", next)
			if next++; next == 6 {
				break
			}
		}
	}},
}
