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

var rosterCases = []testCase{
	{
		name:     "RosterBegin",
		sentence: "Begin raises the generation of audience and returns it: 1 for an audience that was not known.",
		needs:    []string{"Roster"},
		run: func(k *kit) {
			for want := uint64(1); want < 4; want++ {
				k.begin("vip", want)
				if k.traits.Durable {
					k.reopen()
				}
			}
			k.begin("other", 1)
			k.begin("vip", 4)
		},
	},
	{
		name:     "RosterJoin",
		sentence: "Join marks users as seen in generation. For each that was no member before, it makes it one and puts the deliveries that announce returns. It returns how many joined.",
		needs:    []string{"Roster"},
		run: func(k *kit) {
			k.begin("vip", 1)
			k.join("vip", 1, []string{"b", "a", "c", "a"}, "a", "b", "c")
			k.members("vip", "", "a", "b", "c")
			k.announced("a", "b", "c")
			k.begin("vip", 2)
			k.join("vip", 2, []string{"d", "b", "a"}, "d")
			k.announced("d")
			k.join("other", 1, []string{"a"}, "a")
			k.members("other", "", "a")
			k.members("unknown", "")
			k.join("vip", 2, nil)
		},
	},
	{
		name:     "RosterJoinStoresBoth",
		sentence: "Join and Leave store the members and the deliveries that announce them together.",
		needs:    []string{"Roster", "Durable"},
		run: func(k *kit) {
			k.begin("vip", 1)
			k.join("vip", 1, []string{"a", "b"}, "a", "b")
			k.reopen()
			k.members("vip", "", "a", "b")
			k.announced("a", "b")
			k.begin("vip", 2)
			k.join("vip", 2, []string{"b"})
			k.leave("vip", 2, "", 10, "", "a")
			k.reopen()
			k.members("vip", "", "b")
			k.announced("a")
			k.begin("vip", 3)
		},
	},
	{
		name:     "RosterAnnounceFails",
		sentence: "Join and Leave store the members and the deliveries that announce them together.",
		needs:    []string{"Roster"},
		run: func(k *kit) {
			k.begin("vip", 1)
			k.join("vip", 1, []string{"a", "b"}, "a", "b")
			k.announced("a", "b")
			k.begin("vip", 2)
			for name, announce := range map[string]func(string) ([]webhook.Delivery, error){
				"an error of its own": func(user string) ([]webhook.Delivery, error) {
					if user == "z" || user == "b" {
						return nil, errAnnounce
					}
					return k.announce("x")(user)
				},
				"a delivery without id": func(user string) ([]webhook.Delivery, error) {
					return []webhook.Delivery{delivery("x", user), {Destination: "x"}}, nil
				},
			} {
				if n, err := k.roster().Join(k.ctx, "vip", 2, []string{"y", "z"}, announce); n != 0 || err == nil {
					k.Errorf("Join, announce returning %s = %d, %v", name, n, err)
				}
				if _, n, err := k.roster().Leave(k.ctx, "vip", 2, "", 10, announce); n != 0 || err == nil {
					k.Errorf("Leave, announce returning %s = %d, %v", name, n, err)
				}
			}
			k.members("vip", "", "a", "b")
			k.announced()
		},
	},
	{
		name:     "RosterLimits",
		sentence: "The members are user ids of 1 to 255 bytes.",
		needs:    []string{"Roster"},
		run: func(k *kit) {
			k.begin("vip", 1)
			long := strings.Repeat("u", 255)
			for _, bad := range []string{"", long + "u"} {
				if n, err := k.roster().Join(k.ctx, "vip", 1, []string{"good", bad}, nobody); n != 0 || err == nil {
					k.Errorf("Join of a user of %d bytes = %d, %v, want an error", len(bad), n, err)
				}
			}
			k.members("vip", "")
			if n, err := k.roster().Join(k.ctx, "vip", 1, []string{long, "\x00\xff"}, nobody); n != 2 || err != nil {
				k.Errorf("Join = %d, %v, want 2", n, err)
			}
			k.members("vip", "", "\x00\xff", long)
		},
	},
	{
		name:     "RosterLeave",
		sentence: "Leave goes through up to max members after the one named after, in the order of their bytes. It removes those last seen before generation and puts the deliveries that announce returns for each. It returns the last member it looked at, \"\" once there are no more, and how many left.",
		needs:    []string{"Roster"},
		run: func(k *kit) {
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
			after, left := "", 0
			for calls := 0; ; calls++ {
				last, n, err := k.roster().Leave(k.ctx, "vip", 2, after, 4, k.announce("vip"))
				if err != nil || n > 4 || calls > 7 || last != "" && last <= after {
					k.Fatalf("Leave after %q = %q, %d, %v", after, last, n, err)
				}
				left += n
				if last == "" {
					break
				}
				after = last
			}
			if left != len(gone) {
				k.Errorf("%d left, want %d", left, len(gone))
			}
			k.members("vip", "", stay...)
			k.announced(gone...)
			k.leave("vip", 2, "", 100, "")
			k.leave("unknown", 1, "", 100, "")
			// Who left may join again, and is announced again.
			if n, err := k.roster().Join(k.ctx, "vip", 2, gone[:1], k.announce("again")); n != 1 || err != nil {
				k.Errorf("Join of one that left = %d, %v", n, err)
			}
			k.announced(gone[0])
		},
	},
	{
		name:     "RosterMembers",
		sentence: "Members yields the members after the one named after, in the order of their bytes. It holds no lock between two yields.",
		needs:    []string{"Roster"},
		run: func(k *kit) {
			k.begin("vip", 1)
			var users []string
			for i := range 2500 {
				users = append(users, fmt.Sprintf("%x", i*i))
			}
			slices.Sort(users)
			users = slices.Compact(users)
			if n, err := k.roster().Join(k.ctx, "vip", 1, users, nobody); n != len(users) || err != nil {
				k.Fatalf("Join = %d, %v", n, err)
			}
			k.members("vip", "", users...)
			k.members("vip", users[1200], users[1201:]...)
			k.members("vip", "zzz")
			n := 0
			for user, err := range k.roster().Members(k.ctx, "vip", "") {
				if err != nil {
					k.Fatal(err)
				}
				if user != users[n] {
					k.Fatalf("Members yields %q, want %q", user, users[n])
				}
				if n++; n%500 == 0 {
					k.put(delivery("a", user))
				}
			}
			for range k.roster().Members(k.ctx, "vip", "") {
				break
			}
			if n != len(users) {
				k.Errorf("Members yielded %d of %d", n, len(users))
			}
		},
	},
	{
		name:     "RosterAnnounceWithoutLock",
		sentence: "Announce is called once for a user in a call, at most, and with no lock held.",
		needs:    []string{"Roster"},
		run: func(k *kit) {
			k.begin("vip", 1)
			told := map[string]int{}
			announce := func(user string) ([]webhook.Delivery, error) {
				told[user]++
				k.put(delivery("a", fmt.Sprint(user, "-", k.told.Add(1))))
				return nil, nil
			}
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
			if n := len(k.lease(10)); n != 4 {
				k.Errorf("%d deliveries were put by announce, want 4", n)
			}
		},
	},
	{
		name:     "RosterConcurrentJoin",
		sentence: "For each that was no member before, it makes it one and puts the deliveries that announce returns. All methods may be called concurrently.",
		needs:    []string{"Roster"},
		run: func(k *kit) {
			k.begin("vip", 1)
			var joined atomic.Int64
			var wg sync.WaitGroup
			for g := range 6 {
				wg.Go(func() {
					for i := range 20 {
						// Each with ids of its own, so that deduplication hides nothing.
						announce := func(user string) ([]webhook.Delivery, error) {
							return []webhook.Delivery{delivery("vip", fmt.Sprint(user, "-", g))}, nil
						}
						n, err := k.roster().Join(k.ctx, "vip", 1, []string{fmt.Sprint("u", i), fmt.Sprint("u", (i+g)%20)}, announce)
						if err != nil {
							k.Errorf("Join: %v", err)
						}
						joined.Add(int64(n))
					}
				})
			}
			wg.Wait()
			if n := joined.Load(); n != 20 {
				k.Errorf("%d joined, want 20", n)
			}
			if n := len(k.lease(1000)); n != 20 {
				k.Errorf("%d were announced, want 20", n)
			}
		},
	},
	{
		name:     "RosterCancelled",
		sentence: "A cancelled call changes nothing.",
		needs:    []string{"Roster"},
		run: func(k *kit) {
			k.begin("vip", 1)
			k.join("vip", 1, []string{"a"}, "a")
			k.announced("a")
			ctx, cancel := context.WithCancel(k.ctx)
			cancel()
			if _, err := k.roster().Begin(ctx, "vip"); !errors.Is(err, context.Canceled) {
				k.Errorf("Begin: %v", err)
			}
			if _, err := k.roster().Join(ctx, "vip", 2, []string{"b"}, k.announce("vip")); !errors.Is(err, context.Canceled) {
				k.Errorf("Join: %v", err)
			}
			if _, _, err := k.roster().Leave(ctx, "vip", 2, "", 10, k.announce("vip")); !errors.Is(err, context.Canceled) {
				k.Errorf("Leave: %v", err)
			}
			// In the middle of it, too.
			ctx, cancel = context.WithCancel(k.ctx)
			if _, err := k.roster().Join(ctx, "vip", 2, []string{"b"}, func(user string) ([]webhook.Delivery, error) {
				cancel()
				return k.announce("vip")(user)
			}); !errors.Is(err, context.Canceled) {
				k.Errorf("Join: %v", err)
			}
			ctx, cancel = context.WithCancel(k.ctx)
			if _, n, err := k.roster().Leave(ctx, "vip", 2, "", 10, func(user string) ([]webhook.Delivery, error) {
				cancel()
				return k.announce("vip")(user)
			}); n != 0 || !errors.Is(err, context.Canceled) {
				k.Errorf("Leave: %d, %v", n, err)
			}
			var errs []error
			for _, err := range k.roster().Members(ctx, "vip", "") {
				errs = append(errs, err)
			}
			if len(errs) != 1 || !errors.Is(errs[0], context.Canceled) {
				k.Errorf("Members yields %v", errs)
			}
			k.members("vip", "", "a")
			k.announced()
			k.begin("vip", 2)
		},
	},
	{
		name:     "RosterAudiences",
		sentence: "Audiences yields the audiences that Begin was called for, in the order of the bytes of their names.",
		needs:    []string{"Roster", "Rosters"},
		run: func(k *kit) {
			k.audiences()
			k.join("joined", 1, []string{"a"}, "a")
			k.audiences()
			var want []webhook.RosterAudience
			// More than a store reads at once, and names with any bytes. They are
			// begun together, to share commits.
			var begun sync.WaitGroup
			for i := range 1100 {
				name := fmt.Sprintf("a\x00%04d", i)
				want = append(want, webhook.RosterAudience{Name: name, Generation: 1})
				begun.Go(func() { k.begin(name, 1) })
			}
			begun.Wait()
			k.begin("\xff", 1)
			k.begin("\xff", 2)
			k.join("\xff", 2, []string{"u"}, "u")
			want = append(want, webhook.RosterAudience{Name: "\xff", Generation: 2})
			k.audiences(want...)
			if k.traits.Durable {
				k.reopen()
				k.audiences(want...)
			}
			n := 0
			for range k.rosters().Audiences(k.ctx) {
				if n++; n == 2 { // the loop may end before
					break
				}
			}
			k.begin("b", 1)
		},
	},
	{
		name:     "RosterAudiencesHoldsNoLock",
		sentence: "It holds no lock between two yields.",
		needs:    []string{"Roster", "Rosters"},
		run: func(k *kit) {
			k.begin("a", 1)
			k.begin("b", 1)
			generation := uint64(1)
			for _, err := range k.rosters().Audiences(k.ctx) {
				if err != nil {
					k.Fatalf("Audiences: %v", err)
				}
				generation++
				k.begin("a", generation)
			}
			if generation != 3 {
				k.Errorf("%d audiences, want 2", generation-1)
			}
		},
	},
	{
		name:     "RosterAudiencesFails",
		sentence: "An error ends it.",
		needs:    []string{"Roster", "Rosters"},
		run: func(k *kit) {
			k.begin("a", 1)
			ctx, cancel := context.WithCancel(k.ctx)
			cancel()
			var errs []error
			for _, err := range k.rosters().Audiences(ctx) {
				errs = append(errs, err)
			}
			if len(errs) != 1 || !errors.Is(errs[0], context.Canceled) {
				k.Errorf("Audiences with a context that is done yields %v", errs)
			}
			q := k.rosters()
			k.close()
			errs = nil
			for _, err := range q.Audiences(k.ctx) {
				errs = append(errs, err)
			}
			if len(errs) != 1 || !errors.Is(errs[0], webhook.ErrClosed) {
				k.Errorf("Audiences after Close yields %v", errs)
			}
			k.reopen()
		},
	},
}

