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

	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/webhooktest"
)

// A node is one of several values of a store in memory, as stores of several processes
// have them.
type node struct {
	webhook.Store
	others   []*node // that are told of what is put here
	changed  chan struct{}
	released func()

	mu      sync.Mutex            // guards what follows
	err     error                 // of all about settings
	present func() ([]byte, bool) // what Present was called with
	hang    chan struct{}         // Fetch waits for it, if there is one
}

func newNode(s webhook.Store) *node { return &node{Store: s, changed: make(chan struct{}, 1)} }

func (n *node) Changed() <-chan struct{} { return n.changed }

func (n *node) Heads(ctx context.Context, _ bool) iter.Seq2[webhook.Head, error] {
	return n.Store.Heads(ctx, true)
}

func (n *node) Set(ctx context.Context, s webhook.Setting) (uint64, error) {
	if err := n.failure(); err != nil {
		return 0, err
	}
	return n.Store.Set(ctx, s)
}

func (n *node) Settings(ctx context.Context, prefix string) iter.Seq2[webhook.Setting, error] {
	if err := n.failure(); err != nil {
		return func(yield func(webhook.Setting, error) bool) { yield(webhook.Setting{}, err) }
	}
	return n.Store.Settings(ctx, prefix)
}

func (n *node) Present(note func() ([]byte, bool)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.present = note
}

func (n *node) note() ([]byte, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.present()
}

func (n *node) Fetch(ctx context.Context, wants []webhook.Want, maxBytes int64, dst []webhook.Delivery) ([]webhook.Delivery, error) {
	n.mu.Lock()
	hang := n.hang
	n.mu.Unlock()
	if hang != nil {
		<-hang
	}
	return n.Store.Fetch(ctx, wants, maxBytes, dst)
}

func (n *node) Put(ctx context.Context, ps []webhook.Put, out []webhook.Result) error {
	ps = slices.Clone(ps)
	for i := range ps {
		ps[i].Keep = false // so that there is something to fetch
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

func (n *node) Nodes(context.Context) ([]webhook.Node, error) { return nil, nil }

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

func (n *node) fail(err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.err = err
}

// withTwoNodes is inBubble with two forwarders on a store that is shared by three nodes.
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
			t.Errorf("%d requests in the pause", n)
		}
		// One that is started meanwhile begins with the pause.
		c := &rig{t: t, network: a.network, queue: nodes[2]}
		c.start(webhook.Config{Destinations: crm(hook)})
		c.track("m3")
		synctest.Wait()
		want := []webhook.Held{{Destination: "crm", Hold: webhook.HoldPaused, Since: began}}
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
			t.Errorf("the others went on %v after the pause", since-time.Hour)
		}
		for _, r := range []*rig{a, b} {
			time.Sleep(time.Second)
			synctest.Wait() // for what is asked at this very time
			if h := r.Held(); len(h) != 0 {
				t.Errorf("Held() = %+v after it", h)
			}
		}
	})
}

func TestStoreOutageChangesNoPause(t *testing.T) {
	withTwoNodes(t, func(t *testing.T, nodes []*node, a, b *rig) {
		recv := a.network.Receiver(hook, "shh")
		synctest.Wait() // both know what is paused
		for _, n := range nodes {
			n.fail(errAway)
		}
		if err := a.Pause(t.Context(), "crm"); !errors.Is(err, errAway) {
			t.Errorf("Pause = %v", err)
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
		// What is paused stays so while the store cannot say.
		for _, n := range nodes {
			n.fail(errAway)
		}
		b.track("m2")
		time.Sleep(time.Hour)
		if err := b.Resume(t.Context(), "crm"); !errors.Is(err, errAway) {
			t.Errorf("Resume = %v", err)
		}
		if n := len(recv.Requests()); n != 1 {
			t.Errorf("%d requests, want that before the pause", n)
		}
		// And nothing is attempted by who does not know yet.
		c := &rig{t: t, network: a.network, queue: nodes[2]}
		var log lines
		c.start(webhook.Config{Destinations: crm(hook), Logger: slog.New(slog.NewTextHandler(&log, nil))})
		time.Sleep(time.Minute)
		c.stop()
		if n := strings.Count(log.String(), "\n"); n != 1 {
			t.Errorf("%d log lines for one outage that does not end:\n%s", n, log.String())
		}
		if n := len(recv.Requests()); n != 1 {
			t.Errorf("%d requests, want that before the pause", n)
		}
		for _, n := range nodes {
			n.fail(nil)
		}
	})
}

// What a forwarder that stops is not attempting is for others at once.
func TestShutdownReleasesClaimsBeforeAttemptsEnd(t *testing.T) {
	withTwoNodes(t, func(t *testing.T, nodes []*node, a, b *rig) {
		recv := a.network.Receiver(hook, "shh", webhooktest.Answer(200).After(4*time.Second))
		b.stop()
		a.fill(crm(hook), 20)
		synctest.Wait()
		began := time.Now()
		var released time.Time
		nodes[0].released = func() { released = time.Now() }
		a.stop()
		if n := len(recv.Requests()); n == 0 || n == 20 || time.Since(began) != 4*time.Second {
			t.Fatalf("%d requests, and stopped after %v", n, time.Since(began))
		}
		if took := released.Sub(began); took != 0 {
			t.Errorf("released %v after the stop", took)
		}
		a.Forwarder, b.Forwarder = nil, nil
	})
}

// A node whose scheduler makes no progress says so, and others take over what it has
// claimed. One that has nothing to do is alive.
func TestANodeThatHangsIsNotAlive(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		n := newNode(r.queue)
		r.queue = n
		recv := r.network.Receiver(hook, "shh")
		r.start(webhook.Config{Destinations: crm(hook), Note: func() []byte { return []byte("all is well") }})
		time.Sleep(time.Hour)
		if note, alive := n.note(); !alive || string(note) != "all is well" {
			t.Errorf("after an hour of nothing it shows %q, alive = %v", note, alive)
		}
		n.mu.Lock()
		n.hang = make(chan struct{})
		n.mu.Unlock()
		r.track("m1")
		time.Sleep(2 * webhook.DefaultTimeout)
		if _, alive := n.note(); !alive {
			t.Error("not alive while a fetch takes two timeouts")
		}
		time.Sleep(3 * webhook.DefaultTimeout)
		if _, alive := n.note(); alive {
			t.Error("alive though a fetch hangs")
		}
		close(n.hang)
		if _, err := recv.Wait(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if _, alive := n.note(); !alive {
			t.Error("not alive once the fetch has ended")
		}
	})
}
