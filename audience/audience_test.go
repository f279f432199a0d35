package audience_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hookferry/analytics/audience"
	"github.com/hookferry/analytics/audience/memroster"
	"github.com/hookferry/analytics/internal/testkit"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/memqueue"
)

func TestTraitName(t *testing.T) {
	for name, want := range map[string]string{
		"VIP Users 2024":      "vip_users_2024",
		"vipUsers":            "vip_users",
		"VIPUsers":            "vipusers",
		"  spaced  out  ":     "spaced_out",
		"already_snake":       "already_snake",
		"kebab-case.and/dots": "kebab_case_and_dots",
		"users2024Plan":       "users2024plan",
		"Größe Über":          "größe_über",
		"größeÜber":           "größe_über",
		"Ünïted":              "ünïted",
		"高級 ユーザー 2024":        "高級_ユーザー_2024",
		"हिन्दी उपयोगकर्ता": "हिन्दी_उपयोगकर्ता",
		"٣ أيام":           "٣_أيام",
		"__x__":            "x",
		"a__b":             "a_b",
		"🎉 party":          "party",
		"\u0301accent":     "accent",
		"!!!":              "",
		"":                 "",
		"a🎉b":              "a_b",
		"ΑΣΚΗΣΗ":           "ασκηση",
		"cafe\u0301Bar":    "cafe\u0301_bar",
		"x" + "\xff" + "y": "x_y",
	} {
		if got := audience.TraitName(name); got != want {
			t.Errorf("TraitName(%q) = %q, want %q", name, got, want)
		}
	}
}

func TestSyncSendsOnlyChanges(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		recv := r.network.Receiver(hook, "shh")
		r.start(crm)
		a := r.audience("crm", "VIP Users 2024")
		if a.Trait() != "vip_users_2024" {
			t.Errorf("Trait() = %q, want vip_users_2024", a.Trait())
		}
		seen := 0
		sync := func(joined, left int, members ...string) []string {
			t.Helper()
			res, err := a.Sync(t.Context(), audience.Users(slices.Values(members)))
			if want := (audience.SyncResult{Joined: joined, Left: left}); res != want || err != nil {
				t.Errorf("Sync(%v) = %+v, %v; want %+v", members, res, err, want)
			}
			synctest.Wait()
			var got []string
			for _, q := range recv.Requests()[seen:] {
				if q.JSON["type"] != "identify" || q.Signature != nil {
					t.Errorf("body is %s, signature error %v, want a signed identify", q.Body, q.Signature)
				}
				traits := q.JSON["traits"].(map[string]any)
				if len(traits) != 1 {
					t.Errorf("traits are %v, want one", traits)
				}
				got = append(got, fmt.Sprint(q.JSON["userId"], " ", traits["vip_users_2024"]))
			}
			seen += len(got)
			slices.Sort(got)
			return got
		}
		for _, tt := range []struct {
			name         string
			members      []string
			joined, left int
			want         []string
		}{
			{"created", []string{"u3", "u1", "u2"}, 3, 0, []string{"u1 true", "u2 true", "u3 true"}},
			{"unchanged", []string{"u1", "u2", "u3", "u1"}, 0, 0, nil},
			{"changed", []string{"u4", "u2"}, 1, 2, []string{"u1 false", "u3 false", "u4 true"}},
			{"back again", []string{"u1", "u2", "u4"}, 1, 0, []string{"u1 true"}},
			{"emptied", nil, 0, 3, []string{"u1 false", "u2 false", "u4 false"}},
			{"emptied again", nil, 0, 0, nil},
		} {
			if d := cmp.Diff(tt.want, sync(tt.joined, tt.left, tt.members...)); d != "" {
				t.Errorf("%s (-want +got):\n%s", tt.name, d)
			}
		}

		// A sync after a restart sends no user again.
		sync(2, 0, "u1", "u2")
		r.stop()
		r.start(crm)
		a = r.audience("crm", "vip users 2024")
		if got := sync(0, 0, "u2", "u1"); got != nil {
			t.Errorf("a sync after a restart sent %v, want nothing", got)
		}
		if got := collect(t, a.Members(t.Context())); !slices.Equal(got, []string{"u1", "u2"}) {
			t.Errorf("Members = %v, want u1 and u2", got)
		}
	})
}

