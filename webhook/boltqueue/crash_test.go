package boltqueue_test

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/boltqueue"
)

// crashDir names the environment variable that makes the test binary the
// process that is killed: it puts and settles in this folder until it dies.
const crashDir = "BOLTQUEUE_CRASH_DIR"

// TestKill kills a process that puts and settles, at random moments, and finds
// every delivery it was told is stored, unless it was about to settle it; and
// none that it was told is settled.
func TestKill(t *testing.T) {
	const rounds = 8
	dir := t.TempDir()
	stored, tried, done := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for round := range rounds {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), crashDir+"="+dir, fmt.Sprintf("BOLTQUEUE_CRASH_ROUND=%d", round))
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		last := 100 + rand.IntN(3000)
		lines := bufio.NewScanner(out)
		n := 0
		for lines.Scan() {
			what, id, ok := strings.Cut(lines.Text(), " ")
			if !ok {
				continue // cut short by the kill
			}
			switch what {
			case "stored":
				stored[id] = true
			case "try":
				tried[id] = true
			case "done":
				done[id] = true
			}
			if n++; n == last {
				// What it still has to say is read as well.
				if err := cmd.Process.Kill(); err != nil {
					t.Fatal(err)
				}
			}
		}
		cmd.Wait()
		if n < last {
			t.Fatalf("round %d: the process ended by itself after %d lines", round, n)
		}

		q := openWith(nil)(t, dir)
		check(t, q)
		counts, err := q.(webhook.Counter).Count(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		there := map[string]bool{}
		for len(there) < counts.Waiting {
			ds, _, err := q.Lease(t.Context(), webhook.LeaseRequest{Max: 1000, Until: time.Now().Add(time.Hour)}, nil)
			if err != nil || len(ds) == 0 {
				t.Fatalf("round %d: Lease = %d, %v, with %d of %d handed out", round, len(ds), err, len(there), counts.Waiting)
			}
			for _, d := range ds {
				there[d.ID] = true
				if !strings.Contains(string(d.Body), d.ID) {
					t.Errorf("round %d: %s has the body %q", round, d.ID, d.Body)
				}
			}
		}
		lost := 0
		for id := range stored {
			if !there[id] && !tried[id] {
				lost++
			}
		}
		back := 0
		for id := range done {
			if there[id] {
				back++
			}
		}
		if lost > 0 || back > 0 {
			t.Errorf("round %d: of %d stored and %d settled deliveries, %d are lost and %d are back", round, len(stored), len(done), lost, back)
		}
		if err := q.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if len(stored) < 100*rounds/4 || len(done) == 0 {
		t.Errorf("the processes stored %d and settled %d deliveries, too few to show anything", len(stored), len(done))
	}
}

// crashChild puts and settles, and says so, until it is killed.
func crashChild(dir string) {
	// A little cache has some deliveries go through memory, others not.
	q, err := boltqueue.Open(filepath.Join(dir, "queue.db"), &boltqueue.Config{CacheBytes: 128 << 10})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
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
	round := os.Getenv("BOLTQUEUE_CRASH_ROUND")
	for p := range 4 {
		go func() {
			for i := 0; ; i++ {
				var ds []webhook.Delivery
				var ids []string
				for j := range 1 + rand.IntN(20) {
					id := fmt.Sprint(round, "-", p, "-", i, "-", j)
					now := time.Now()
					ds = append(ds, webhook.Delivery{
						Destination: fmt.Sprint("d", j%5), ID: id, Type: "track",
						Body: []byte(`{"messageId":"` + id + `"}`), Accepted: now, Due: now,
					})
					ids = append(ids, id)
				}
				if _, err := q.Put(ctx, ds...); err != nil {
					fmt.Fprintln(os.Stderr, err)
					os.Exit(1)
				}
				say("stored", ids...)
			}
		}()
	}
	for {
		ds, _, err := q.Lease(ctx, webhook.LeaseRequest{Max: 30, Until: time.Now().Add(time.Minute)}, nil)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		var ss []webhook.Settlement
		var ids []string
		for _, d := range ds {
			s := webhook.Settlement{Verdict: webhook.Retry, Delivery: d}
			s.Delivery.Due = time.Now()
			if rand.IntN(3) > 0 {
				s.Verdict = webhook.Done
				ids = append(ids, d.ID)
			}
			ss = append(ss, s)
		}
		say("try", ids...)
		if err := q.Settle(ctx, ss...); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		say("done", ids...)
	}
}