var errAnnounce = errors.New("queuetest: announce fails")

func nobody(string) ([]webhook.Delivery, error) { return nil, nil }

// announce returns a function that makes one delivery with an id of its own for
// each user.
func (k *kit) announce(prefix string) func(string) ([]webhook.Delivery, error) {
	return func(user string) ([]webhook.Delivery, error) {
		d := delivery("announcements", fmt.Sprint(prefix, "-", k.told.Add(1)))
		d.Body = []byte(user)
		return []webhook.Delivery{d}, nil
	}
}

func (k *kit) roster() webhook.Roster { return k.q.(webhook.Roster) }

func (k *kit) rosters() webhook.Rosters { return k.q.(webhook.Rosters) }

func (k *kit) audiences(want ...webhook.RosterAudience) {
	k.Helper()
	var got []webhook.RosterAudience
	for a, err := range k.rosters().Audiences(k.ctx) {
		if err != nil {
			k.Fatalf("Audiences: %v", err)
		}
		got = append(got, a)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		k.Fatalf("Audiences (-want +got)\n%s", diff)
	}
}

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
	announce := k.announce(audience)
	n, err := k.roster().Join(k.ctx, audience, generation, users, func(user string) ([]webhook.Delivery, error) {
		told = append(told, user)
		return announce(user)
	})
	slices.Sort(told)
	if diff := cmp.Diff(want, told, cmpopts.EquateEmpty()); n != len(want) || err != nil || diff != "" {
		k.Fatalf("Join(%q, %d, %q) = %d, %v, want %d, announced (-want +got)\n%s", audience, generation, users, n, err, len(want), diff)
	}
}

