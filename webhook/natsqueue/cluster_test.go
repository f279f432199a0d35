package natsqueue

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/hookferry/analytics/internal/porttest"
	"github.com/hookferry/analytics/webhook"
)

// A testCluster is servers that keep streams together.
type testCluster []*testServer

// startCluster starts n servers, until the test ends. Their routes are links.
func startCluster(t testing.TB, n int) (c testCluster) {
	t.Helper()
	dir, err := os.MkdirTemp("", "natsqueue")
	if err != nil {
		t.Fatal(err)
	}
	links := make([]map[int]*link, n)
	for i := range n {
		links[i] = make(map[int]*link)
		for j := range n {
			if j != i {
				links[i][j] = newLink(t)
			}
		}
	}
	t.Cleanup(func() {
		for _, s := range c {
			s.down()
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	for i := range n {
		port, err := porttest.Free()
		if err != nil {
			t.Fatal(err)
		}
		s := &testServer{dir: filepath.Join(dir, strconv.Itoa(i))}
		var routes []*url.URL
		for j := range n {
			if j == i {
				continue
			}
			routes = append(routes, &url.URL{Scheme: "nats-route", Host: links[i][j].ln.Addr().String()})
			s.links = append(s.links, links[i][j], links[j][i])
			s.routes = append(s.routes, links[j][i])
		}
		s.options = server.Options{
			ServerName: fmt.Sprint("s", i), Host: "127.0.0.1", Port: port, JetStream: true, StoreDir: s.dir,
			Cluster: server.ClusterOpts{
				Name: "test", Host: "127.0.0.1", Port: server.RANDOM_PORT,
				Advertise:   "127.0.0.1:1", // where nobody is: servers tell each other of routes past the links
				NoAdvertise: true,          // clients stay with the servers that they were given
			},
			Routes: routes, NoSigs: true, NoLog: true, MaxPayload: maxPayload,
		}
		if err := s.up(); err != nil {
			t.Fatal(err)
		}
		c = append(c, s)
	}
	until(t, startTime, "the cluster has a leader of all servers", func() bool {
		for _, s := range c {
			if s.running.JetStreamIsLeader() && len(s.running.JetStreamClusterPeers()) == n {
				return true
			}
		}
		return false
	})
	return c
}

// until waits until what is wanted is so.
func until(t testing.TB, patience time.Duration, want string, so func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !so(); wait(t.Context(), 10*time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not in %v: %s", patience, want)
		}
	}
}

func wait(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

func (c testCluster) url() string {
	urls := make([]string, len(c))
	for i, s := range c {
		urls[i] = s.url()
	}
	return strings.Join(urls, ",")
}

// leader returns the server that leads a stream.
func (c testCluster) leader(t *testing.T, stream string) (leader *testServer) {
	t.Helper()
	until(t, startTime, "the stream has a leader", func() bool {
		for _, s := range c {
			if s.running.Running() && s.running.JetStreamIsStreamLeader(server.DEFAULT_GLOBAL_ACCOUNT, stream) {
				leader = s
			}
		}
		return leader != nil
	})
	return leader
}

func deliveries(destination string, from, n int) []webhook.Delivery {
	now := time.Now().Add(-time.Second)
	ds := make([]webhook.Delivery, n)
	for i := range ds {
		id := fmt.Sprint(from + i)
		ds[i] = webhook.Delivery{Destination: destination, ID: id, Type: "track", Body: []byte(id), Accepted: now, Due: now}
	}
	return ds
}

// The leader of the stream is killed under load, and another.
func TestLeaderKilled(t *testing.T) {
	c := startCluster(t, 3)
	q := openAt(t, c.url(), Config{Stream: "LEADER", Claim: 2 * time.Second, Partitions: 4})
	defer q.Close()
	s, err := q.js.Stream(t.Context(), "LEADER")
	if err != nil {
		t.Fatal(err)
	}
	if n := s.CachedInfo().Config.Replicas; n != 3 {
		t.Fatalf("the stream has %d replicas in a cluster of 3", n)
	}
	const puts, each = 300, 5
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	halfway := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := range puts {
			ds := deliveries(fmt.Sprint("d", i%7), i*each, each)
			for {
				if _, err := q.Put(ctx, ds...); err == nil {
					break
				} else if ctx.Err() != nil {
					t.Errorf("Put: %v", err)
					return
				}
			}
			if i == puts/3 {
				close(halfway)
			}
		}
	})
	wg.Go(func() {
		<-halfway
		dead := c.leader(t, "LEADER")
		dead.down()
		wait(ctx, time.Second)
		if err := dead.up(); err != nil {
			t.Error(err)
		}
	})
	settled := make(map[string]int)
	tries := make(map[string]bool)
	for len(settled) < puts*each && ctx.Err() == nil {
		ds, _, err := q.Lease(ctx, webhook.LeaseRequest{Max: 50, Until: time.Now().Add(time.Minute)}, nil)
		if err != nil || len(ds) == 0 {
			wait(ctx, 5*time.Millisecond)
			continue
		}
		ss := make([]webhook.Settlement, len(ds))
		for i, d := range ds {
			ss[i] = webhook.Settlement{Verdict: webhook.Done, Delivery: d}
			if id, _ := strconv.Atoi(d.ID); id%10 == 0 && !tries[d.ID] {
				tries[d.ID] = true
				ss[i].Verdict, ss[i].Delivery.Tries = webhook.Retry, 1
			}
		}
		for q.Settle(ctx, ss...) != nil && ctx.Err() == nil {
			wait(ctx, 50*time.Millisecond)
		}
		for i := range ss {
			if ss[i].Verdict == webhook.Done {
				settled[ss[i].Delivery.ID]++
			}
		}
	}
	wg.Wait()
	for id, n := range settled {
		if n != 1 {
			t.Errorf("delivery %s was done %d times", id, n)
		}
	}
	var counts webhook.Counts
	until(t, startTime, "the servers can be asked again", func() bool {
		counts, err = q.Count(t.Context())
		return err == nil
	})
	if counts.Waiting != 0 || len(settled) != puts*each {
		t.Errorf("%d of %d are done; Count = %+v", len(settled), puts*each, counts)
	}
}

// A process that is cut off loses what it owns to the others once its claim has
// expired, and comes back.
func TestCutOff(t *testing.T) {
	t.Parallel()
	d := new(dialer)
	nc, err := nats.Connect(shared.url(), nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond), nats.SetCustomDialer(d))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	c := Config{Stream: nameOf(t.TempDir()), Claim: busyClaim, Partitions: 16}
	a, err := Open(t.Context(), nc, &c)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	b := openWith(t, c)
	defer b.Close()
	const n = 40
	for i := range n {
		if _, err := b.Put(t.Context(), deliveries(fmt.Sprint("d", i), 0, 1)...); err != nil {
			t.Fatal(err)
		}
	}
	var held []webhook.Delivery
	until(t, startTime, "a owns something", func() bool {
		held, _, err = a.Lease(t.Context(), webhook.LeaseRequest{Max: n, Until: time.Now().Add(time.Hour)}, nil)
		return len(held) > 0
	})
	lived := a.life()
	d.set(true)
	buried := make(chan error, 1)
	go func() {
		buried <- a.Settle(t.Context(), webhook.Settlement{Verdict: webhook.Bury, Delivery: held[0], Reason: webhook.ReasonExpired, At: time.Now()})
	}()
	began := time.Now()
	var got []webhook.Delivery
	until(t, startTime, "b has all", func() bool {
		if got, _, err = b.Lease(t.Context(), webhook.LeaseRequest{Max: n, Until: time.Now().Add(time.Hour)}, got); err != nil {
			t.Fatal(err)
		}
		return len(got) == n
	})
	t.Logf("taken over in %v", time.Since(began))
	if _, _, err := a.Lease(t.Context(), webhook.LeaseRequest{Max: 1, Until: time.Now().Add(time.Hour)}, nil); err == nil {
		t.Error("a leases though its claim has expired")
	}
	if err := a.Settle(t.Context(), webhook.Settlement{Verdict: webhook.Done, Delivery: held[0]}); err == nil {
		t.Error("a settles though its claim has expired")
	}
	if err := <-buried; err == nil {
		t.Error("a buries though it is cut off")
	}
	d.set(false)
	for i := range got {
		if err := b.Settle(t.Context(), webhook.Settlement{Verdict: webhook.Done, Delivery: got[i]}); err != nil {
			t.Fatal(err)
		}
	}
	until(t, startTime, "a is back", func() bool {
		counts, err := a.Count(t.Context())
		return err == nil && counts.Waiting == 0 && a.life() != lived
	})
	for dead, err := range a.Dead(t.Context(), webhook.DeadFilter{}, "") {
		t.Errorf("%s was buried late: %v", dead.Destination, err)
	}
}

