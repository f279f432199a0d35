//go:build unix

package pgqueue

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/pgqueue/internal/pgtest"
)

var (
	chaosTime   = flag.Duration("chaos", 9*time.Second, "how long TestChaos kills for")
	chaosOutage = flag.Duration("chaos.outage", time.Second, "how long TestChaos leaves the database away")
)

const (
	chaosInFlight = 32
	chaosSchema   = "chaos"
	// chaosNode is the environment variable that makes the test binary a node:
	// its prefix of ids, the receiver's URL and the database, by lines.
	chaosNode = "PGQUEUE_CHAOS_NODE"
)

func chaosDestinations(url string) []webhook.Destination {
	var ds []webhook.Destination
	for i := range 3 {
		ds = append(ds, webhook.Destination{ID: fmt.Sprint("d", i), Secret: "shh", Endpoints: []webhook.Endpoint{{URL: url}}})
	}
	return ds
}

// runNode forwards and delivers until its standard input ends. It prints the ids
// that were accepted, and "anew" when its claims have expired.
func runNode(setting string) error {
	lines := strings.Split(setting, "\n")
	prefix, url, database := lines[0], lines[1], lines[2]
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	pool, err := pgxpool.New(ctx, database)
	if err != nil {
		return err
	}
	defer pool.Close()
	var q *Queue
	for q == nil { // the database may be away just now
		if q, err = Open(ctx, pool, &Config{Schema: chaosSchema, Claim: 3 * time.Second, Poll: 500 * time.Millisecond}); err != nil {
			wait(ctx, 50*time.Millisecond)
		}
	}
	defer q.Close()
	f, err := webhook.New(webhook.Config{
		Queue: q, Destinations: chaosDestinations(url), MaxInFlight: chaosInFlight,
		Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- f.Run(context.Background()) }()
	go func() { // ends with the process at the latest
		io.Copy(io.Discard, os.Stdin)
		stop()
	}()
	node := q.nodeNow()
	for i := 0; ctx.Err() == nil; i++ {
		events := make([]webhook.Event, 5)
		for j := range events {
			id := fmt.Sprintf("%s-%d-%d", prefix, i, j)
			events[j] = webhook.Event{ID: id, Type: "track", Body: fmt.Appendf(nil, `{"messageId":%q}`, id), Received: time.Now()}
		}
		if err := f.ForwardEvents(ctx, []string{fmt.Sprint("d", i%3)}, events...); err == nil {
			for _, e := range events {
				fmt.Println(e.ID)
			}
		}
		if now := q.nodeNow(); now != node {
			node = now
			fmt.Println("anew")
		}
		wait(ctx, 10*time.Millisecond)
	}
	if err := f.Shutdown(context.Background()); err != nil {
		return err
	}
	return <-ended
}

func wait(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// chaosAccount is what is known of each event.
type chaosAccount struct {
	mu        sync.Mutex
	accepted  map[string]bool
	delivered map[string]int
	anew      int
}

// ServeHTTP takes most events, fails some for now, and refuses some for good, which
// their ids tell.
func (a *chaosAccount) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var event struct {
		ID string `json:"messageId"`
	}
	if err := json.NewDecoder(r.Body).Decode(&event); err != nil {
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	if strings.HasSuffix(event.ID, "7-0") {
		w.WriteHeader(http.StatusGone)
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if rand.IntN(50) == 0 && a.delivered[event.ID] == 0 {
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	a.delivered[event.ID]++
}

// A child is a node in a process of its own.
type child struct {
	cmd  *exec.Cmd
	in   io.Closer
	read chan struct{}
}

func (a *chaosAccount) start(t *testing.T, prefix, url, database string) *child {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), chaosNode+"="+prefix+"\n"+url+"\n"+database)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c := &child{cmd, in, make(chan struct{})}
	go func() { // ends with the process
		defer close(c.read)
		for s := bufio.NewScanner(out); s.Scan(); {
			a.mu.Lock()
			if s.Text() == "anew" {
				a.anew++
			} else {
				a.accepted[s.Text()] = true
			}
			a.mu.Unlock()
		}
	}()
	return c
}

func (c *child) end(kill bool) error {
	if kill {
		c.cmd.Process.Kill()
	} else {
		c.in.Close()
	}
	<-c.read
	return c.cmd.Wait()
}

// Processes are killed, and the database is: what was accepted is delivered or
// dead in the end, and only what was in flight is delivered twice.
func TestChaos(t *testing.T) {
	db, err := pgtest.Start("fsync=off")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	a := &chaosAccount{accepted: make(map[string]bool), delivered: make(map[string]int)}
	receiver := httptest.NewServer(a)
	defer receiver.Close()

	nodes := make([]*child, 3)
	started := 0
	start := func(i int) {
		started++
		nodes[i] = a.start(t, fmt.Sprint("n", started), receiver.URL, db.URL())
	}
	for i := range nodes {
		start(i)
	}
	kills := 0
	outage := time.After(*chaosTime / 2)
	kill := time.NewTicker(min(*chaosTime/4, 10*time.Second))
	defer kill.Stop()
	for end := time.After(*chaosTime); end != nil; {
		select {
		case <-kill.C:
			i := kills % len(nodes)
			nodes[i].end(true)
			kills++
			start(i)
		case <-outage:
			if err := db.Down(); err != nil {
				t.Fatal(err)
			}
			wait(t.Context(), *chaosOutage)
			if err := db.Up(); err != nil {
				t.Fatal(err)
			}
		case <-end:
			end = nil
		}
	}
	for _, n := range nodes {
		if err := n.end(false); err != nil {
			t.Errorf("a node that was to stop: %v", err)
		}
	}
	pool, err := pgxpool.New(t.Context(), db.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	q, err := Open(t.Context(), pool, &Config{Schema: chaosSchema, Claim: 3 * time.Second, Poll: 500 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	rest := drainChaos(t, q, receiver.URL)

	dead := make(map[string]bool)
	for d, err := range q.Dead(t.Context(), webhook.DeadFilter{}, "") {
		if err != nil {
			t.Fatal(err)
		}
		if dead[d.ID] {
			t.Errorf("%s is dead twice", d.ID)
		}
		dead[d.ID] = true
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	lost, twice := 0, 0
	for id := range a.accepted {
		if a.delivered[id] == 0 && !dead[id] {
			lost++
			t.Errorf("%s was accepted and is neither delivered nor dead", id)
		}
	}
	for id, n := range a.delivered {
		twice += n - 1
		if dead[id] {
			t.Errorf("%s is delivered and dead", id)
		}
	}
	// In flight is what is attempted, and what the store is not told of yet.
	if most := (kills + a.anew) * 9 * chaosInFlight; twice > most {
		t.Errorf("%d were delivered twice; %d could have been in flight", twice, most)
	}
	if len(a.accepted) < 100 || len(dead) == 0 {
		t.Errorf("only %d accepted, and %d dead: no load", len(a.accepted), len(dead))
	}
	t.Logf("%d accepted, %d delivered, %d dead, %d lost, %d twice; %d kills, %d claims expired, %d left to the last",
		len(a.accepted), len(a.delivered), len(dead), lost, twice, kills, a.anew, rest)
}

// drainChaos delivers what is left, and returns how much that was.
func drainChaos(t *testing.T, q *Queue, url string) int {
	t.Helper()
	counts, err := q.Count(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	rest := counts.Waiting
	f, err := webhook.New(webhook.Config{Queue: q, Destinations: chaosDestinations(url), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- f.Run(context.Background()) }()
	for end := time.Now().Add(time.Minute); counts.Waiting > 0; {
		if time.Now().After(end) {
			t.Fatalf("%+v is left after a minute", counts)
		}
		wait(t.Context(), 50*time.Millisecond)
		if counts, err = q.Count(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Shutdown(context.Background()); err != nil {
		t.Error(err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
	return rest
}
