package stored

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hookferry/analytics/cmd/hookferry/internal/config"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/memqueue"
)

// A counting store counts the settings that are read and written, and fails if it is to.
type counting struct {
	webhook.Store
	read, written atomic.Int64
	failing       atomic.Bool
	conflicts     atomic.Int64 // how many writes are still to fail with ErrConflict
}

var errStore = errors.New("the store fails")

func (c *counting) Settings(ctx context.Context, prefix string) iter.Seq2[webhook.Setting, error] {
	return func(yield func(webhook.Setting, error) bool) {
		if c.failing.Load() {
			yield(webhook.Setting{}, errStore)
			return
		}
		for s, err := range c.Store.Settings(ctx, prefix) {
			c.read.Add(1)
			if !yield(s, err) {
				return
			}
		}
	}
}

func (c *counting) Set(ctx context.Context, s webhook.Setting) (uint64, error) {
	if c.conflicts.Add(-1) >= 0 {
		return 0, webhook.ErrConflict
	}
	c.written.Add(1)
	return c.Store.Set(ctx, s)
}

// A node is a server of a store.
type node struct {
	*Destinations
	current atomic.Pointer[[]*config.Destination]
	log     bytes.Buffer
}

func newNode(t *testing.T, store webhook.Store) *node {
	t.Helper()
	n := new(node)
	var err error
	n.Destinations, err = Open(t.Context(), Config{
		Store: store, Logger: slog.New(slog.NewTextHandler(&n.log, nil)),
		Changed: func(all []*config.Destination) { n.current.Store(&all) },
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// follows has n follow what others change until the test ends.
func (n *node) follows(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); n.Follow(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
}

func (n *node) get(id string) *config.Destination {
	i := slices.IndexFunc(*n.current.Load(), func(d *config.Destination) bool { return d.ID == id })
	if i < 0 {
		return nil
	}
	return (*n.current.Load())[i]
}

func document(timeout string) map[string]any {
	return map[string]any{"sources": []any{"web"}, "timeout": timeout, "endpoints": []any{map[string]any{"url": "https://a.example/?SECRET"}}}
}

func (n *node) set(t *testing.T, id string, d map[string]any) {
	t.Helper()
	if err := n.Change(t.Context(), id, "alice", nil, func(map[string]any) (map[string]any, error) { return d, nil }); err != nil {
		t.Fatal(err)
	}
}

// A change counts on every node within two seconds. It writes no other destination, and has no
// other read: of ten thousand, the ones that are as they were keep their pointer.
func TestChangesReachAllNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &counting{Store: memqueue.New(memqueue.Config{})}
		defer store.Close()
		for i := range config.MaxDestinations {
			value := `{"destination": {"sources": [], "endpoints": [{"url": "https://a.example/"}]}}`
			if _, err := store.Set(t.Context(), webhook.Setting{Name: fmt.Sprintf("destination/d%05d", i), Value: []byte(value)}); err != nil {
				t.Fatal(err)
			}
		}
		a, b := newNode(t, store), newNode(t, store)
		b.follows(t)
		store.read.Store(0)
		store.written.Store(0)
		untouched, before := b.get("d00001"), b.get("d00000")
		began := time.Now()
		a.set(t, "d00000", document("2s"))
		if n := store.written.Load(); n != 2 {
			t.Errorf("a change wrote %d settings, want the destination and the list of changes", n)
		}
		if d := a.get("d00000"); d.Timeout != 2*time.Second || d.Stored.By != "alice" || !d.Stored.Changed.Equal(began) {
			t.Errorf("%+v on the node that changed it", d)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if d := b.get("d00000"); d == before || d.Timeout != 2*time.Second || d.Stored.By != "alice" {
			t.Errorf("%+v on another node after two seconds", d)
		}
		if b.get("d00001") != untouched || len(*b.current.Load()) != config.MaxDestinations {
			t.Error("what did not change is another pointer, or is gone")
		}
		if n := store.read.Load(); n > 10 {
			t.Errorf("%d settings were read, want a few", n)
		}

		// More changes at once than the list has.
		for i := range 2 * listed {
			a.set(t, fmt.Sprintf("d%05d", i), document("3s"))
		}
		a.set(t, "d00007", nil)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if d, last := b.get("d00000"), b.get(fmt.Sprintf("d%05d", 2*listed-1)); d.Timeout != 3*time.Second || last.Timeout != 3*time.Second || b.get("d00007") != nil {
			t.Errorf("after many changes: %+v, %+v, and one that is gone: %v", d, last, b.get("d00007"))
		}
	})
}

// A server that ends between its two writes leaves a change that no list has. The others find it.
func TestAChangeThatIsNotListed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memqueue.New(memqueue.Config{})
		defer store.Close()
		n := newNode(t, store)
		n.follows(t)
		value := `{"destination": {"sources": [], "endpoints": [{"url": "https://a.example/"}]}}`
		if _, err := store.Set(t.Context(), webhook.Setting{Name: "destination/new", Value: []byte(value)}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(Reread + 2*Every)
		synctest.Wait()
		if n.get("new") == nil {
			t.Error("it is not there after all was to be read anew")
		}
	})
}