// What a process does that does not know yet that another owns the partition
// counts for nothing.
func TestLate(t *testing.T) {
	t.Parallel()
	c := Config{Stream: nameOf(t.TempDir()), Claim: time.Hour, Partitions: 1}
	open := func() *Queue {
		t.Helper()
		q := openWith(t, c)
		q.ruling.Lock() // who owns what is up to the test
		return q
	}
	a := open()
	if _, err := a.Put(t.Context(), append(deliveries("x", 0, 1), deliveries("y", 0, 1)...)...); err != nil {
		t.Fatal(err)
	}
	late, _, err := a.Lease(t.Context(), webhook.LeaseRequest{Max: 2, Until: time.Now().Add(time.Hour)}, nil)
	if err != nil || len(late) != 2 {
		t.Fatalf("Lease = %d, %v", len(late), err)
	}
	a.owned[0].end() // it reads no more
	b := open()
	seize(t, b, 0)
	got, _, err := b.Lease(t.Context(), webhook.LeaseRequest{Max: 2, Until: time.Now().Add(time.Hour)}, nil)
	if err != nil || len(got) != 2 {
		t.Fatalf("Lease of what was taken over = %d, %v", len(got), err)
	}
	again := late[1]
	again.Tries = 1
	if err := a.Settle(t.Context(), webhook.Settlement{Verdict: webhook.Done, Delivery: late[0]}, webhook.Settlement{Verdict: webhook.Retry, Delivery: again}); err != nil {
		t.Fatal(err)
	}
	check := func(q *Queue, leased int) {
		t.Helper()
		// What comes later has been seen, so what came before has.
		if n, err := q.Put(t.Context(), deliveries("z", int(time.Now().UnixNano()), 1)...); n != 1 || err != nil {
			t.Fatal(err)
		}
		until(t, startTime, "the messages are seen", func() bool {
			q.mu.Lock()
			defer q.mu.Unlock()
			return len(q.owned[0].early) == 0
		})
		q.mu.Lock()
		defer q.mu.Unlock()
		for _, it := range q.owned[0].held {
			if it.Tries != 0 {
				t.Errorf("%s was put back by one who was too late", it.Lane().Name)
			}
		}
		if n := q.owned[0].leases(); n != leased {
			t.Errorf("%d are leased, want %d", n, leased)
		}
	}
	check(b, 2)
	// The next who takes over judges the same.
	b.owned[0].end()
	d := open()
	seize(t, d, 0)
	check(d, 0)
	all, _, err := d.Lease(t.Context(), webhook.LeaseRequest{Max: 10, Until: time.Now().Add(time.Hour)}, nil)
	if err != nil || len(all) != 4 {
		t.Errorf("Lease of what was taken over again = %v, %v; want x, y and two z", all, err)
	}
	for _, q := range []*Queue{a, b, d} {
		q.ruling.Unlock()
		if err := q.Close(); err != nil {
			t.Error(err)
		}
	}
}

