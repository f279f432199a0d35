package webhook_test

import (
	"context"
	"errors"
	"iter"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hookferry/analytics/step"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/store"
)

// A node is one process's view of a store that several nodes share. All nodes of a test use the
// same store in memory.
type node struct {
	webhook.Store
	others   []*node       // nodes to notify after each Put
	changed  chan struct{} // notifies this node
	released func()        // called by Release, if it is not nil

	mu      sync.Mutex            // guards the fields below
	err     error                 // returned by Set and Settings, if it is not nil
	present func() ([]byte, bool) // the argument of Present
	hang    chan struct{}         // Fetch blocks until it is closed, if it is not nil
}

func newNode(s webhook.Store) *node { return &node{Store: s, changed: make(chan struct{}, 1)} }

func (n *node) Changed() <-chan struct{} { return n.changed }

func (n *node) Heads(ctx context.Context, _ bool) iter.Seq2[store.Head, error] {
	return n.Store.Heads(ctx, true)
}

func (n *node) SetDocument(ctx context.Context, d store.Document) (uint64, error) {
	if err := n.failure(); err != nil {
		return 0, err
	}
	return n.Store.SetDocument(ctx, d)
}

func (n *node) Changes(ctx context.Context, since uint64) ([]store.DocumentChange, uint64, error) {
	if err := n.failure(); err != nil {
		return nil, 0, err
	}
	return n.Store.Changes(ctx, since)
}

func (n *node) Present(note func() ([]byte, bool)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.present = note
}

// note calls the function that the forwarder passed to Present.
func (n *node) note() ([]byte, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.present()
}

func (n *node) Fetch(ctx context.Context, wants []store.Want, maxBytes int64, dst []webhook.Delivery) ([]webhook.Delivery, error) {
	n.mu.Lock()
	hang := n.hang
	n.mu.Unlock()
	if hang != nil {
		<-hang
	}
	return n.Store.Fetch(ctx, wants, maxBytes, dst)
}

func (n *node) Put(ctx context.Context, ps []store.Put, out []store.Result) error {
	ps = slices.Clone(ps)
	for i := range ps {
		ps[i].Keep = false // so that the deliveries have to be fetched
	}
	err := n.Store.Put(ctx, ps, out)
	for _, other := range n.others {
		select {
		case other.changed <- struct{}{}:
		default:
		}
	}
	return err
}

func (n *node) Nodes(context.Context) ([]store.Node, error) { return nil, nil }

func (n *node) Release(context.Context) error {
	if n.released != nil {
		n.released()
	}
	return nil
}

func (n *node) failure() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.err
}

// fail makes Set and Settings return err, or work again if it is nil.
func (n *node) fail(err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.err = err
}

// withTwoNodes calls test in a bubble with forwarders on the first two of three nodes of a store.
func withTwoNodes(t *testing.T, test func(t *testing.T, nodes []*node, a, b *rig)) {
	inBubble(t, func(t *testing.T, a *rig) {
		nodes := []*node{newNode(a.queue), newNode(a.queue), newNode(a.queue)}
		a.queue = nodes[0]
		a.start(webhook.Config{Destinations: crm(hook)})
		b := &rig{t: t, network: a.network, queue: nodes[1]}
		b.start(webhook.Config{Destinations: crm(hook)})
		test(t, nodes, a, b)
		if b.Forwarder != nil {
			b.stop()
		}
	})
}

func TestPauseAppliesToAllNodesOfAStore(t *testing.T) {
	withTwoNodes(t, func(t *testing.T, nodes []*node, a, b *rig) {
		recv := a.network.Receiver(hook, "shh")
		began := time.Now()
		must(t, a.Pause(t.Context(), "crm"))
		time.Sleep(time.Second)
		synctest.Wait()
		a.track("m1")
		b.track("m2")
		time.Sleep(time.Hour)
		if n := len(recv.Requests()); n != 0 {
			t.Errorf("got %d requests in the pause, want none", n)
		}
		// The pause also applies to a node that starts during it.
		c := &rig{t: t, network: a.network, queue: nodes[2]}
		c.start(webhook.Config{Destinations: crm(hook)})
		c.track("m3")
		synctest.Wait()
		want := []webhook.Hold{{Destination: "crm", Kind: webhook.HoldPaused, Since: began}}
		for _, r := range []*rig{a, b, c} {
			if d := cmp.Diff(want, r.Held()); d != "" {
				t.Errorf("Held() (-want +got):\n%s", d)
			}
		}
		must(t, c.Resume(t.Context(), "crm"))
		c.stop()
		if _, err := recv.Wait(t.Context(), 3); err != nil {
			t.Error(err)
		}
		if since := time.Since(began); since > time.Hour+3*time.Second {
			t.Errorf("the other nodes resumed %v after the pause, want at most 3 s", since-time.Hour)
		}
		for _, r := range []*rig{a, b} {
			time.Sleep(time.Second)
			synctest.Wait() // for polls at this very time
			if h := r.Held(); len(h) != 0 {
				t.Errorf("Held() = %+v after Resume, want none", h)
			}
		}
	})
}

