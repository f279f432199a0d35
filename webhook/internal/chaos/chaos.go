// Package chaos kills processes that share a store, and takes the store away from
// them, for the tests of stores on a server: what was accepted is delivered or dead
// in the end, and only what was in flight is delivered twice.
package chaos

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

	"github.com/hookferry/analytics/webhook"
)

var (
	runFor = flag.Duration("chaos", 9*time.Second, "how long TestChaos kills for")
	outage = flag.Duration("chaos.outage", time.Second, "how long TestChaos leaves the store away")
)

const (
	inFlight = 32
	// nodeVariable is the environment variable that makes the test binary a
	// node: its prefix of ids, the receiver's URL and the store, by lines.
	nodeVariable = "HOOKFERRY_CHAOS_NODE"
)

// A Store is a store on a server, and how to do it harm.
type Store struct {
	// Addresses are what Open of Main is called with: nodes have them in turn.
	Addresses []string
	// Away takes the store away, or a part of it, for the time that wait waits or for one
	// of its own.
	Away func(wait func()) error
	// Open opens the store.
	Open Open
}

// A Queue is what Open returns.
type Queue interface {
	webhook.Queue
	webhook.Counter
	webhook.DeadLetters
}

// Open opens the store at an address. Life tells one life of the Queue, in which
// what it holds is its own, from the next.
type Open func(ctx context.Context, address string) (q Queue, life func() string, end func(), err error)

// Main is called by TestMain first. It does not return in the process of a node.
func Main(open Open) {
	setting := os.Getenv(nodeVariable)
	if setting == "" {
		return
	}
	if err := runNode(open, setting); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func destinations(url string) []webhook.Destination {
	var ds []webhook.Destination
	for i := range 3 {
		ds = append(ds, webhook.Destination{ID: fmt.Sprint("d", i), Secret: "shh", Endpoints: []webhook.Endpoint{{URL: url}}})
	}
	return ds
}

// runNode forwards and delivers until its standard input ends. It prints "open" once it
// has opened the store, the ids that were accepted, "anew" when it lost what it held, and
// "refused" for each call that failed.
func runNode(open Open, setting string) error {
	lines := strings.Split(setting, "\n")
	prefix, url, address := lines[0], lines[1], lines[2]
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	go func() { // ends with the process at the latest
		io.Copy(io.Discard, os.Stdin)
		stop()
	}()
	q, life, end, err := open(context.Background(), address)
	for err != nil { // the store may be away just now
		if ctx.Err() != nil {
			return err
		}
		wait(ctx, 50*time.Millisecond)
		q, life, end, err = open(context.Background(), address)
	}
	defer end()
	defer q.Close()
	fmt.Println("open")
	f, err := webhook.New(webhook.Config{
		Queue: q, Destinations: destinations(url), MaxInFlight: inFlight,
		Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- f.Run(context.Background()) }() // ended below
	over := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() { // a call of the store may take longer than a life
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for lived := life(); ; {
			select {
			case <-tick.C:
			case <-over:
				return
			}
			if now := life(); now != lived {
				lived = now
				fmt.Println("anew")
			}
		}
	})
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
		} else {
			fmt.Println("refused")
		}
		wait(ctx, 10*time.Millisecond)
	}
	err = f.Shutdown(context.Background())
	close(over)
	watching.Wait()
	if err != nil {
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

// An account is what is known of each event.
type account struct {
	mu        sync.Mutex
	accepted  map[string]bool
	delivered map[string]int
	anew      int
	refused   int
}

// ServeHTTP takes most events, fails some for now, and refuses some for good, which
// their ids tell.
func (a *account) ServeHTTP(w http.ResponseWriter, r *http.Request) {
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
	open chan struct{} // closed once it has opened the store, or has ended
	read chan struct{}
}

func (a *account) start(t *testing.T, prefix, url, address string) *child {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), nodeVariable+"="+prefix+"\n"+url+"\n"+address)
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
	c := &child{cmd, in, make(chan struct{}), make(chan struct{})}
	opened := sync.OnceFunc(func() { close(c.open) })
	go func() { // ends with the process
		defer close(c.read)
		defer opened()
		for s := bufio.NewScanner(out); s.Scan(); {
			a.mu.Lock()
			switch s.Text() {
			case "open":
				opened()
			case "anew":
				a.anew++
			case "refused":
				a.refused++
			default:
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

// Run kills processes, and takes the store away.
func Run(t *testing.T, store Store) {
	a := &account{accepted: make(map[string]bool), delivered: make(map[string]int)}
	receiver := httptest.NewServer(a)
	defer receiver.Close()

	nodes := make([]*child, 3)
	started := 0
	start := func(i int) {
		started++
		nodes[i] = a.start(t, fmt.Sprint("n", started), receiver.URL, store.Addresses[i%len(store.Addresses)])
	}
	for i := range nodes {
		start(i)
	}
	kills := 0
	away := time.After(*runFor / 3)
	kill := time.NewTicker(min(*runFor/4, 10*time.Second))
	defer kill.Stop()
	began := time.Now()
	for end := time.After(*runFor); end != nil; {
		select {
		case <-kill.C:
			i := kills % len(nodes)
			nodes[i].end(true)
			kills++
			start(i)
		case <-away:
			if err := store.Away(func() { wait(t.Context(), *outage) }); err != nil {
				t.Fatal(err)
			}
			end = time.After(max(*runFor-time.Since(began), *runFor/3)) // it is to go on
		case <-end:
			end = nil
		}
	}
	for _, n := range nodes {
		<-n.open // one that was started last may have found the store away
		if err := n.end(false); err != nil {
			t.Errorf("a node that was to stop: %v", err)
		}
	}
	q, _, end, err := store.Open(t.Context(), store.Addresses[0])
	if err != nil {
		t.Fatal(err)
	}
	defer end()
	defer q.Close()
	rest := drain(t, q, receiver.URL)

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
	// In flight is what is attempted, what the store is being told of, and what waits for that:
	// a forwarder leases nothing while more than eight times MaxInFlight wait, so that each
	// of the two is nine times as much at most.
	if most := (kills + a.anew) * 18 * inFlight; twice > most {
		t.Errorf("%d were delivered twice; %d could have been in flight", twice, most)
	}
	if len(a.accepted) < 100 || len(dead) == 0 {
		t.Errorf("only %d accepted, and %d dead: no load", len(a.accepted), len(dead))
	}
	t.Logf("%d accepted, %d calls refused, %d delivered, %d dead, %d lost, %d twice; %d kills, %d claims expired, %d left to the last",
		len(a.accepted), a.refused, len(a.delivered), len(dead), lost, twice, kills, a.anew, rest)
}

// drain delivers what is left, and returns how much that was.
func drain(t *testing.T, q Queue, url string) int {
	t.Helper()
	counts, err := q.Count(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	rest := counts.Waiting
	f, err := webhook.New(webhook.Config{Queue: q, Destinations: destinations(url), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- f.Run(context.Background()) }()
	least, since := counts.Waiting, time.Now()
	for counts.Waiting > 0 {
		if time.Since(since) > time.Minute {
			t.Fatalf("%+v is left, as it was a minute ago", counts)
		}
		wait(t.Context(), 50*time.Millisecond)
		if counts, err = q.Count(t.Context()); err != nil {
			t.Fatal(err)
		}
		if counts.Waiting < least {
			least, since = counts.Waiting, time.Now()
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
