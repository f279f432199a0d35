//go:build unix

package nats

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/hookferry/analytics/collector"
	"github.com/hookferry/analytics/internal/soakenv"
	"github.com/hookferry/analytics/internal/testkit"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/natsqueue"
	"github.com/hookferry/analytics/webhook/store"
)

// A neighbour disturbs the servers until ctx ends. Then it undoes the disturbance.
type neighbour struct {
	name    string
	disturb func(ctx context.Context, h *house) error
	loses   bool // the disturbance destroys waiting deliveries, which no store could prevent
	disk    bool // the servers' folders are small file systems
}

var neighbours = []neighbour{
	{name: "none", disturb: func(ctx context.Context, _ *house) error { <-ctx.Done(); return nil }},
	{name: "the leader is killed every 10 s", disturb: func(ctx context.Context, h *house) error {
		for ctx.Err() == nil {
			p, err := h.leader(ctx)
			if err != nil {
				return err
			}
			p.end()
			wait(ctx, 2*time.Second)
			if err := p.start(); err != nil {
				return err
			}
			wait(ctx, 8*time.Second)
		}
		return nil
	}},
	{name: "the leader is cut off from the other servers", disturb: func(ctx context.Context, h *house) error {
		p, err := h.leader(ctx)
		if err != nil {
			return err
		}
		return p.cutOff(ctx)
	}},
	{name: "the node's server is cut off from the other servers", disturb: func(ctx context.Context, h *house) error {
		i := slices.IndexFunc(h.servers, func(p *serverProcess) bool { return p.Name == h.node.ConnectedServerName() })
		return h.servers[i].cutOff(ctx)
	}},
	{name: "the leader's folder is wiped", disturb: func(ctx context.Context, h *house) error {
		p, err := h.leader(ctx)
		if err != nil {
			return err
		}
		p.end()
		if err := os.RemoveAll(p.Dir); err != nil {
			return err
		}
		wait(ctx, 2*time.Second)
		return errors.Join(p.start(), func() error { <-ctx.Done(); return nil }())
	}},
	{name: "the leader is frozen for 12 s", disturb: func(ctx context.Context, h *house) error {
		p, err := h.leader(ctx)
		if err != nil {
			return err
		}
		if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
			return err
		}
		wait(context.WithoutCancel(ctx), 12*time.Second)
		return p.cmd.Process.Signal(syscall.SIGCONT)
	}},
	{name: "all servers are frozen for 12 s", disturb: func(ctx context.Context, h *house) error {
		for _, p := range h.servers {
			p.cmd.Process.Signal(syscall.SIGSTOP)
		}
		wait(context.WithoutCancel(ctx), 12*time.Second)
		for _, p := range h.servers {
			p.cmd.Process.Signal(syscall.SIGCONT)
		}
		return nil
	}},
	{name: "the leader's disk is full, then it is restarted", disk: true, disturb: func(ctx context.Context, h *house) error {
		p, err := h.leader(ctx)
		if err != nil {
			return err
		}
		return h.fill(ctx, p)
	}},
	{name: "all disks are full, then all are restarted", disk: true, disturb: func(ctx context.Context, h *house) error {
		return h.fill(ctx, h.servers...)
	}},
	{name: "the stream is deleted by hand", loses: true, disturb: func(ctx context.Context, h *house) error {
		err := h.js.DeleteStream(ctx, stream)
		h.deleted.Store(true)
		<-ctx.Done()
		return err
	}},
}

// serverVariable is the environment variable that makes the test binary a server.
const serverVariable = "HOOKFERRY_SOAK_NATS_SERVER"

// A serverProcess is a server of a cluster, in a process of its own.
type serverProcess struct {
	Name              string
	Port, ClusterPort int
	Routes            []string
	Dir               string

	cmd   *exec.Cmd
	links []*link // from and to the other servers
}

// mainServer returns at once, unless serverVariable makes this process a server. A server runs
// until the test ends. TestMain calls mainServer first.
func mainServer() {
	text := os.Getenv(serverVariable)
	if text == "" {
		return
	}
	var p serverProcess
	if err := json.Unmarshal([]byte(text), &p); err != nil {
		panic(err)
	}
	o := server.Options{
		ServerName: p.Name, Host: "127.0.0.1", Port: p.Port, JetStream: true, StoreDir: p.Dir, NoSigs: true, NoLog: true,
		Cluster: server.ClusterOpts{Name: "house", Host: "127.0.0.1", Port: p.ClusterPort, Advertise: "127.0.0.1:1", NoAdvertise: true},
	}
	for _, r := range p.Routes {
		o.Routes = append(o.Routes, &url.URL{Scheme: "nats-route", Host: r})
	}
	s, err := server.NewServer(&o)
	if err != nil {
		panic(err)
	}
	s.Start()
	io.Copy(io.Discard, os.Stdin) // until the test ends
	os.Exit(0)
}