// While the store fails, destinations stay as they are, and the log says so once.
func TestTheStoreFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &counting{Store: memqueue.New(memqueue.Config{})}
		defer store.Close()
		a, b := newNode(t, store), newNode(t, store)
		a.set(t, "crm", document("2s"))
		b.follows(t)
		time.Sleep(2 * time.Second)
		store.failing.Store(true)
		time.Sleep(time.Hour)
		synctest.Wait()
		if b.get("crm") == nil || strings.Count(b.log.String(), "level=ERROR") != 1 {
			t.Errorf("%v, and the log says:\n%s", b.get("crm"), b.log.String())
		}
		if err := a.Change(t.Context(), "crm", "", nil, nil); !errors.Is(err, errStore) {
			t.Errorf("a change: %v", err)
		}
		if _, err := Open(t.Context(), Config{Store: store}); !errors.Is(err, errStore) {
			t.Errorf("Open: %v", err)
		}
		store.failing.Store(false)
		a.set(t, "crm", document("3s"))
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if d := b.get("crm"); d.Timeout != 3*time.Second {
			t.Errorf("%+v after the store works again", d)
		}
	})
}

// What another server changes meanwhile is changed once more, of its newest version.
func TestConflicts(t *testing.T) {
	store := &counting{Store: memqueue.New(memqueue.Config{})}
	defer store.Close()
	n := newNode(t, store)
	store.conflicts.Store(2)
	edits := 0
	err := n.Change(t.Context(), "crm", "", nil, func(map[string]any) (map[string]any, error) { edits++; return document("2s"), nil })
	if err != nil || edits != 3 || n.get("crm") == nil {
		t.Errorf("%v after %d edits, want 3", err, edits)
	}
	version := n.get("crm").Stored.Version + 1
	if err := n.Change(t.Context(), "crm", "", &version, nil); !errors.Is(err, ErrConflict) {
		t.Errorf("a change of another version: %v", err)
	}
	large := document("2s")
	large["secret"] = strings.Repeat("x", webhook.MaxSetting)
	if err := n.Change(t.Context(), "crm", "", nil, func(map[string]any) (map[string]any, error) { return large, nil }); !errors.Is(err, ErrTooLarge) {
		t.Errorf("a document of too many bytes: %v", err)
	}
}

// What is not valid, as what a newer version wrote, keeps its sources, so that their calls wait
// for it. The log says why, without secrets, and it can be replaced.
func TestWhatIsNotValid(t *testing.T) {
	store := memqueue.New(memqueue.Config{})
	defer store.Close()
	for id, value := range map[string]string{
		"newer": `{"destination": {"sources": ["web"], "newer": "SECRET", "endpoints": [{"url": "https://a.example/"}]}, "by": "bob"}`,
		"text":  `SECRET`,
		"empty": `{}`,
		"fine":  `{"destination": {"sources": ["web"], "endpoints": [{"url": "https://a.example/"}]}}`,
	} {
		if _, err := store.Set(t.Context(), webhook.Setting{Name: "destination/" + id, Value: []byte(value)}); err != nil {
			t.Fatal(err)
		}
	}
	n := newNode(t, store)
	if d := n.get("newer"); d.Webhook != nil || !slices.Equal(d.Stored.Sources, []string{"web"}) || d.Stored.By != "bob" {
		t.Errorf("of a newer version: %+v", d)
	}
	if d := n.get("fine"); d.Webhook == nil {
		t.Errorf("a valid one: %+v", d)
	}
	for _, id := range []string{"text", "empty"} {
		if d := n.get(id); d.Webhook != nil {
			t.Errorf("%s: %+v", id, d)
		}
		n.set(t, id, document("2s"))
		if d := n.get(id); d.Webhook == nil {
			t.Errorf("%s: %+v after it was replaced", id, d)
		}
	}
	if log := n.log.String(); strings.Count(log, "is not valid") != 3 || strings.Contains(log, "SECRET") {
		t.Errorf("the log, want three that are not valid and no secret:\n%s", log)
	}
}
