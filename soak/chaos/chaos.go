// Package chaos tests processes that share a store on a server. It kills or suspends the processes,
// and makes the server unavailable. In the end each accepted event must be delivered or dead, and
// only events that were in flight may be delivered twice. Those with a key must arrive in its order.
package chaos

import (
	"bufio"
	"context"
	"encoding/json"
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

	"github.com/hookferry/analytics/event"
	"github.com/hookferry/analytics/internal/testkit"
	"github.com/hookferry/analytics/webhook"
	stores "github.com/hookferry/analytics/webhook/store"
)

const (
	inFlight     = 32
	eventsOfCall = 5
	// If the environment variable nodeVariable is set, the test binary runs as a node. Its value
	// has three lines: the prefix of the ids of events, the receiver's URL, and the store's
	// address.
	nodeVariable = "HOOKFERRY_CHAOS_NODE"
)

// A Store is a kind of store on a server.
type Store struct {
	// Open opens the store at an address. The store writes its log lines to log. The returned
	// function end closes everything else that Open opened. Call it after closing the store.
	Open func(ctx context.Context, address string, log *slog.Logger) (s webhook.Store, end func(), err error)
	// Lost is a part of the line that a node logs when other nodes have taken over its claims.
	Lost string
}

// Main must be the first call of TestMain. In the process of a node it does not return.
func Main(store Store) {
	setting := os.Getenv(nodeVariable)
	if setting == "" {
		return
	}
	if err := runNode(store, setting); err != nil {
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

// runNode forwards and delivers until its standard input ends. It prints "open" once the
// store is open, "accepted ID" for each event, "refused" for each call that fails, and what
// the store logs.
func runNode(store Store, setting string) error {
	lines := strings.Split(setting, "\n")
	prefix, url, address := lines[0], lines[1], lines[2]
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	go func() { // ends with the process at the latest
		io.Copy(io.Discard, os.Stdin)
		stop()
	}()
	log := slog.New(slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{Level: slog.LevelWarn}))
	s, end, err := store.Open(context.Background(), address, log)
	for err != nil { // the server may be down
		if ctx.Err() != nil {
			return err
		}
		wait(ctx, 50*time.Millisecond)
		s, end, err = store.Open(context.Background(), address, log)
	}
	defer end()
	defer s.Close()
	fmt.Println("open")
	f, err := webhook.New(webhook.Config{
		Store: s, Destinations: destinations(url), MaxInFlight: inFlight,
		Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- f.Run(context.Background()) }() // ended below
	for i := 0; ctx.Err() == nil; i++ {
		events := make([]event.Event, eventsOfCall)
		for j := range events {
			id := fmt.Sprintf("%s-%d-%d", prefix, i, j)
			events[j] = event.Event{ID: id, Key: keyOf(i, j), Type: "track", Body: fmt.Appendf(nil, `{"messageId":%q}`, id), Received: time.Now()}
		}
		if err := f.ForwardEvents(ctx, []string{destinationOf(i)}, events...); err == nil {
			for _, e := range events {
				fmt.Println("accepted", e.ID)
			}
		} else {
			fmt.Println("refused")
		}
		wait(ctx, 10*time.Millisecond)
	}
	if err := f.Shutdown(context.Background()); err != nil {
		return err
	}
	return <-ended
}

// destinationOf returns the destination of call i of each node.
func destinationOf(i int) string { return fmt.Sprint("d", i%3) }

// keyOf returns the key of event j of call i. All nodes put events with the same keys. Two events of
// a call have one key, one has another, and two have none.
func keyOf(i, j int) string {
	if j%2 != 0 {
		return ""
	}
	return fmt.Sprint("k", (i/3*2+j/4)%50)
}

// place returns the numbers of the call and of the event in it. An id is the node and these two.
func place(id string) (i, j int) {
	_, numbers, _ := strings.Cut(id, "-")
	if _, err := fmt.Sscanf(numbers, "%d-%d", &i, &j); err != nil {
		panic(id)
	}
	return i, j
}

func wait(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// A ledger records the fate of each event.
type ledger struct {
	mu        sync.Mutex
	r         *rand.Rand
	takes     time.Duration // time to answer a request
	accepted  map[string]bool
	delivered map[string]int
	lines     map[string]*line // by destination and key
	arrived   map[string]bool  // the ids of all lines
	late      int              // repeated arrivals after one that was behind them
	early     []string         // what arrived while the event ahead had not ended
	lost      int              // how often other nodes took over claims
	refused   int
}

// A line is what has arrived of one key of one destination.
type line struct {
	ids   []string // in the order of their first arrivals
	ended bool     // the last one of ids was delivered, or refused for good
}

// arrive records that an event with this id has arrived. It returns the line at whose end the event
// is, or nil.
func (l *ledger) arrive(id string) *line {
	i, j := place(id)
	key := keyOf(i, j)
	if key == "" {
		return nil
	}
	k := l.lines[destinationOf(i)+" "+key]
	if k == nil {
		k = &line{ended: true}
		l.lines[destinationOf(i)+" "+key] = k
	}
	if l.arrived[id] {
		if k.ids[len(k.ids)-1] == id {
			return k
		}
		l.late++
		return nil
	}
	if !k.ended {
		l.early = append(l.early, id)
	}
	l.arrived[id] = true
	k.ids, k.ended = append(k.ids, id), false
	return k
}

// disorder returns the accepted events that arrived after a later one of the same node and key.
func (l *ledger) disorder() (ids []string) {
	for _, k := range l.lines {
		latest := make(map[string]int) // by node
		for _, id := range k.ids {
			if !l.accepted[id] { // if the call was refused, it may have been stored later
				continue
			}
			node, _, _ := strings.Cut(id, "-")
			i, j := place(id)
			if at := 1 + i*eventsOfCall + j; at < latest[node] {
				ids = append(ids, id)
			} else {
				latest[node] = at
			}
		}
	}
	return ids
}

// ServeHTTP is the receiver. It accepts most events, fails some of them at first, and
// always refuses events with certain ids.
func (l *ledger) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var event struct {
		ID string `json:"messageId"`
	}
	if err := json.NewDecoder(r.Body).Decode(&event); err != nil {
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	l.mu.Lock()
	line := l.arrive(event.ID)
	l.mu.Unlock()
	wait(r.Context(), l.takes)
	l.mu.Lock()
	defer l.mu.Unlock()
	ended := func() {
		if line != nil {
			line.ended = true
		}
	}
	if strings.HasSuffix(event.ID, "7-0") {
		ended()
		w.WriteHeader(http.StatusGone)
		return
	}
	if l.r.IntN(50) == 0 && l.delivered[event.ID] == 0 {
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	l.delivered[event.ID]++
	ended()
}

// A node is a process that forwards and delivers.
type node struct {
	cmd  *exec.Cmd
	in   io.Closer
	open chan struct{} // closed when the store is open, or the process has ended
	read chan struct{} // closed when all output of the process has been read
}

func (l *ledger) start(t *testing.T, store Store, prefix, url, address string) *node {
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
	n := &node{cmd, in, make(chan struct{}), make(chan struct{})}
	opened := sync.OnceFunc(func() { close(n.open) })
	go func() { // ends with the process
		defer close(n.read)
		defer opened()
		var lost time.Time
		for s := bufio.NewScanner(out); s.Scan(); {
			id, accepted := strings.CutPrefix(s.Text(), "accepted ")
			l.mu.Lock()
			switch {
			case accepted:
				l.accepted[id] = true
			case s.Text() == "open":
				opened()
			case s.Text() == "refused":
				l.refused++
			case strings.Contains(s.Text(), store.Lost) && time.Since(lost) > time.Second:
				// The store may log the line for each partition, so count it once a second.
				lost = time.Now()
				l.lost++
			}
			l.mu.Unlock()
		}
	}()
	return n
}

func (n *node) end(kill bool) error {
	if kill {
		n.cmd.Process.Kill()
	} else {
		n.in.Close()
	}
	<-n.read
	return n.cmd.Wait()
}

// Run kills nodes and causes outages at random, for the given length. The seed determines their
// sequence. To cause an outage, Run calls the function away with the length of the outage. This
// function makes the server, or a part of it, unavailable, and may choose another length. The first
// node connects to the first of the addresses, the second to the second, and so on in turn.
func Run(t *testing.T, store Store, addresses []string, length time.Duration, seed uint64, away func(time.Duration)) {
	r := rand.New(rand.NewPCG(seed, 1))
	run(t, store, addresses, seed, 0, func(_ []*node, kill func(i int)) int {
		kills, outages := 0, 0
		for end := time.Now().Add(length); ; {
			wait(t.Context(), time.Duration(1+r.IntN(5000))*time.Millisecond)
			if kills > 0 && outages > 0 && time.Now().After(end) {
				t.Logf("%d outages", outages)
				return kills
			}
			if outages*3 < kills {
				outages++
				away(time.Duration(1+r.IntN(5000)) * time.Millisecond)
			} else {
				kills++
				kill(r.IntN(nodeCount))
			}
		}
	})
}

// Survive kills no node. It calls disturb, which may make the server unavailable. In spite of
// that, no node may lose its claims, and no event may be delivered twice. The receiver takes a
// while for each delivery, so that a backlog grows.
func Survive(t *testing.T, store Store, address string, seed uint64, takes time.Duration, disturb func()) {
	run(t, store, []string{address}, seed, takes, func([]*node, func(int)) int {
		disturb()
		return 0
	})
}

const nodeCount = 3

// run lets nodes forward and deliver while disturb runs. disturb returns how many nodes it has
// killed or suspended. Then run checks the fate of each event.
func run(t *testing.T, store Store, addresses []string, seed uint64, takes time.Duration, disturb func(nodes []*node, kill func(i int)) int) {
	l := &ledger{r: rand.New(rand.NewPCG(seed, 2)), takes: takes, accepted: make(map[string]bool), delivered: make(map[string]int), lines: make(map[string]*line), arrived: make(map[string]bool)}
	receiver := httptest.NewServer(l)
	defer receiver.Close()

	nodes := make([]*node, nodeCount)
	started := 0
	start := func(i int) {
		started++
		nodes[i] = l.start(t, store, fmt.Sprint("n", started), receiver.URL, addresses[i%len(addresses)])
	}
	for i := range nodes {
		start(i)
	}
	kills := disturb(nodes, func(i int) {
		nodes[i].end(true)
		start(i)
	})
	for _, n := range nodes {
		<-n.open
		if err := n.end(false); err != nil {
			t.Errorf("a node ended with an error: %v", err)
		}
	}
	s, end, err := store.Open(t.Context(), addresses[0], slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer end()
	defer s.Close()
	rest, dead := drain(t, s, receiver.URL)
	l.mu.Lock()
	defer l.mu.Unlock()
	missing, twice := 0, 0
	for id := range l.accepted {
		if l.delivered[id] == 0 && !dead[id] {
			missing++
			t.Errorf("%s was accepted and is neither delivered nor dead", id)
		}
	}
	for id, n := range l.delivered {
		twice += n - 1
		if dead[id] {
			t.Errorf("%s is delivered and dead", id)
		}
	}
	// An event is in flight while it is attempted, while its outcome waits to be stored, and while
	// the outcome is being stored. A forwarder claims nothing while more than eight times
	// MaxInFlight outcomes wait. So at most nine times MaxInFlight outcomes wait, and at most as
	// many are being stored.
	if most := (kills + l.lost) * 18 * inFlight; twice > most {
		t.Errorf("%d events were delivered twice, but at most %d could have been in flight", twice, most)
	}
	if ids := l.disorder(); len(ids)+len(l.early) > 0 {
		t.Errorf("%d events arrived after a later one of their key, and %d before the one ahead of them had ended, want 0, 0: %q, %q",
			len(ids), len(l.early), ids[:min(len(ids), 10)], l.early[:min(len(l.early), 10)])
	}
	// A node that does not know yet that others have its claims may begin what it was about to begin.
	if most := l.lost * inFlight; l.late > most {
		t.Errorf("%d events arrived again after a later one of their key, want at most %d", l.late, most)
	}
	if len(l.accepted) < 100 || len(dead) == 0 {
		t.Errorf("only %d events were accepted, and %d are dead: the load was too low for a test", len(l.accepted), len(dead))
	}
	t.Logf("%d accepted, %d calls refused, %d delivered, %d dead, %d missing, %d twice, of %d with keys in order %d late; %d kills, %d claims lost, %d left to the last node",
		len(l.accepted), l.refused, len(l.delivered), len(dead), missing, twice, len(l.arrived), l.late, kills, l.lost, rest)
	if kills == 0 && l.lost > 0 {
		t.Errorf("nodes that were alive have lost their claims %d times", l.lost)
	}
}

// drain delivers the remaining deliveries. It returns how many there were, and the ids of the dead letters.
func drain(t *testing.T, s webhook.Store, url string) (rest int, dead map[string]bool) {
	t.Helper()
	count := func() (counts stores.Counts) {
		testkit.Until(t, "Count works", func() bool { // at first it may wait for what a killed node owns
			var err error
			counts, err = s.Count(t.Context())
			return err == nil
		})
		return counts
	}
	counts := count()
	rest = counts.Waiting
	f, err := webhook.New(webhook.Config{Store: s, Destinations: destinations(url), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- f.Run(context.Background()) }() // ended below
	least, since := counts.Waiting, time.Now()
	for counts.Waiting > 0 {
		if time.Since(since) > 5*time.Minute {
			t.Fatalf("%+v: the number of waiting deliveries has not fallen for five minutes", counts)
		}
		wait(t.Context(), 50*time.Millisecond)
		if counts = count(); counts.Waiting < least {
			least, since = counts.Waiting, time.Now()
		}
	}
	dead = make(map[string]bool)
	for d, err := range stores.Records(t.Context(), s, webhook.Query{States: []webhook.State{webhook.StateDead}}) {
		if err != nil {
			t.Fatal(err)
		}
		if dead[d.ID] {
			t.Errorf("%s is dead twice", d.ID)
		}
		dead[d.ID] = true
	}
	if err := f.Shutdown(context.Background()); err != nil { // releases what the store holds, so nothing is listed after it
		t.Error(err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
	return rest, dead
}
