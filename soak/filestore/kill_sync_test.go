package filestore_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/hookferry/analytics/audience"
	"github.com/hookferry/analytics/audience/fileroster"
	"github.com/hookferry/analytics/internal/soakenv"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/filequeue"
)

// syncRounds has the members of each round, from one number up to another. In the first round 8,000
// users join. In the second round half of them leave, and others join.
var syncRounds = [][2]int{{0, 8_000}, {4_000, 12_000}, {3_000, 3_100}}

// deletedUsers is the number of users that each round asks to delete.
const deletedUsers = 2500

// TestKillDuringSync kills a process that syncs two audiences and deletes users, at random moments,
// until the process has completed each round. The store then has the announcements of all changes,
// in order. Each kill may repeat a batch of them, because the announcements are put before the
// members are stored.
func TestKillDuringSync(t *testing.T) {
	soakenv.Only(t, "file-kill-sync")
	for seed := range soakenv.Seeds(t, 1) {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) { testKillDuringSync(t, seed) })
	}
}

func testKillDuringSync(t *testing.T, seed uint64) {
	dir, random := t.TempDir(), rand.New(rand.NewPCG(seed, 0))
	killed := 0
	for round := range syncRounds {
		for kill := 0; ; kill++ {
			// The process prints lines all the while. It prints the last ones when its lists end
			// and members leave. After three kills it may complete the round.
			last := random.IntN(45)
			err := runUntil(command("sync", syncSettings{dir, round, random.Uint64()}), func(n int, _ string) bool {
				return n == last && kill < 3
			})
			if err == nil {
				break
			} else if kill >= 3 {
				t.Fatalf("round %d: the process ended with %v, want nil", round, err)
			}
			killed++
		}
	}
	if killed == 0 {
		t.Error("no process was killed, want some kills")
	}

	if _, err := checkStore(dir); err != nil {
		t.Error(err)
	}
	s, err := openStore(dir, filequeue.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	// The announced changes, by trait and user.
	type change struct {
		at     string
		member bool
	}
	told := make(map[string]map[string][]change)
	deleted := make(map[string]int)  // how many deletions were announced, by destination and user
	first := make(map[string]string) // the first announcement, by destination and id
	again := 0
	for {
		ds, err := fetch(t.Context(), s, 1000)
		if err != nil {
			t.Fatal(err)
		}
		if len(ds) == 0 {
			break
		}
		for _, d := range ds {
			var body struct {
				Type, UserID, Timestamp string
				Traits                  map[string]bool
			}
			if err := json.Unmarshal(d.Body, &body); err != nil {
				t.Fatal(err)
			}
			// The process after a kill announces the chunk in flight again, unchanged.
			key, now := d.Destination+" "+d.ID, fmt.Sprint(body)
			if before, is := first[key]; is && (before != now || body.Type == "delete") {
				t.Errorf("%s was announced twice: %s, %s; want equal announcements, and no deletion twice", key, before, now)
			} else if is {
				again++
				continue
			}
			first[key] = now
			if body.Type == "delete" {
				deleted[d.Destination+" "+body.UserID]++
			}
			for trait, member := range body.Traits {
				if told[trait] == nil {
					told[trait] = make(map[string][]change)
				}
				told[trait][body.UserID] = append(told[trait][body.UserID], change{body.Timestamp, member})
			}
		}
	}
	for _, trait := range []string{"even", "odd"} {
		wrong := 0
		want := make(map[string][]bool)
		for i := range 12_000 {
			if (i%2 == 0) != (trait == "even") {
				continue
			}
			was := false
			for _, r := range syncRounds {
				if is := r[0] <= i && i < r[1]; is != was {
					want[userID(i)] = append(want[userID(i)], is)
					was = is
				}
			}
		}
		for user, changes := range told[trait] {
			slices.SortFunc(changes, func(a, b change) int { return strings.Compare(a.at, b.at) })
			var got []bool
			for _, c := range changes {
				got = append(got, c.member)
			}
			if !slices.Equal(got, want[user]) {
				if wrong++; wrong < 5 {
					t.Errorf("%s: %s was announced as %v, want %v", trait, user, got, want[user])
				}
			}
		}
		if len(told[trait]) != len(want) {
			t.Errorf("%s: %d users were announced, want %d", trait, len(told[trait]), len(want))
		}
		if wrong > 0 {
			t.Errorf("%s: %d of %d users were announced wrongly, want 0", trait, wrong, len(want))
		}
	}
	// A kill repeats at most one chunk of each of the two audiences.
	if most := killed * 2 * 2048; again > most {
		t.Errorf("%d announcements were repeated after %d kills, want at most %d", again, killed, most)
	}
	t.Logf("%d kills, %d announcements that were repeated", killed, again)
	// crm gets one deletion of each user in each round, and erp gets two.
	want := make(map[string]int)
	for i := range deletedUsers {
		want["crm "+userID(i)] = len(syncRounds)
		want["erp "+userID(i)] = 2 * len(syncRounds)
	}
	if !maps.Equal(deleted, want) {
		t.Errorf("got deletions for %d pairs of destination and user, want %d, with one deletion a round for crm and two for erp", len(deleted), len(want))
	}
}

func userID(i int) string { return fmt.Sprint("user-", i) }

type syncSettings struct {
	Dir   string
	Round int
	Seed  uint64
}

// syncChild syncs the audiences and deletes users as the round says. It prints a line now and then.
func syncChild(settings []byte) error {
	var c syncSettings
	if err := json.Unmarshal(settings, &c); err != nil {
		return err
	}
	s, err := openStore(c.Dir, filequeue.Config{})
	if err != nil {
		return err
	}
	r, err := fileroster.Open(storePath(c.Dir))
	if err != nil {
		return err
	}
	f, err := webhook.New(webhook.Config{Store: s, Destinations: []webhook.Destination{
		{ID: "crm", Endpoints: []webhook.Endpoint{{URL: "https://crm.example/"}}},
		{ID: "erp", Endpoints: []webhook.Endpoint{{URL: "https://erp.example/"}}},
	}})
	if err != nil {
		return err
	}
	// list yields every step-th user in a random order.
	list := func(from, to, step int) iter.Seq2[string, error] {
		random := rand.New(rand.NewPCG(c.Seed, uint64(from)))
		return func(yield func(string, error) bool) {
			for n, i := range random.Perm((to - from + step - 1) / step) {
				if n%250 == 0 {
					fmt.Println(n)
				}
				if !yield(userID(from+i*step), nil) {
					return
				}
			}
			fmt.Println("end")
		}
	}
	announcer := audience.New(f, r)
	ctx, round := context.Background(), syncRounds[c.Round]
	ended := make(chan error, 3) // each goroutine sends once
	for odd, name := range []string{"even", "odd"} {
		a, err := announcer.Audience("crm", name)
		if err != nil {
			return err
		}
		go func() {
			_, err := a.AllowShrink().Sync(ctx, list(round[0]+odd, round[1], 2))
			ended <- err
		}()
	}
	go func() {
		ended <- announcer.Delete(ctx, audience.Deletion{ID: fmt.Sprint("request-", c.Round), Destinations: []string{"erp", "crm", "erp"}}, list(0, deletedUsers, 1))
	}()
	return errors.Join(<-ended, <-ended, <-ended, r.Close(), s.Close())
}
