package filestore_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hookferry/analytics/internal/soakenv"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/filequeue"
	"github.com/hookferry/analytics/webhook/store"
)

// TestKill kills a process that puts and settles, at random moments. The store then has every
// delivery that the process reported as stored, unless it was about to settle that one. The store
// has no delivery that the process reported as done, and each key has its order.
func TestKill(t *testing.T) {
	soakenv.Only(t, "file-kill")
	for seed := range soakenv.Seeds(t, 1) {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) { testKill(t, seed) })
	}
}

func testKill(t *testing.T, seed uint64) {
	const rounds = 8
	dir, random := t.TempDir(), rand.New(rand.NewPCG(seed, 0))
	said := newKillLedger()
	for round := range rounds {
		if err := said.run(dir, round, random.Uint64(), 100+random.IntN(3000)); err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		if _, err := checkStore(dir); err != nil {
			t.Error(err)
		}
		s, err := openStore(dir, filequeue.Config{})
		if err != nil {
			t.Fatal(err)
		}
		counts, err := s.Count(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		there := map[string]bool{}
		if err := checkOrder(t.Context(), s, there); err != nil {
			t.Errorf("round %d: %v", round, err)
		}
		for len(there) < counts.Waiting {
			ds, err := fetch(t.Context(), s, 1000)
			if err != nil || len(ds) == 0 {
				t.Fatalf("round %d: Fetch = %d, %v after %d of %d deliveries, want more", round, len(ds), err, len(there), counts.Waiting)
			}
			for _, d := range ds {
				if there[d.ID] {
					t.Errorf("round %d: delivery %s is behind another one, and was fetched", round, d.ID)
				}
				there[d.ID] = true
				if !strings.Contains(string(d.Body), d.ID) {
					t.Errorf("round %d: delivery %s has the body %q, want its own", round, d.ID, d.Body)
				}
			}
		}
		back := 0
		for id := range said.done {
			if there[id] {
				back++
			}
		}
		if lost := said.lost(there); lost > 0 || back > 0 {
			t.Errorf("round %d: of %d stored and %d settled deliveries, %d are lost and %d have come back, want 0, 0", round, len(said.stored), len(said.done), lost, back)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if len(said.stored) < 100*rounds/4 || len(said.done) == 0 {
		t.Errorf("the processes stored %d and settled %d deliveries, want at least 200, and some settled", len(said.stored), len(said.done))
	}
}

// checkOrder adds the deliveries that are behind others to behind. It returns an error unless the
// deliveries of each key are in the order of their puts, and all of them but the first are behind.
func checkOrder(ctx context.Context, s webhook.Store, behind map[string]bool) error {
	latest := make(map[[2]string][3]int)
	for d, err := range store.Records(ctx, s, store.Query{Oldest: true}) {
		if err != nil {
			return err
		}
		if d.State == store.StateBehind {
			behind[d.ID] = true
		}
		if d.Key == "" {
			continue
		}
		var turn [3]int // the round, the call, and the place in the call
		var putter int
		if _, err := fmt.Sscanf(d.ID, "%d-%d-%d-%d", &turn[0], &putter, &turn[1], &turn[2]); err != nil {
			return err
		}
		key := [2]string{d.Destination, d.Key}
		before, follows := latest[key]
		if follows != (d.State == store.StateBehind) || follows && slices.Compare(turn[:], before[:]) <= 0 {
			return fmt.Errorf("delivery %s to %s is %s, and follows one of %v: %t", d.ID, d.Destination, d.State, before, follows)
		}
		latest[key] = turn
	}
	return nil
}

// A killLedger has the ids that processes have reported before they were killed.
type killLedger struct{ stored, tried, done map[string]bool }

func newKillLedger() *killLedger {
	return &killLedger{map[string]bool{}, map[string]bool{}, map[string]bool{}}
}

// run runs a process that puts and settles in dir. It kills the process after so many printed
// lines.
func (l *killLedger) run(dir string, round int, seed uint64, lines int) error {
	said := 0
	err := runUntil(command("kill", killSettings{dir, round, seed}), func(n int, line string) bool {
		said++
		switch what, id, _ := strings.Cut(line, " "); what {
		case "stored":
			l.stored[id] = true
		case "try":
			l.tried[id] = true
		case "done":
			l.done[id] = true
		}
		return n == lines
	})
	if said <= lines {
		return fmt.Errorf("the process ended by itself after %d lines: %v", said, err)
	}
	return nil
}

// lost counts the deliveries that were stored, were not about to be settled, and are not in the map
// there.
func (l *killLedger) lost(there map[string]bool) (n int) {
	for id := range l.stored {
		if !there[id] && !l.tried[id] {
			n++
		}
	}
	return n
}

type killSettings struct {
	Dir   string
	Round int
	Seed  uint64
}

// killChild puts and settles deliveries until it is killed. It prints what it does.
func killChild(settings []byte) error {
	var c killSettings
	if err := json.Unmarshal(settings, &c); err != nil {
		return err
	}
	dice := newDice(c.Seed)
	s, err := openStore(c.Dir, filequeue.Config{})
	if err != nil {
		return err
	}
	var mu sync.Mutex
	say := func(what string, ids ...string) {
		var b strings.Builder
		for _, id := range ids {
			b.WriteString(what + " " + id + "\n")
		}
		mu.Lock()
		defer mu.Unlock()
		os.Stdout.WriteString(b.String())
	}
	ctx := context.Background()
	failed := make(chan error)
	for p := range 4 {
		go func() {
			for i := 0; ; i++ {
				var ps []store.Put
				var ids, kept []string
				for j := range 1 + dice.IntN(20) {
					id := fmt.Sprint(c.Round, "-", p, "-", i, "-", j)
					now := time.Now()
					ps = append(ps, store.Put{Keep: dice.IntN(4) == 0, Delivery: webhook.Delivery{
						Destination: fmt.Sprint("d", j%5), ID: id, Key: []string{"", fmt.Sprint("putter ", p)}[j%2], Type: "track",
						Body: []byte(`{"messageId":"` + id + `"}`), Accepted: now, Due: now,
					}})
					ids = append(ids, id)
				}
				out := make([]store.Result, len(ps))
				if err := s.Put(ctx, ps, out); err != nil {
					failed <- err
				}
				say("stored", ids...)
				var ds []webhook.Delivery
				for j, r := range out {
					if ps[j].Claim = r.Claim; r.Claim != 0 {
						ds, kept = append(ds, ps[j].Delivery), append(kept, ids[j])
					}
				}
				say("try", kept...)
				if err := settle(ctx, s, store.Done, ds...); err != nil {
					failed <- err
				}
				say("done", kept...)
			}
		}()
	}
	go func() {
		for {
			ds, err := fetch(ctx, s, 30)
			if err != nil {
				failed <- err
			}
			var ss []store.Settlement
			var ids []string
			for _, d := range ds {
				d.Due, d.Expires = time.Now(), time.Now().Add(time.Hour)
				as := store.Settlement{Verdict: store.Retry, Delivery: d}
				if dice.IntN(3) > 0 {
					as.Verdict = store.Done
					ids = append(ids, d.ID)
				}
				ss = append(ss, as)
			}
			say("try", ids...)
			if _, err := s.Settle(ctx, ss); err != nil {
				failed <- err
			}
			say("done", ids...)
		}
	}()
	return <-failed
}