func (p *serverProcess) start() error {
	text, err := json.Marshal(p)
	if err != nil {
		return err
	}
	p.cmd = exec.Command(os.Args[0])
	p.cmd.Env = append(os.Environ(), serverVariable+"="+string(text))
	p.cmd.Stderr = os.Stderr
	if _, err := p.cmd.StdinPipe(); err != nil {
		return err
	}
	return p.cmd.Start()
}

// end kills the server.
func (p *serverProcess) end() {
	p.cmd.Process.Kill()
	p.cmd.Wait()
}

// cutOff cuts the server off from the other servers until ctx ends.
func (p *serverProcess) cutOff(ctx context.Context) error {
	for _, l := range p.links {
		l.gate.Lock()
		defer l.gate.Unlock()
	}
	<-ctx.Done()
	return nil
}

// A house is three servers that one node, which delivers at full rate, shares with a neighbour.
type house struct {
	servers []*serverProcess
	js      jetstream.JetStream // the neighbour's connection
	node    *nats.Conn          // the node's connection
	url     string              // where the collector takes calls

	client    http.Client
	accepted  sync.Map // the first event's number of each call that got 200
	calls     atomic.Int64
	delivered []atomic.Int32 // how often each event arrived, by number
	distinct  atomic.Int64   // how many different events arrived
	refused   atomic.Int64
	longest   atomic.Int64 // the longest time to an answer, in nanoseconds
	deleted   atomic.Bool  // whether the stream was deleted
	failed    sync.Once
}

const (
	mostEvents  = 20_000_000
	maxWaiting  = 20_000 // how many deliveries the load keeps waiting
	eventsACall = 64
	diskSize    = 2 << 30
)

// Each neighbour disturbs the servers for the length of the soak. No accepted event may be lost,
// unless the neighbour destroys it. Each logs a row of the table in BENCHMARKS.md.
func TestNeighbours(t *testing.T) {
	length, _ := soakenv.Long(t, "nats-neighbours")
	for _, n := range neighbours {
		t.Run(n.name, func(t *testing.T) { live(t, n, length) })
	}
}

// cluster starts three servers. With disk, the folder of each is a small file system.
func (h *house) cluster(t *testing.T, disk bool) {
	links := make([][]*link, 3)
	for i := range links {
		h.servers = append(h.servers, &serverProcess{Name: fmt.Sprint("s", i), Port: testkit.Port(t), ClusterPort: testkit.Port(t), Dir: filepath.Join(t.TempDir(), "store")})
		links[i] = make([]*link, 3)
	}
	for i, from := range h.servers {
		if disk {
			if err := os.MkdirAll(from.Dir, 0o755); err != nil {
				t.Fatal(err)
			}
			if out, err := exec.Command("mount", "-t", "tmpfs", "-o", fmt.Sprint("size=", diskSize), "tmpfs", from.Dir).CombinedOutput(); err != nil {
				t.Skipf("this user may not mount a file system: %s", out)
			}
			disk := from.Dir
			t.Cleanup(func() { exec.Command("umount", "-l", disk).Run() })
			from.Dir = filepath.Join(disk, "store")
		}
		for j, to := range h.servers {
			if i == j {
				continue
			}
			l := newLink(t)
			l.lead(fmt.Sprint("127.0.0.1:", to.ClusterPort))
			from.Routes = append(from.Routes, l.ln.Addr().String())
			from.links, to.links = append(from.links, l), append(to.links, l)
		}
	}
	for _, p := range h.servers {
		if err := p.start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { p.end() })
	}
}