func TestSyncOfMoreThanOneChunk(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		r.network.Receiver(hook, "shh")
		r.start(crm)
		a := r.audience("crm", "all")
		members := func(from, to int) iter.Seq2[string, error] {
			return func(yield func(string, error) bool) {
				for i := from; i < to && yield(fmt.Sprint("user-", i), nil); i++ {
				}
			}
		}
		if res, err := a.Sync(t.Context(), members(0, 3000)); res != (audience.SyncResult{Joined: 3000}) || err != nil {
			t.Errorf("Sync = %+v, %v, want 3000 joined", res, err)
		}
		if res, err := a.Sync(t.Context(), members(1000, 4000)); res != (audience.SyncResult{Joined: 1000, Left: 1000}) || err != nil {
			t.Errorf("Sync = %+v, %v, want 1000 joined and 1000 left", res, err)
		}
		time.Sleep(time.Second) // outcomes are stored together
		if s := r.Stats(); s.Delivered != 5000 || s.Accepted != 5000 {
			t.Errorf("Stats() = %+v, want 5000 accepted and delivered", s)
		}
	})
}

// TestSyncResumesAfterAnError shows that a sync goes on where the one before it failed. No change
// is sent twice, and none is missing.
func TestSyncResumesAfterAnError(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		recv := r.network.Receiver(hook, "shh")
		r.start(crm)
		a := r.audience("crm", "all")
		if _, err := a.Sync(t.Context(), audience.Users(slices.Values([]string{"gone", "kept"}))); err != nil {
			t.Fatal(err)
		}
		listing := func(until int, failure error) iter.Seq2[string, error] {
			return func(yield func(string, error) bool) {
				for i := range until {
					if !yield(fmt.Sprint("new-", i), nil) {
						return
					}
				}
				yield("kept", failure)
			}
		}
		broken := errors.New("the cursor is lost")
		if _, err := a.Sync(t.Context(), listing(1200, broken)); !errors.Is(err, broken) {
			t.Fatalf("Sync of a list that fails = %v, want %v", err, broken)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := a.Sync(ctx, listing(2000, nil)); !errors.Is(err, context.Canceled) {
			t.Fatalf("Sync with a cancelled context = %v, want context.Canceled", err)
		}
		if _, err := a.Sync(t.Context(), listing(2000, nil)); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		times := make(map[string]int)
		for _, q := range recv.Requests() {
			times[fmt.Sprint(q.JSON["userId"], q.JSON["traits"])]++
		}
		for what, n := range times {
			if n != 1 {
				t.Errorf("%s was sent %d times, want once", what, n)
			}
		}
		if len(times) != 2000+2+1 {
			t.Errorf("%d changes were sent, want 2003", len(times))
		}
	})
}

func TestAudienceRefusesNamesAndConcurrentSyncs(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		r.start(crm)
		if _, err := r.Audience("erp", "all"); !errors.Is(err, webhook.ErrUnknownDestination) {
			t.Errorf("Audience of an unknown destination: %v, want ErrUnknownDestination", err)
		}
		for _, name := range []string{"", "!!!", strings.Repeat("x", 256)} {
			if _, err := r.Audience("crm", name); err == nil {
				t.Errorf("Audience(%q) returned no error", name)
			}
		}
		a := r.audience("crm", "all")
		_, err := a.Sync(t.Context(), func(yield func(string, error) bool) {
			if _, err := a.Sync(t.Context(), audience.Users(slices.Values([]string{"u"}))); !errors.Is(err, audience.ErrSyncing) {
				t.Errorf("a second Sync at the same time = %v, want ErrSyncing", err)
			}
		})
		if err != nil {
			t.Error(err)
		}
	})
}

