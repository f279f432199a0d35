//go:build unix

package server_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/hookferry/analytics/internal/pgtest"
	"github.com/hookferry/analytics/internal/soakenv"
	"github.com/hookferry/analytics/internal/testkit"
)

// A natsServer can be stopped, and started again on the same port and folder.
type natsServer struct {
	options server.Options
	running *server.Server
}

func startNATS(t *testing.T) *natsServer {
	t.Helper()
	s := &natsServer{options: server.Options{
		Host: "127.0.0.1", Port: testkit.Port(t), JetStream: true, StoreDir: t.TempDir(), NoSigs: true, NoLog: true,
	}}
	s.up(t)
	t.Cleanup(s.down)
	return s
}

func (s *natsServer) up(t *testing.T) {
	t.Helper()
	options := s.options // the server writes to its options
	var err error
	if s.running, err = server.NewServer(&options); err != nil {
		t.Fatal(err)
	}
	s.running.Start()
	if !s.running.ReadyForConnections(stalled) {
		t.Fatalf("the NATS server is not ready after %v", stalled)
	}
}

func (s *natsServer) down() {
	s.running.Shutdown()
	s.running.WaitForShutdown()
}

func (s *natsServer) url() string { return fmt.Sprintf("nats://127.0.0.1:%d", s.options.Port) }

// A node is a server in a process of its own. It can be started again on the same address.
type node struct {
	*testkit.Child
	calls string // the address of its listener for calls
	start func()
}

// nodes starts servers that share a store. Calls of a user are delivered in their order.
func nodes(t *testing.T, n int, store, webhook string) []*node {
	t.Helper()
	all := make([]*node, n)
	file := filepath.Join(t.TempDir(), "hookferry.yaml")
	config := fmt.Sprintf("sources: [{name: web, keys: [key], destinations: [crm]}]\ndestinations: [{id: crm, endpoints: [{url: %q}], order: user}]\n", webhook)
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	for i := range all {
		s := &node{calls: freeAddress(t)}
		s.start = func() {
			t.Helper()
			cmd := hookferry(t, "serve", "--config", file, "--listen", s.calls, "--admin-listen", "off")
			cmd.Env = append(os.Environ(), "HOOKFERRY_QUEUE="+store)
			s.Child, _ = start(t, cmd, listening)
		}
		s.start()
		all[i] = s
	}
	return all
}

// track sends calls with these ids, and reports whether the server accepted them.
func track(address string, ids ...string) bool {
	var b bytes.Buffer
	b.WriteString(`{"batch":[`)
	for i, id := range ids {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `{"type":"track","userId":%q,"event":"Shared","messageId":%q}`, userOf(id), id)
	}
	b.WriteString(`]}`)
	req, err := http.NewRequest(http.MethodPost, "http://"+address+"/v1/batch", &b)
	if err != nil {
		return false
	}
	req.SetBasicAuth("key", "")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	io.Copy(io.Discard, resp.Body)
	return resp.StatusCode == http.StatusOK
}

// userOf returns the user of the call with this id.
func userOf(id string) string { return fmt.Sprint("u", crc32.ChecksumIEEE([]byte(id))%400) }

// A counter is a receiver that records how often each message arrives, and when it first and last did.
// An id is the sender, and the numbers of its request and of the call in it. The calls of a sender and
// a user have to arrive in this order, and those of a user one at a time.
type counter struct {
	random      *dice
	mu          sync.Mutex
	times       map[string]int
	first, last map[string]time.Time
	latest      map[[2]string]int // the number of the latest call of each user and sender, plus 1
	busy        map[string]int    // requests in progress, by user
	disorder    []string          // ids of calls that arrived too late or too early
}

func newCounter(random *dice) *counter {
	return &counter{random: random, times: map[string]int{}, first: map[string]time.Time{}, last: map[string]time.Time{}, latest: map[[2]string]int{}, busy: map[string]int{}}
}

func (c *counter) ServeHTTP(_ http.ResponseWriter, r *http.Request) {
	var event struct{ MessageID string }
	if json.NewDecoder(r.Body).Decode(&event) != nil {
		return
	}
	c.mu.Lock()
	c.last[event.MessageID] = time.Now()
	user := userOf(event.MessageID)
	if c.times[event.MessageID]++; c.times[event.MessageID] == 1 {
		c.first[event.MessageID] = time.Now()
		c.order(user, event.MessageID)
	}
	c.busy[user]++
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.busy[user]--
	}()
	select { // so that deliveries are in flight whenever a server stops
	case <-time.After(5*time.Millisecond + c.random.below(15*time.Millisecond)):
	case <-r.Context().Done():
	}
}

// order notes a call that has arrived while another one of its user is in progress, or after a later
// one of its sender.
func (c *counter) order(user, id string) {
	var request, place int
	sender, numbers, _ := strings.Cut(id, "-")
	fmt.Sscanf(numbers, "%d-%d", &request, &place)
	line, number := [2]string{user, sender}, 1+request*callsOfRequest+place
	if c.busy[user] > 0 || number < c.latest[line] {
		c.disorder = append(c.disorder, id)
	}
	c.latest[line] = number
}

func (c *counter) count() (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.times), nil
}

const callsOfRequest = 5

// Three servers are restarted one after the other under load. Every accepted call arrives once, in
// time and in the order of its user.
func TestRollingRestartOnPostgreSQL(t *testing.T) {
	length, seed := soakenv.Long(t, "rolling-postgres")
	db := pgtest.New(t, "fsync=off") // no test simulates a power cut
	socket := strings.TrimPrefix(strings.Fields(db.URL())[0], "host=")
	rollingRestart(t, length, seed, "postgres://test@/postgres?host="+socket)
}