// fill fills the disks of servers until ctx ends. Then it restarts the servers, because JetStream
// shuts down on a server that cannot write.
func (h *house) fill(ctx context.Context, servers ...*serverProcess) error {
	for _, p := range servers {
		f, err := os.Create(filepath.Join(filepath.Dir(p.Dir), "full"))
		if err != nil {
			return err
		}
		zeros := make([]byte, 64<<10)
		for err == nil {
			_, err = f.Write(zeros)
		}
		if f.Close(); !errors.Is(err, syscall.ENOSPC) {
			return err
		}
	}
	<-ctx.Done()
	for _, p := range servers {
		p.end()
		if err := errors.Join(os.Remove(filepath.Join(filepath.Dir(p.Dir), "full")), p.start()); err != nil {
			return err
		}
	}
	return nil
}

// leader returns the server that leads the stream.
func (h *house) leader(ctx context.Context) (*serverProcess, error) {
	for {
		s, err := h.js.Stream(ctx, stream)
		if err == nil {
			if c := s.CachedInfo().Cluster; c != nil && c.Leader != "" {
				return h.servers[slices.IndexFunc(h.servers, func(p *serverProcess) bool { return p.Name == c.Leader })], nil
			}
		}
		if wait(ctx, 100*time.Millisecond); ctx.Err() != nil {
			return nil, fmt.Errorf("no leader: %w", err)
		}
	}
}

func live(t *testing.T, n neighbour, length time.Duration) {
	h := &house{delivered: make([]atomic.Int32, mostEvents), client: http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 8}}}
	h.cluster(t, n.disk)
	var urls []string
	for _, p := range h.servers {
		urls = append(urls, fmt.Sprint("nats://127.0.0.1:", p.Port))
	}
	dial := func() *nats.Conn {
		nc, err := nats.Connect(strings.Join(urls, ","), nats.RetryOnFailedConnect(true), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}),
			nats.MaxReconnects(-1), nats.ReconnectWait(100*time.Millisecond), nats.PingInterval(5*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(nc.Close)
		return nc
	}
	var err error
	if h.js, err = jetstream.New(dial()); err != nil {
		t.Fatal(err)
	}
	h.node = dial()
	var s *natsqueue.Store
	log := slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	testkit.Until(t, "the store is open", func() bool {
		s, err = natsqueue.Open(t.Context(), h.node, natsqueue.Config{Stream: stream, Replicas: 3, Logger: log})
		return err == nil
	})
	defer s.Close()
	receiver := httptest.NewServer(http.HandlerFunc(h.receive))
	defer receiver.Close()
	c := webhook.Config{Store: s, Logger: log}
	var names []string
	for i := range 10 {
		names = append(names, fmt.Sprint("d", i))
		c.Destinations = append(c.Destinations, webhook.Destination{ID: names[i], Secret: "shh", Endpoints: []webhook.Endpoint{{URL: receiver.URL}}})
	}
	f, err := webhook.New(c)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- f.Run(context.Background()) }() // ended below
	sources := make(map[string]collector.Source)
	for _, name := range names {
		sources[name] = collector.Source{Destinations: []string{name}}
	}
	handler, err := collector.New(collector.Config{Forwarder: f, Sources: collector.Keys(sources)})
	if err != nil {
		t.Fatal(err)
	}
	front := httptest.NewServer(handler)
	defer front.Close()
	h.url = front.URL + "/v1/batch"
	loading, stop := context.WithCancel(t.Context())
	var load sync.WaitGroup
	for range 4 {
		load.Go(func() { h.load(loading, t) })
	}

	measure := min(length, 10*time.Second)
	h.rate(measure) // warm up
	before := h.rate(measure)
	disturbing, leave := context.WithTimeout(t.Context(), length)
	defer leave()
	gone := make(chan error, 1)
	go func() { gone <- n.disturb(disturbing, h) }() // received below
	first, began := h.distinct.Load(), time.Now()
	if err := <-gone; err != nil {
		t.Errorf("%s: %v", n.name, err)
	}
	during := float64(h.distinct.Load()-first) / time.Since(began).Seconds()
	wait(t.Context(), min(length, 30*time.Second))
	after := h.rate(measure)
	stop()
	load.Wait()
	end := time.Now().Add(2 * time.Minute)
	idle := h.distinct.Load()
	for quiet := 0; quiet < 150 && time.Now().Before(end); quiet++ { // until nothing has arrived for 15 seconds
		wait(t.Context(), 100*time.Millisecond)
		if now := h.distinct.Load(); now != idle {
			idle, quiet = now, 0
		}
	}
	if err := f.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
	accepted, lost, twice := 0, 0, int64(0)
	h.accepted.Range(func(first, _ any) bool {
		accepted += eventsACall
		for i := range eventsACall {
			if h.delivered[first.(int)+i].Load() == 0 {
				lost++
			}
		}
		return true
	})
	for i := range h.delivered {
		twice += max(0, int64(h.delivered[i].Load())-1)
	}
	if lost > 0 && !n.loses {
		t.Errorf("%s: %d of %d accepted events are lost, want 0", n.name, lost, accepted)
	}
	// The first node has handed over its partitions, so another node counts the deliveries.
	var other *natsqueue.Store
	testkit.Until(t, "another node opens the store", func() bool {
		other, err = natsqueue.Open(t.Context(), h.node, natsqueue.Config{Stream: stream, Logger: log})
		return err == nil
	})
	defer other.Close()
	var left store.Counts
	testkit.Until(t, "the servers count", func() bool {
		left, err = other.Count(t.Context())
		return err == nil
	})
	if left.Waiting > 0 || left.Dead > 0 {
		t.Errorf("%s: Count = %+v, want 0 waiting, 0 dead", n.name, left)
	}
	// The test does not check the rates. On a shared machine they vary more than a neighbour
	// changes them.
	t.Logf("| %s | %.0f | %.0f | %.0f | %d of %d | %d | %d | %.1f s |", n.name, before, during, after, twice, accepted, lost,
		h.refused.Load(), time.Duration(h.longest.Load()).Seconds())
}