// seize has q own a partition, whoever does.
func seize(t *testing.T, q *Queue, n int) {
	t.Helper()
	holdings, err := q.holdings(t.Context())
	if err == nil {
		err = q.claim(t.Context(), n, holdings[n])
	}
	if err != nil {
		t.Fatal(err)
	}
	<-q.owned[n].ready
}

// A process whose sign of life comes too late hands out nothing of what others have taken
// over meanwhile, though it has not heard of that, and keeps the rest.
func TestLateSign(t *testing.T) {
	t.Parallel()
	c := Config{Stream: nameOf(t.TempDir()), Claim: time.Hour, Partitions: 2}
	a := openWith(t, c)
	defer a.Close()
	a.ruling.Lock() // who owns what is up to the test
	defer a.ruling.Unlock()
	var names [2]string // of a destination of each partition
	for i := 0; names[0] == "" || names[1] == ""; i++ {
		name := fmt.Sprint("d", i)
		names[partitionOf(name, 2)] = name
	}
	for _, name := range names {
		if n, err := a.Put(t.Context(), deliveries(name, 0, 1)...); n != 1 || err != nil {
			t.Fatalf("Put = %d, %v", n, err)
		}
	}
	a.owned[0].end() // it reads no more
	b := openWith(t, c)
	defer b.Close()
	b.ruling.Lock()
	defer b.ruling.Unlock()
	seize(t, b, 0)
	a.mu.Lock()
	a.until = time.Now().Add(-time.Second)
	a.mu.Unlock()
	if err := a.beat(t.Context()); err != nil {
		t.Fatal(err)
	}
	ds, _, err := a.Lease(t.Context(), webhook.LeaseRequest{Max: 10, Until: time.Now().Add(time.Hour)}, nil)
	if err != nil || len(ds) != 1 || ds[0].Destination != names[1] {
		t.Errorf("Lease after a late sign of life = %v, %v; want that of %s alone", ds, err, names[1])
	}
	ds, _, err = b.Lease(t.Context(), webhook.LeaseRequest{Max: 10, Until: time.Now().Add(time.Hour)}, nil)
	if err != nil || len(ds) != 1 || ds[0].Destination != names[0] {
		t.Errorf("Lease of who took over = %v, %v; want that of %s alone", ds, err, names[0])
	}
}