func (k *kit) leave(audience string, generation uint64, after string, max int, wantLast string, want ...string) {
	k.Helper()
	var told []string
	announce := k.announce(audience)
	last, n, err := k.roster().Leave(k.ctx, audience, generation, after, max, func(user string) ([]webhook.Delivery, error) {
		told = append(told, user)
		return announce(user)
	})
	if diff := cmp.Diff(want, told, cmpopts.EquateEmpty()); last != wantLast || n != len(want) || err != nil || diff != "" {
		k.Fatalf("Leave(%q, %d, %q, %d) = %q, %d, %v, want %q, %d, announced (-want +got)\n%s", audience, generation, after, max, last, n, err, wantLast, len(want), diff)
	}
}

func (k *kit) members(audience, after string, want ...string) {
	k.Helper()
	var got []string
	for user, err := range k.roster().Members(k.ctx, audience, after) {
		if err != nil {
			k.Fatalf("Members: %v", err)
		}
		got = append(got, user)
	}
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
		k.Fatalf("Members(%q, %q) (-want +got)\n%s", audience, after, diff)
	}
}

// announced leases what waits, checks that it announces these users, and
// settles it.
func (k *kit) announced(want ...string) {
	k.Helper()
	ds := k.lease(len(want) + 10)
	var got []string
	for _, d := range ds {
		got = append(got, string(d.Body))
	}
	k.settle(webhook.Done, ds...)
	want = slices.Clone(want)
	slices.Sort(want)
	slices.Sort(got)
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
		k.Fatalf("announced (-want +got)\n%s", diff)
	}
}