// receive counts a delivery.
func (h *house) receive(_ http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	_, text, found := bytes.Cut(body, []byte(`"messageId":"`))
	text, _, _ = bytes.Cut(text, []byte(`"`))
	if n, bad := strconv.Atoi(string(text)); err == nil && found && bad == nil && h.delivered[n].Add(1) == 1 {
		h.distinct.Add(1)
	}
}

// load makes calls while fewer than maxWaiting events wait. It repeats a refused call.
func (h *house) load(ctx context.Context, t *testing.T) {
	for ctx.Err() == nil {
		if !h.deleted.Load() && h.calls.Load()*eventsACall-h.distinct.Load() > maxWaiting || h.calls.Load()*eventsACall > mostEvents-10_000 {
			wait(ctx, time.Millisecond)
			continue
		}
		call := int(h.calls.Add(1)) - 1
		first := call * eventsACall
		body := []byte(`{"batch":[`)
		for i := range eventsACall {
			if i > 0 {
				body = append(body, ',')
			}
			body = fmt.Appendf(body, `{"type":"track","userId":"u","event":"Sent","messageId":"%d","properties":{"filler":"%0300d"}}`, first+i, i)
		}
		body = append(body, `]}`...)
		for !h.call(t, fmt.Sprint("d", call%10), body) {
			h.refused.Add(1)
			if wait(ctx, 100*time.Millisecond); ctx.Err() != nil {
				return // the store may have the events or not
			}
		}
		h.accepted.Store(first, true)
	}
}

// call makes a call, and reports whether it was accepted.
func (h *house) call(t *testing.T, key string, body []byte) bool {
	req, err := http.NewRequest(http.MethodPost, h.url, bytes.NewReader(body))
	if err != nil {
		t.Error(err)
		return true
	}
	req.SetBasicAuth(key, "")
	began := time.Now()
	resp, err := h.client.Do(req)
	if err != nil {
		h.failed.Do(func() { t.Error(err) })
		return false
	}
	io.Copy(io.Discard, resp.Body)
	resp.Body.Close()
	took := time.Since(began)
	for old := h.longest.Load(); old < int64(took) && !h.longest.CompareAndSwap(old, int64(took)); old = h.longest.Load() {
	}
	right := resp.StatusCode == http.StatusOK || resp.StatusCode == http.StatusServiceUnavailable && resp.Header.Get("Retry-After") != ""
	if !right || took > longestAnswer {
		h.failed.Do(func() {
			t.Errorf("answer %s with Retry-After %q after %v, want 200, or 503 with Retry-After, in time", resp.Status, resp.Header.Get("Retry-After"), took)
		})
	}
	return resp.StatusCode == http.StatusOK
}

// rate returns how many events arrive in a second, measured over d.
func (h *house) rate(d time.Duration) float64 {
	first, began := h.distinct.Load(), time.Now()
	time.Sleep(d)
	return float64(h.distinct.Load()-first) / time.Since(began).Seconds()
}