// TestAudienceRefusesAZeroByte: stores keep members and names under keys whose parts a zero byte
// separates. So the id of a destination may not have a zero byte.
func TestAudienceRefusesAZeroByte(t *testing.T) {
	store := testkit.Must(memqueue.Open(memqueue.Config{}))
	f, err := webhook.New(webhook.Config{
		Store:     store,
		Directory: struct{ webhook.Directory }{}, // is not asked
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := audience.New(f, memroster.New(0)).Audience("crm\x00vip", "all"); err == nil {
		t.Error("Audience of a destination with a zero byte in its id returned no error")
	}
}

// TestAudienceRefusesUserIDs shows that a wrong user id ends a sync. The sync removes nobody, and
// the members that it has stored before stay.
func TestAudienceRefusesUserIDs(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		r.network.Receiver(hook, "shh")
		r.start(crm)
		for _, user := range []string{"", strings.Repeat("x", 256)} {
			a := r.audience("crm", fmt.Sprint("all ", len(user)))
			if _, err := a.Sync(t.Context(), users("before")); err != nil {
				t.Fatal(err)
			}
			var list []string
			for i := range 2050 {
				list = append(list, fmt.Sprint("u", i))
			}
			list = append(list, user, "after")
			want := audience.UserError{Position: 2050, Size: len(user), Limit: 255}
			var ue *audience.UserError
			res, err := a.Sync(t.Context(), users(list...))
			if ue = nil; !errors.As(err, &ue) || *ue != want {
				t.Errorf("a user id of %d bytes: Sync returns %v, want %v", len(user), err, &want)
			}
			if res != (audience.SyncResult{Joined: 2048}) {
				t.Errorf("before a user id of %d bytes: %+v, want 2048 joined", len(user), res)
			}
			if n := len(collect(t, a.Members(t.Context()))); n != 2049 {
				t.Errorf("the audience has %d members, want 2049", n)
			}
			if res, err := a.AllowShrink().Sync(t.Context(), users(strings.Repeat("x", 255))); res.Joined != 1 || res.Left != 2049 || err != nil {
				t.Errorf("a user id of 255 bytes: %+v, %v, want 1 joined and 2049 left", res, err)
			}
		}
	})
}

// TestSyncRefusesToShrink shows that nobody leaves if more than half would, unless that is allowed. A
// small audience may lose everybody.
func TestSyncRefusesToShrink(t *testing.T) {
	for _, tt := range []struct {
		name       string
		size       int // of the audience before: u0, u1 ...
		from, to   int // the users in the list
		left, join int
		refused    *audience.ShrinkError
	}{
		{"an empty list", 20, 0, 0, 20, 0, &audience.ShrinkError{Members: 20, Leaving: 20}},
		{"an empty list for few", 19, 0, 0, 19, 0, nil},
		{"half leave", 20, 10, 20, 10, 0, nil},
		{"one more leaves", 20, 11, 20, 11, 0, &audience.ShrinkError{Members: 20, Leaving: 11}},
		{"others join", 20, 15, 2100, 15, 2080, &audience.ShrinkError{Members: 20, Leaving: 15}},
		{"many leave", 5000, 4000, 5000, 4000, 0, &audience.ShrinkError{Members: 5000, Leaving: 4000}},
	} {
		inBubble(t, func(t *testing.T, r *rig) {
			r.start(crm)
			r.network.Receiver(hook, "shh")
			a := r.audience("crm", "all")
			if _, err := a.Sync(t.Context(), numbered(0, tt.size, false, func() {})); err != nil {
				t.Fatal(err)
			}
			list := numbered(tt.from, tt.to, false, func() {})
			res, err := a.Sync(t.Context(), list)
			want := audience.SyncResult{Joined: tt.join, Left: tt.left}
			if tt.refused != nil {
				refused, ok := errors.AsType[*audience.ShrinkError](err)
				if !ok || *refused != *tt.refused || res.Left != 0 {
					t.Errorf("%s: Sync = %+v, %v, want %v", tt.name, res, err, tt.refused)
				}
				if n := len(collect(t, a.Members(t.Context()))); n != tt.size+tt.join {
					t.Errorf("%s: %d members after the refusal, want %d", tt.name, n, tt.size+tt.join)
				}
				joined := res.Joined
				res, err = a.AllowShrink().Sync(t.Context(), list)
				res.Joined += joined
			}
			if res != want || err != nil {
				t.Errorf("%s: Sync = %+v, %v, want %+v", tt.name, res, err, want)
			}
			if n := len(collect(t, a.Members(t.Context()))); n != tt.to-tt.from {
				t.Errorf("%s: %d members, want %d", tt.name, n, tt.to-tt.from)
			}
		})
	}
}

