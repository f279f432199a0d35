//go:build unix

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
	"github.com/hookferry/analytics/internal/pgtest"
	"github.com/hookferry/analytics/internal/porttest"
)

// password is in the URL of the database, and nowhere else.
const password = "s3cretpassw0rd"

// database starts a PostgreSQL server, and returns its URL.
func database(t *testing.T) string {
	t.Helper()
	db, err := pgtest.Start("fsync=off") // no test pulls a plug
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	socket := strings.TrimPrefix(strings.Fields(db.URL())[0], "host=")
	return "postgres://test:" + password + "@/postgres?host=" + socket
}

// A natsServer wants a password, and can be stopped and started again where it was.
type natsServer struct {
	options server.Options
	running *server.Server
}

func startNATS(t *testing.T) *natsServer {
	t.Helper()
	port, err := porttest.Free()
	if err != nil {
		t.Fatal(err)
	}
	s := &natsServer{options: server.Options{
		Host: "127.0.0.1", Port: port, JetStream: true, StoreDir: t.TempDir(),
		NoSigs: true, NoLog: true, Username: "test", Password: password,
	}}
	s.up(t)
	t.Cleanup(s.down)
	return s
}

func (s *natsServer) up(t *testing.T) {
	t.Helper()
	options := s.options // it writes to them
	var err error
	if s.running, err = server.NewServer(&options); err != nil {
		t.Fatal(err)
	}
	s.running.Start()
	if !s.running.ReadyForConnections(patience) {
		t.Fatal("the NATS server is not ready")
	}
}

func (s *natsServer) down() {
	s.running.Shutdown()
	s.running.WaitForShutdown()
}

// url returns its URL twice, as if it were two.
func (s *natsServer) url() string {
	url := fmt.Sprintf("nats://test:%s@127.0.0.1:%d", password, s.options.Port)
	return url + "," + url
}

// jetStream starts a NATS server, and returns its URL.
func jetStream(t *testing.T) string {
	t.Helper()
	return startNATS(t).url()
}

// stores are those that servers share.
var stores = []struct {
	name  string
	start func(*testing.T) (url string)
}{
	{"PostgreSQL", database},
	{"JetStream", jetStream},
}

// A node is a server in a process of its own, started again and again on the
// same addresses.
type node struct {
	*child
	calls string // the address of its listener for calls
	admin *api.Client
	start func() *child
}

// nodes starts servers that share a database.
func nodes(t *testing.T, n int, url string, args ...string) []*node {
	t.Helper()
	all := make([]*node, n)
	for i := range all {
		s := &node{calls: freeAddress(t)}
		control := freeAddress(t)
		var err error
		if s.admin, err = api.NewClient(control, ""); err != nil {
			t.Fatal(err)
		}
		s.start = func() *child {
			t.Helper()
			c, err := startChild("", append(os.Environ(), "HOOKFERRY_QUEUE="+url), "hookferry",
				append([]string{"serve", "-listen", s.calls, "-admin", control, "-write-key", "key"}, args...)...)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				c.kill()
				if text, _ := c.out.read(); strings.Contains(text, password) {
					t.Errorf("the password of the database is in the log:\n%s", text)
				}
			})
			if _, err := c.await(regexp.MustCompile("msg=listening")); err != nil {
				t.Fatal(err)
			}
			return c
		}
		s.child = s.start()
		all[i] = s
	}
	return all
}

// track sends calls with these ids, and reports whether they were accepted.
func track(address string, ids ...string) bool {
	var b bytes.Buffer
	b.WriteString(`{"batch":[`)
	for i, id := range ids {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `{"type":"track","userId":"u","event":"Shared","messageId":%q}`, id)
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

// A counter is a receiver that notes how often what arrives, and when first.
type counter struct {
	mu    sync.Mutex
	times map[string]int
	first map[string]time.Time
}

func newCounter() *counter {
	return &counter{times: map[string]int{}, first: map[string]time.Time{}}
}

func (c *counter) ServeHTTP(_ http.ResponseWriter, r *http.Request) {
	var event struct{ MessageID string }
	if json.NewDecoder(r.Body).Decode(&event) != nil {
		return
	}
	c.mu.Lock()
	if c.times[event.MessageID]++; c.times[event.MessageID] == 1 {
		c.first[event.MessageID] = time.Now()
	}
	c.mu.Unlock()
	select { // something is in flight whenever a server stops
	case <-time.After(time.Duration(5+rand.IntN(15)) * time.Millisecond):
	case <-r.Context().Done():
	}
}

func (c *counter) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.times)
}