func TestRollingRestartOnNATS(t *testing.T) {
	length, seed := soakenv.Long(t, "rolling-nats")
	rollingRestart(t, length, seed, startNATS(t).url())
}

func rollingRestart(t *testing.T, length time.Duration, seed uint64, store string) {
	random := newDice(seed)
	arrived := newCounter(random)
	receiver := httptest.NewServer(arrived)
	defer receiver.Close()
	servers := nodes(t, 3, store, receiver.URL)

	var (
		mu       sync.Mutex
		accepted = map[string]time.Time{} // when the request with this call began; it was answered by 200
		stopped  atomic.Bool
		senders  sync.WaitGroup
	)
	for sender := range 4 {
		senders.Go(func() {
			for n := 0; !stopped.Load(); n++ {
				ids := make([]string, callsOfRequest)
				for i := range ids {
					ids[i] = fmt.Sprintf("%d-%d-%d", sender, n, i)
				}
				for at := sender + n; ; at++ { // try the next server if this one is being restarted
					began := time.Now()
					if track(servers[at%len(servers)].calls, ids...) {
						mu.Lock()
						for _, id := range ids {
							accepted[id] = began
						}
						mu.Unlock()
						break
					}
					if time.Since(began) > stalled {
						t.Errorf("no server has accepted a call for %v", stalled)
						return
					}
				}
				<-time.After(10 * time.Millisecond)
			}
		})
	}
	end := time.Now().Add(length)
	for n := 0; n < len(servers) || time.Now().Before(end); n++ {
		pause(t, 500*time.Millisecond+random.below(time.Second))
		s := servers[n%len(servers)]
		stop(t, s.Child)
		s.start()
	}
	pause(t, time.Second)
	stopped.Store(true)
	senders.Wait()
	until(t, "accepted calls that have arrived", len(accepted), arrived.count)
	for _, s := range servers {
		stop(t, s.Child)
	}

	if len(arrived.disorder) > 0 {
		t.Errorf("%d calls arrived out of the order of their user, want none: %q", len(arrived.disorder), arrived.disorder[:min(len(arrived.disorder), 10)])
	}
	var delays []time.Duration
	for id, began := range accepted {
		if n := arrived.times[id]; n != 1 {
			t.Errorf("call %s arrived %d times, want once; %v and %v after it was made", id, n, arrived.first[id].Sub(began), arrived.last[id].Sub(began))
		}
		delays = append(delays, arrived.first[id].Sub(began))
	}
	if len(delays) < 1000 {
		t.Fatalf("got %d accepted calls, want at least 1000", len(delays))
	}
	slices.Sort(delays)
	at := func(share float64) time.Duration { return delays[int(share*float64(len(delays)-1))] }
	t.Logf("%d accepted; from the call to its arrival: median %v, p99 %v, most %v", len(delays), at(0.5), at(0.99), at(1))
	// A server that stops gives its deliveries back, so other servers get them at once. They wait
	// neither for the next poll of the whole store, every 5 seconds, nor until a claim expires,
	// which takes at least 7.5 seconds.
	if at(0.99) > 2*time.Second || at(1) > 4*time.Second {
		t.Errorf("deliveries took too long: p99 %v, most %v; want at most 2s, 4s", at(0.99), at(1))
	}
}

// The NATS server goes down now and then. Meanwhile hookferry refuses calls. Once NATS is up
// again, it accepts calls again by itself, and all accepted calls arrive.
func TestNATSIsAway(t *testing.T) {
	length, seed := soakenv.Long(t, "nats-away")
	random := newDice(seed)
	store := startNATS(t)
	arrived := newCounter(random)
	receiver := httptest.NewServer(arrived)
	defer receiver.Close()
	s := nodes(t, 1, store.url(), receiver.URL)[0]

	var accepted atomic.Int64
	var stopped atomic.Bool
	ids := map[string]bool{} // of the accepted calls
	var sender sync.WaitGroup
	sender.Go(func() {
		for n := 0; !stopped.Load(); n++ {
			if id := fmt.Sprint(n); track(s.calls, id) {
				ids[id] = true
				accepted.Add(1)
			}
			<-time.After(10 * time.Millisecond)
		}
	})
	// flows waits until n more calls are accepted, and as many have arrived.
	flows := func(n int) {
		t.Helper()
		arrivals, _ := arrived.count()
		until(t, "calls that are accepted", int(accepted.Load())+n, func() (int, error) { return int(accepted.Load()), nil })
		until(t, "calls that have arrived", arrivals+n, arrived.count)
	}
	flows(20)
	for end := time.Now().Add(length); ; {
		store.down()
		before := accepted.Load() + 1 // the answer of one call may be on its way
		pause(t, time.Second+random.below(3*time.Second))
		if n := accepted.Load(); n > before {
			t.Errorf("%d calls were accepted while the store was down, want 0", n-before)
		}
		store.up(t)
		flows(20)
		if time.Now().After(end) {
			break
		}
	}
	stopped.Store(true)
	sender.Wait()
	until(t, "accepted calls that have arrived", len(ids), func() (n int, err error) {
		arrived.mu.Lock()
		defer arrived.mu.Unlock()
		for id := range ids {
			if arrived.times[id] > 0 {
				n++
			}
		}
		return n, nil
	})
	stop(t, s.Child)
}