// TestCutListRemovesNobody shows that a sync removes no member if its list ends early, in any
// way. The next sync may begin at once.
func TestCutListRemovesNobody(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		r.network.Receiver(hook, "shh")
		r.start(crm)
		a := r.audience("crm", "all")
		if _, err := a.Sync(t.Context(), users("u1", "u2", "u3")); err != nil {
			t.Fatal(err)
		}
		broken := errors.New("the cursor is lost")
		var ctx context.Context
		var cancel context.CancelFunc
		for _, tt := range []struct {
			name  string
			end   func(yield func(string, error) bool)
			want  error
			panic bool
		}{
			{name: "an error", end: func(yield func(string, error) bool) { yield("u2", broken) }, want: broken},
			{name: "a context that ends, and a list that ends with it", end: func(func(string, error) bool) { cancel() }, want: context.Canceled},
			{name: "a context that ends, and a list that goes on", end: func(yield func(string, error) bool) { cancel(); yield("u2", nil) }, want: context.Canceled},
			{name: "a panic", end: func(func(string, error) bool) { panic(broken) }, panic: true},
			{name: "the end of the goroutine", end: func(func(string, error) bool) { runtime.Goexit() }, panic: true},
		} {
			ctx, cancel = context.WithCancel(t.Context())
			ended := make(chan error)
			go func() {
				err := errPanicked
				defer func() {
					recover()
					ended <- err
				}()
				_, err1 := a.Sync(ctx, func(yield func(string, error) bool) {
					if yield("u1", nil) {
						tt.end(yield)
					}
				})
				err = err1
			}()
			err := <-ended
			cancel()
			if tt.panic != errors.Is(err, errPanicked) || !errors.Is(err, tt.want) && !tt.panic {
				t.Errorf("%s: Sync = %v, want %v", tt.name, err, tt.want)
			}
			if got := collect(t, a.Members(t.Context())); !slices.Equal(got, []string{"u1", "u2", "u3"}) {
				t.Errorf("%s: the members are %q, want u1, u2 and u3", tt.name, got)
			}
		}
		if res, err := a.Sync(t.Context(), users("u1", "u3")); res != (audience.SyncResult{Left: 1}) || err != nil {
			t.Errorf("Sync = %+v, %v, want 1 left", res, err)
		}
		_, err := a.Sync(t.Context(), func(yield func(string, error) bool) {
			r.Shutdown(t.Context())
		})
		if !errors.Is(err, webhook.ErrClosed) {
			t.Errorf("Sync during Shutdown = %v, want ErrClosed", err)
		}
		if _, err = a.Sync(t.Context(), users()); !errors.Is(err, webhook.ErrClosed) {
			t.Errorf("Sync after Shutdown = %v, want ErrClosed", err)
		}
	})
}

// TestLaterSyncSupersedes shows that a Sync ends when another Announcer, such as one on another
// node, begins a Sync of the same audience.
func TestLaterSyncSupersedes(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		recv := r.network.Receiver(hook, "shh")
		r.start(crm)
		a := r.audience("crm", "all")
		other, err := audience.New(r.Forwarder, r.roster).Audience("crm", "all")
		if err != nil {
			t.Fatal(err)
		}
		res, err := a.Sync(t.Context(), func(yield func(string, error) bool) {
			yield("u1", nil)
			if res, err := other.Sync(t.Context(), users("u2")); res != (audience.SyncResult{Joined: 1}) || err != nil {
				t.Errorf("the later Sync = %+v, %v, want 1 joined", res, err)
			}
			yield("u3", nil)
		})
		if res != (audience.SyncResult{}) || !errors.Is(err, audience.ErrSuperseded) {
			t.Errorf("the earlier Sync = %+v, %v, want none joined and ErrSuperseded", res, err)
		}
		if got := collect(t, a.Members(t.Context())); !slices.Equal(got, []string{"u2"}) {
			t.Errorf("the members are %q, want u2", got)
		}
		synctest.Wait()
		if n := len(recv.Requests()); n != 1 {
			t.Errorf("%d changes were sent, want 1", n)
		}
	})
}

