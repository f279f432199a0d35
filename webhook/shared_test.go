package webhook_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/memqueue"
	"github.com/hookferry/analytics/webhook/webhooktest"
)

// A sharedQueue is a memqueue whose pauses can fail, as those of stores of several
// processes do.
type sharedQueue struct {
	*memqueue.Queue

	mu       sync.Mutex
	err      error // of all about pauses
	released func()
}

var errAside = errors.New("the store is away")

func (q *sharedQueue) SetPaused(ctx context.Context, destination string, paused bool) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.err != nil {
		return q.err
	}
	return q.Queue.SetPaused(ctx, destination, paused)
}

func (q *sharedQueue) Paused(ctx context.Context) (map[string]time.Time, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.err != nil {
		return nil, q.err
	}
	return q.Queue.Paused(ctx)
}

func (q *sharedQueue) Release(context.Context) error {
	if q.released != nil {
		q.released()
	}
	return nil
}

func (q *sharedQueue) fail(err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.err = err
}

// inShared is inBubble with a store that is shared, and two forwarders on it.
func inShared(t *testing.T, test func(t *testing.T, q *sharedQueue, a, b *rig)) {
	inBubble(t, func(t *testing.T, a *rig) {
		q := &sharedQueue{Queue: a.queue.(*memqueue.Queue)}
		a.queue = q
		a.start(webhook.Config{Destinations: crm(hook)})
		b := &rig{t: t, network: a.network, queue: q}
		b.start(webhook.Config{Destinations: crm(hook)})
		test(t, q, a, b)
		if b.Forwarder != nil {
			b.stop()
		}
	})
}

func TestAPauseHoldsForAllOfAStore(t *testing.T) {
	inShared(t, func(t *testing.T, q *sharedQueue, a, b *rig) {
		recv := a.network.Receiver(hook, "shh")
		began := time.Now()
		if err := a.Pause(t.Context(), "crm"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		a.track("m1")
		b.track("m2")
		time.Sleep(time.Hour)
		if n := len(recv.Requests()); n != 0 {
			t.Errorf("%d requests in the pause", n)
		}
		// One that is started meanwhile begins with the pause.
		c := &rig{t: t, network: a.network, queue: q}
		c.start(webhook.Config{Destinations: crm(hook)})
		c.track("m3")
		synctest.Wait()
		want := []webhook.Held{{Destination: "crm", Hold: webhook.HoldPaused, Since: began}}
		for _, r := range []*rig{a, b, c} {
			if d := cmp.Diff(want, r.Held()); d != "" {
				t.Errorf("Held() (-want +got):\n%s", d)
			}
		}
		if err := c.Resume(t.Context(), "crm"); err != nil {
			t.Fatal(err)
		}
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

func TestAPauseThatCannotBeStored(t *testing.T) {
	inShared(t, func(t *testing.T, q *sharedQueue, a, b *rig) {
		recv := a.network.Receiver(hook, "shh")
		synctest.Wait() // both know what is paused
		q.fail(errAside)
		if err := a.Pause(t.Context(), "crm"); !errors.Is(err, errAside) {
			t.Errorf("Pause = %v", err)
		}
		a.track("m1")
		if _, err := recv.Wait(t.Context(), 1); err != nil {
			t.Error(err)
		}
		q.fail(nil)
		if err := a.Pause(t.Context(), "crm"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		// What is paused stays so while the store cannot say.
		q.fail(errAside)
		b.track("m2")
		time.Sleep(time.Hour)
		if err := b.Resume(t.Context(), "crm"); !errors.Is(err, errAside) {
			t.Errorf("Resume = %v", err)
		}
		if n := len(recv.Requests()); n != 1 {
			t.Errorf("%d requests, want that before the pause", n)
		}
		// And nothing is attempted by who does not know yet.
		c := &rig{t: t, network: a.network, queue: q}
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
		q.fail(nil)
	})
}

// What a forwarder that stops is not attempting is for others at once.
func TestReleasesBeforeAttemptsEnd(t *testing.T) {
	inShared(t, func(t *testing.T, q *sharedQueue, a, b *rig) {
		recv := a.network.Receiver(hook, "shh", webhooktest.Answer(200).After(4*time.Second))
		b.stop()
		a.fill(crm(hook), 20)
		synctest.Wait()
		began := time.Now()
		var released time.Time
		q.released = func() { released = time.Now() }
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