// until waits until done reports true.
func until(t *testing.T, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !done(); wait(t, 5*time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

// Three servers are replaced one after the other under load: nothing is lost,
// nothing arrives twice, and nothing is late.
func TestRollingRestart(t *testing.T) {
	for _, store := range stores {
		t.Run(store.name, func(t *testing.T) { rollingRestart(t, store.start(t)) })
	}
}

func rollingRestart(t *testing.T, url string) {
	arrived := newCounter()
	receiver := httptest.NewServer(arrived)
	defer receiver.Close()
	servers := nodes(t, 3, url, "-webhook", receiver.URL)

	var (
		mu       sync.Mutex
		accepted = map[string]time.Time{} // when the request began that was answered by 200
		stop     atomic.Bool
		senders  sync.WaitGroup
	)
	for sender := range 4 {
		senders.Go(func() {
			for n := 0; !stop.Load(); n++ {
				ids := make([]string, 5)
				for i := range ids {
					ids[i] = fmt.Sprintf("%d-%d-%d", sender, n, i)
				}
				for at := sender + n; ; at++ { // the next one, if this one is being replaced
					began := time.Now()
					if track(servers[at%len(servers)].calls, ids...) {
						mu.Lock()
						for _, id := range ids {
							accepted[id] = began
						}
						mu.Unlock()
						break
					}
					if time.Since(began) > patience {
						t.Error("no server accepts calls")
						return
					}
				}
				<-time.After(10 * time.Millisecond)
			}
		})
	}
	for _, s := range servers {
		wait(t, time.Second)
		if status, err := s.stop(syscall.SIGTERM); err != nil || status != 0 {
			t.Fatalf("stopping a server: status %d, %v", status, err)
		}
		s.child = s.start()
	}
	wait(t, time.Second)
	stop.Store(true)
	senders.Wait()
	until(t, "all that was accepted arrives", func() bool { return arrived.count() >= len(accepted) })
	for _, s := range servers {
		if status, err := s.stop(syscall.SIGTERM); err != nil || status != 0 {
			t.Errorf("stopping a server: status %d, %v", status, err)
		}
	}

	var delays []time.Duration
	for id, began := range accepted {
		if n := arrived.times[id]; n != 1 {
			t.Errorf("%s arrived %d times", id, n)
		}
		delays = append(delays, arrived.first[id].Sub(began))
	}
	if len(delays) < 1000 {
		t.Fatalf("only %d calls were accepted: no load", len(delays))
	}
	slices.Sort(delays)
	at := func(share float64) time.Duration { return delays[int(share*float64(len(delays)-1))] }
	t.Logf("%d accepted; from the call to its arrival: median %v, p99 %v, most %v", len(delays), at(0.5), at(0.99), at(1))
	// What a server gives back in order waits neither for the next look at the whole store, every 5 seconds,
	// nor for a claim to expire, which takes 7.5 at the least.
	if at(0.99) > 2*time.Second || at(1) > 4*time.Second {
		t.Errorf("deliveries were late: p99 %v, most %v", at(0.99), at(1))
	}
}

// The NATS server is away for a while: what is sent meanwhile waits or is refused, and
// all that was accepted arrives once it is back, without anybody's help.
func TestNATSIsAway(t *testing.T) {
	store := startNATS(t)
	arrived := newCounter()
	receiver := httptest.NewServer(arrived)
	defer receiver.Close()
	s := nodes(t, 1, store.url(), "-webhook", receiver.URL)[0]

	var accepted atomic.Int64
	var stop atomic.Bool
	var ids []string // that were accepted
	var sender sync.WaitGroup
	sender.Go(func() {
		for n := 0; !stop.Load(); n++ {
			if id := fmt.Sprint(n); track(s.calls, id) {
				ids = append(ids, id)
				accepted.Add(1)
			}
			<-time.After(10 * time.Millisecond)
		}
	})
	until(t, "calls are accepted and arrive", func() bool { return accepted.Load() >= 20 && arrived.count() >= 20 })
	store.down()
	before := accepted.Load() + 1 // one may be on its way to its answer
	wait(t, 2*time.Second)
	if n := accepted.Load(); n > before {
		t.Errorf("%d calls were accepted without the store", n-before)
	}
	store.up(t)
	until(t, "calls are accepted and arrive again", func() bool {
		return accepted.Load() >= before+20 && int64(arrived.count()) >= before+20
	})
	stop.Store(true)
	sender.Wait()
	until(t, "all that was accepted arrives", func() bool {
		arrived.mu.Lock()
		defer arrived.mu.Unlock()
		return !slices.ContainsFunc(ids, func(id string) bool { return arrived.times[id] == 0 })
	})
	if status, err := s.stop(syscall.SIGTERM); err != nil || status != 0 {
		t.Errorf("stopping the server: status %d, %v", status, err)
	}
}

// What one server is told holds for all that share its store, and is there when
// they are started again.
func TestServersShareAStore(t *testing.T) {
	for _, store := range stores {
		t.Run(store.name, func(t *testing.T) { serversShareAStore(t, store.start(t)) })
	}
}

func serversShareAStore(t *testing.T, url string) {
	arrived := newCounter()
	receiver := httptest.NewServer(arrived)
	defer receiver.Close()
	servers := nodes(t, 2, url, "-webhook", receiver.URL)
	a, b := servers[0], servers[1]
	ctx := t.Context()

	names := map[string]bool{}
	for i, s := range servers {
		var list api.Nodes
		until(t, "both servers are listed with what they say", func() bool {
			var err error
			list, err = s.admin.Nodes(ctx)
			return err == nil && len(list.Nodes) == 2 && !slices.ContainsFunc(list.Nodes, func(n api.Node) bool { return n.Version == "" || !n.Ready })
		})
		for j, n := range list.Nodes {
			names[n.Name] = true
			if !list.Shared || n.Self != (i == j) || n.Seen == nil || n.Started == nil {
				t.Errorf("server %d lists %+v", i, n)
			}
		}
	}
	if len(names) != 2 {
		t.Errorf("the servers are called %v", names)
	}

	if _, err := a.admin.Pause(ctx, onlyName); err != nil {
		t.Fatal(err)
	}
	paused := func(s *node) bool {
		all, err := s.admin.AllDestinations(ctx, api.DestinationFilter{})
		return err == nil && len(all.Destinations) == 1 && all.Destinations[0].Paused
	}
	until(t, "a pause holds on the other", func() bool { return paused(b) })
	for i, s := range servers {
		if !track(s.calls, fmt.Sprint("paused-", i)) {
			t.Fatal("a call was not accepted")
		}
	}
	if status, err := a.stop(syscall.SIGTERM); err != nil || status != 0 {
		t.Fatalf("stopping a server: status %d, %v", status, err)
	}
	until(t, "the one that stopped is not listed", func() bool {
		list, err := b.admin.Nodes(ctx)
		return err == nil && len(list.Nodes) == 1
	})
	a.child = a.start()
	until(t, "a pause holds after a restart", func() bool { return paused(a) })
	for _, s := range servers {
		if status, err := s.admin.Status(ctx); err != nil || status.Waiting != 2 {
			t.Errorf("Status = %d waiting, %v; want what both accepted", status.Waiting, err)
		}
	}
	if n := arrived.count(); n != 0 {
		t.Errorf("%d arrived in the pause", n)
	}
	if _, err := b.admin.Resume(ctx, onlyName); err != nil {
		t.Fatal(err)
	}
	until(t, "what waited arrives", func() bool { return arrived.count() == 2 })
	until(t, "nothing is paused", func() bool { return !paused(a) && !paused(b) })
}

func TestQueueURLsAreRefused(t *testing.T) {
	missing := "postgres://test:" + password + "@127.0.0.1:1/none?connect_timeout=2"
	for _, tt := range []struct {
		name, url string
		args      []string
		status    int
		says      string
	}{
		{"another kind", "mysql://test:" + password + "@h/db", []string{"-write-key", "k"}, 2, "-queue: want postgres://"},
		{"no URL", "host=h password=" + password, []string{"-write-key", "k"}, 2, "-queue: want postgres://"},
		{"a parameter", "postgres://test:" + password + "@h/db?sslmode=maybe", []string{"-write-key", "k"}, 2, "-queue: want postgres://"},
		{"no write key", missing, nil, 2, "-write-key: is required with -queue"},
		{"no such file", "file:/no/such/file", []string{"-write-key", "k"}, 2, "reading the file: no such file"},
		{"NATS, with a path", "nats://test:" + password + "@h,nats://h/" + password, []string{"-write-key", "k"}, 2, "-queue: want nats://"},
		{"NATS, nobody answers", "nats://test:" + password + "@127.0.0.1:1", []string{"-write-key", "k"}, 1, "-queue: "},
		{"nobody answers", missing, []string{"-write-key", "k"}, 1, "-queue: "},
	} {
		t.Run(tt.name, func(t *testing.T) {
			args := append([]string{"serve", "-listen", "127.0.0.1:0", "-admin", "127.0.0.1:0", "-webhook", "http://127.0.0.1:9/"}, tt.args...)
			c, err := startChild(t.TempDir(), append(os.Environ(), "HOOKFERRY_QUEUE="+tt.url), "hookferry", args...)
			if err != nil {
				t.Fatal(err)
			}
			defer c.kill()
			select {
			case <-c.exited:
			case <-time.After(patience):
				t.Fatal("it runs")
			}
			text, _ := c.out.read()
			if c.status != tt.status || !strings.Contains(text, tt.says) || strings.Contains(text, password) {
				t.Errorf("status %d, want %d with %q and without the password:\n%s", c.status, tt.status, tt.says, text)
			}
		})
	}
}