var errPanicked = errors.New("the sync panicked")

// TestSyncWaitsForAFullQueue shows that a sync goes on at the pace of a full queue. If its context
// ends while it waits, its error says that the queue is full.
func TestSyncWaitsForAFullQueue(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		r.queue.Close()
		const n = 1000
		r.queue = testkit.Must(memqueue.Open(memqueue.Config{MaxBytes: 64 << 10}))
		recv := r.network.Receiver(hook, "shh")
		r.open(crm) // the forwarder does not deliver yet
		a := r.audience("crm", "all")
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		list := numbered(0, n, false, func() {})
		res, err := a.Sync(ctx, list)
		if !errors.Is(err, webhook.ErrQueueFull) || !errors.Is(err, context.DeadlineExceeded) || res.Joined == 0 || res.Joined > n/2+200 {
			t.Errorf("Sync to a full queue = %+v, %v, want some joined, ErrQueueFull and the exceeded deadline", res, err)
		}
		if n := r.waiting(); n != res.Joined {
			t.Errorf("%d deliveries wait, want %d", n, res.Joined)
		}

		r.start(crm)
		a = r.audience("crm", "all")
		again, err := a.Sync(t.Context(), list)
		if again.Joined+res.Joined != n || again.Left != 0 || err != nil {
			t.Errorf("Sync while deliveries make room = %+v, %v, want the other members joined", again, err)
		}
		if again, err = a.AllowShrink().Sync(t.Context(), users()); again.Left != n || err != nil {
			t.Errorf("Sync of an empty list = %+v, %v, want %d left", again, err, n)
		}
		synctest.Wait()
		sent := make(map[string]int)
		for _, q := range recv.Requests() {
			sent[fmt.Sprint(q.JSON["userId"], q.JSON["traits"])]++
		}
		for what, times := range sent {
			if times != 1 {
				t.Errorf("%s was sent %d times, want once", what, times)
			}
		}
		if len(sent) != 2*n {
			t.Errorf("%d changes were sent, want %d", len(sent), 2*n)
		}
	})
}

// TestAudiencesSyncConcurrently shows that concurrent syncs of audiences in one store do not affect
// each other.
func TestAudiencesSyncConcurrently(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		recv := r.network.Receiver(hook, "shh")
		r.start(crm)
		var wg sync.WaitGroup
		for i := range 8 {
			a := r.audience("crm", fmt.Sprint("group ", i))
			wg.Go(func() {
				for round, want := range []audience.SyncResult{{Joined: 300 + i}, {Joined: i, Left: i}, {}} {
					from := min(round, 1) * i
					if res, err := a.Sync(t.Context(), numbered(from, from+300+i, true, func() {})); res != want || err != nil {
						t.Errorf("%s, sync %d: %+v, %v, want %+v", a.Trait(), round, res, err, want)
					}
				}
			})
		}
		wg.Wait()
		synctest.Wait()
		sent := make(map[string]map[string]int)
		for _, q := range recv.Requests() {
			for trait, member := range q.JSON["traits"].(map[string]any) {
				if sent[trait] == nil {
					sent[trait] = make(map[string]int)
				}
				sent[trait][fmt.Sprint(q.JSON["userId"], member)]++
			}
		}
		for i := range 8 {
			got := sent[fmt.Sprint("group_", i)]
			if len(got) != 300+3*i {
				t.Errorf("group %d: %d changes were sent, want %d", i, len(got), 300+3*i)
			}
			for what, n := range got {
				if n != 1 {
					t.Errorf("group %d: %s was sent %d times, want once", i, what, n)
				}
			}
		}
	})
}