// While the store cannot store or list pauses, Pause and Resume fail and change nothing. A node
// that starts during the outage attempts nothing, because it does not know the pauses.
func TestStoreOutageChangesNoPause(t *testing.T) {
	withTwoNodes(t, func(t *testing.T, nodes []*node, a, b *rig) {
		recv := a.network.Receiver(hook, "shh")
		synctest.Wait() // until both nodes know that nothing is paused
		for _, n := range nodes {
			n.fail(errAway)
		}
		if err := a.Pause(t.Context(), "crm"); !errors.Is(err, errAway) {
			t.Errorf("Pause() = %v, want %v", err, errAway)
		}
		a.track("m1")
		if _, err := recv.Wait(t.Context(), 1); err != nil {
			t.Error(err)
		}
		for _, n := range nodes {
			n.fail(nil)
		}
		must(t, a.Pause(t.Context(), "crm"))
		time.Sleep(2 * time.Second)
		// The destination stays paused while the store fails.
		for _, n := range nodes {
			n.fail(errAway)
		}
		b.track("m2")
		time.Sleep(time.Hour)
		if err := b.Resume(t.Context(), "crm"); !errors.Is(err, errAway) {
			t.Errorf("Resume() = %v, want %v", err, errAway)
		}
		if n := len(recv.Requests()); n != 1 {
			t.Errorf("got %d requests, want only the 1 before the pause", n)
		}
		// A node that starts now does not know the pauses, so it attempts nothing.
		c := &rig{t: t, network: a.network, queue: nodes[2]}
		var log lines
		c.start(webhook.Config{Destinations: crm(hook), Logger: slog.New(slog.NewTextHandler(&log, nil))})
		time.Sleep(time.Minute)
		c.stop()
		if n := strings.Count(log.String(), "\n"); n != 1 {
			t.Errorf("got %d log lines for one outage that does not end, want 1:\n%s", n, log.String())
		}
		if n := len(recv.Requests()); n != 1 {
			t.Errorf("got %d requests, want only the 1 before the pause", n)
		}
		for _, n := range nodes {
			n.fail(nil)
		}
	})
}

// A forwarder that shuts down releases the deliveries that it is not attempting at once. It does
// not wait for its attempts to end.
func TestShutdownReleasesClaimsBeforeAttemptsEnd(t *testing.T) {
	withTwoNodes(t, func(t *testing.T, nodes []*node, a, b *rig) {
		recv := a.network.Receiver(hook, "shh", step.Answer(200).After(4*time.Second))
		b.stop()
		a.fill(crm(hook), 20)
		synctest.Wait()
		began := time.Now()
		var released time.Time
		nodes[0].released = func() { released = time.Now() }
		a.stop()
		if n := len(recv.Requests()); n == 0 || n == 20 || time.Since(began) != 4*time.Second {
			t.Fatalf("got %d requests and a stop after %v, want 1 to 19 requests and the 4 s of an attempt", n, time.Since(began))
		}
		if took := released.Sub(began); took != 0 {
			t.Errorf("claims are released %v after Shutdown began, want at once", took)
		}
		a.Forwarder, b.Forwarder = nil, nil
	})
}

// A node whose scheduler makes no progress reports that it is not alive, so that other nodes take
// over its claims. A node that is idle is alive.
func TestANodeThatHangsIsNotAlive(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		n := newNode(r.queue)
		r.queue = n
		recv := r.network.Receiver(hook, "shh")
		r.start(webhook.Config{Destinations: crm(hook), Note: func() []byte { return []byte("all is well") }})
		time.Sleep(time.Hour)
		if note, alive := n.note(); !alive || string(note) != "all is well" {
			t.Errorf("after an idle hour the note is %q, alive = %v; want \"all is well\", true", note, alive)
		}
		n.mu.Lock()
		n.hang = make(chan struct{})
		n.mu.Unlock()
		r.track("m1")
		time.Sleep(2 * webhook.DefaultTimeout)
		if _, alive := n.note(); !alive {
			t.Error("alive = false while a fetch has taken two timeouts, want true")
		}
		time.Sleep(3 * webhook.DefaultTimeout)
		if _, alive := n.note(); alive {
			t.Error("alive = true while a fetch has taken five timeouts, want false")
		}
		close(n.hang)
		if _, err := recv.Wait(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if _, alive := n.note(); !alive {
			t.Error("alive = false after the fetch has ended, want true")
		}
	})
}

// A fetchless node cannot fetch.
type fetchless struct{ *node }

func (fetchless) Fetch(context.Context, []store.Want, int64, []webhook.Delivery) ([]webhook.Delivery, error) {
	return nil, errors.New("disk full")
}

// A node that waits for its failing store is alive, even if it waits for much longer than Timeout.
func TestANodeIsAliveWhileItsStoreFails(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		n := newNode(r.queue)
		r.queue = fetchless{n}
		r.start(webhook.Config{Destinations: crm(hook), Timeout: time.Second})
		r.track("m1")
		synctest.Wait() // until Run has called Present
		for second := range 60 {
			if _, alive := n.note(); !alive {
				t.Fatalf("alive = false %d s after the store began to fail, want true", second)
			}
			time.Sleep(time.Second)
		}
	})
}