// Who has not given all signs of life of late takes nobody for dead: the servers may have been
// away, for the others too.
func TestSilentJudgesNobody(t *testing.T) {
	t.Parallel()
	c := Config{Stream: nameOf(t.TempDir()), Claim: 2 * time.Second, Partitions: 1}
	a, b := openWith(t, c), openWith(t, c)
	defer a.Close()
	defer b.Close()
	a.abandon()
	b.abandon()
	a.mu.Lock()
	a.steady = time.Now().Add(-time.Hour)
	a.mu.Unlock()
	sign := func() { // whose answer is lost
		t.Helper()
		if err := a.publisher.store(t.Context(), &message{subject: a.config.nodes() + "." + a.id, data: []byte("{}")}); err != nil {
			t.Fatal(err)
		}
	}
	seen := func() map[string]time.Time {
		t.Helper()
		s, err := a.js.Stream(t.Context(), a.config.nodes())
		if err != nil {
			t.Fatal(err)
		}
		at := make(map[string]time.Time)
		for _, q := range []*Queue{a, b} {
			m, err := s.GetLastMsgForSubject(t.Context(), a.config.nodes()+"."+q.id)
			if err != nil {
				t.Fatal(err)
			}
			at[q.id] = m.Time
		}
		return at
	}
	until(t, startTime, "b has been silent for long, and a's own claim has expired", func() bool {
		sign()
		at := seen()
		return at[a.id].Sub(at[b.id]) > c.Claim && a.lapsed() // a's last sign may be later than b's
	})
	judges := func() bool {
		t.Helper()
		nodes, err := a.nodes(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return len(nodes) == 1
	}
	if judges() {
		t.Error("b is taken for dead by one whose own signs of life were not stored")
	}
	if err := a.beat(t.Context()); err != nil {
		t.Fatal(err)
	}
	if judges() {
		t.Error("b is taken for dead by one whose own sign of life has just been missing")
	}
	// One that is missed, though its claim has not expired.
	a.mu.Lock()
	a.steady = time.Now().Add(-time.Hour)
	a.until = time.Now().Add(c.trusted() - c.Claim*8/10)
	a.mu.Unlock()
	if err := a.beat(t.Context()); err != nil {
		t.Fatal(err)
	}
	if judges() {
		t.Error("b is taken for dead by one who has missed a sign of life")
	}
	until(t, startTime, "b is taken for dead by one who has given all signs of life", func() bool {
		a.mu.Lock()
		a.steady = time.Now().Add(-time.Hour)
		a.mu.Unlock()
		if err := a.beat(t.Context()); err != nil {
			t.Fatal(err)
		}
		return judges()
	})
}
