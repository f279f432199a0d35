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
	"github.com/hookferry/analytics/internal/testkit"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/memqueue"
	"github.com/hookferry/analytics/webhook/store"
)

// A countingStore counts the documents that are read and written. It fails if failing is set.
type countingStore struct {
	webhook.Store
	read, written atomic.Int64
	failing       atomic.Bool
	conflicts     atomic.Int64 // number of writes that will fail with ErrConflict
}

var errStore = errors.New("the store fails")

func (c *countingStore) Document(ctx context.Context, folder, name string) (store.Document, error) {
	if c.failing.Load() {
		return store.Document{}, errStore
	}
	c.read.Add(1)
	return c.Store.Document(ctx, folder, name)
}

func (c *countingStore) Documents(ctx context.Context, folder, after string) iter.Seq2[store.Document, error] {
	return func(yield func(store.Document, error) bool) {
		for d, err := range c.Store.Documents(ctx, folder, after) {
			c.read.Add(1)
			if !yield(d, err) {
				return
			}
		}
	}
}

func (c *countingStore) Changes(ctx context.Context, since uint64) ([]store.DocumentChange, uint64, error) {
	if c.failing.Load() {
		return nil, 0, errStore
	}
	return c.Store.Changes(ctx, since)
}

func (c *countingStore) SetDocument(ctx context.Context, d store.Document) (uint64, error) {
	if c.conflicts.Add(-1) >= 0 {
		return 0, store.ErrConflict
	}
	c.written.Add(1)
	return c.Store.SetDocument(ctx, d)
}

// A node is a server that uses a store.
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
		Store: store, Webhooks: new(config.Webhooks), Logger: slog.New(slog.NewTextHandler(&n.log, nil)),
		Changed: func(all []*config.Destination) { n.current.Store(&all) },
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// follows runs Follow, which reads the changes of other nodes, until the test ends.
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

// TestChangesReachAllNodes shows that every node has a change within two seconds. Nobody reads or
// writes the other destinations: the unchanged ones of ten thousand keep their pointers.
func TestChangesReachAllNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		queue := &countingStore{Store: testkit.Must(memqueue.Open(memqueue.Config{}))}
		defer queue.Close()
		for i := range config.MaxDestinations {
			value := `{"destination": {"sources": [], "endpoints": [{"url": "https://a.example/"}]}}`
			if _, err := queue.SetDocument(t.Context(), store.Document{Folder: folder, Name: fmt.Sprintf("d%05d", i), Value: []byte(value)}); err != nil {
				t.Fatal(err)
			}
		}
		a, b := newNode(t, queue), newNode(t, queue)
		b.follows(t)
		queue.read.Store(0)
		queue.written.Store(0)
		untouched, before := b.get("d00001"), b.get("d00000")
		began := time.Now()
		a.set(t, "d00000", document("2s"))
		if n := queue.written.Load(); n != 1 {
			t.Errorf("a change wrote %d documents, want that of the destination", n)
		}
		if d := a.get("d00000"); d.Timeout != 2*webhook.Duration(time.Second) || d.Stored.By != "alice" || !d.Stored.Changed.Equal(began) {
			t.Errorf("the node that made the change has %+v, want the timeout 2s by alice", d)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if d := b.get("d00000"); d == before || d.Timeout != 2*webhook.Duration(time.Second) || d.Stored.By != "alice" {
			t.Errorf("another node has %+v after two seconds, want the timeout 2s by alice", d)
		}
		if b.get("d00001") != untouched || len(*b.current.Load()) != config.MaxDestinations {
			t.Error("an unchanged destination has another pointer, or is gone")
		}
		if n := queue.read.Load(); n > 10 {
			t.Errorf("the nodes read %d documents, want at most 10", n)
		}

		// More changes than the store returns at once.
		const many = 2500
		for i := range many {
			a.set(t, fmt.Sprintf("d%05d", i), document("3s"))
		}
		a.set(t, "d00007", nil)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if d, last := b.get("d00000"), b.get(fmt.Sprintf("d%05d", many-1)); d.Timeout != webhook.Duration(3*time.Second) || last.Timeout != webhook.Duration(3*time.Second) || b.get("d00007") != nil {
			t.Errorf("after many changes: %+v and %+v, want the timeout 3s; the deleted destination is %v, want nil", d, last, b.get("d00007"))
		}
	})
}

// TestChangesAreFoundAfterALongSilence: a server that could not ask for changes while the store
// forgot a removal reads everything.
func TestChangesAreFoundAfterALongSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		queue := testkit.Must(memqueue.Open(memqueue.Config{}))
		defer queue.Close()
		a, failing := newNode(t, queue), &countingStore{Store: queue}
		a.set(t, "old", document("1s"))
		b := newNode(t, failing)
		b.follows(t)
		failing.failing.Store(true)
		a.set(t, "old", nil)
		time.Sleep(2 * store.RememberRemoved)
		a.set(t, "new", document("1s"))
		failing.failing.Store(false)
		time.Sleep(2 * Every)
		synctest.Wait()
		if b.get("new") == nil || b.get("old") != nil {
			t.Errorf("after two hours another node has %v and %v, want the new destination alone", b.get("new"), b.get("old"))
		}
	})
}

// TestChangeOutlastsItsClient shows that a change is made even if its client disconnects.
func TestChangeOutlastsItsClient(t *testing.T) {
	queue := testkit.Must(memqueue.Open(memqueue.Config{}))
	defer queue.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	a := newNode(t, queue)
	if err := a.Change(ctx, "crm", "alice", nil, func(map[string]any) (map[string]any, error) { return document("2s"), nil }); err != nil {
		t.Errorf("Change = %v, want nil", err)
	}
	if a.get("crm") == nil {
		t.Error("the destination is missing")
	}
}

// TestDestinationsOutliveAFailingStore shows that destinations stay as they are while the store
// fails. The log says so once.
func TestDestinationsOutliveAFailingStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &countingStore{Store: testkit.Must(memqueue.Open(memqueue.Config{}))}
		defer store.Close()
		a, b := newNode(t, store), newNode(t, store)
		a.set(t, "crm", document("2s"))
		b.follows(t)
		time.Sleep(2 * time.Second)
		store.failing.Store(true)
		time.Sleep(time.Hour)
		synctest.Wait()
		if b.get("crm") == nil || strings.Count(b.log.String(), "level=ERROR") != 1 {
			t.Errorf("the destination is %v, want it unchanged, and one error in the log:\n%s", b.get("crm"), b.log.String())
		}
		if err := a.Change(t.Context(), "crm", "", nil, nil); !errors.Is(err, errStore) {
			t.Errorf("Change with a failing store: %v, want %v", err, errStore)
		}
		if _, err := Open(t.Context(), Config{Store: store}); !errors.Is(err, errStore) {
			t.Errorf("Open with a failing store: %v, want %v", err, errStore)
		}
		store.failing.Store(false)
		a.set(t, "crm", document("3s"))
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if d := b.get("crm"); d.Timeout != webhook.Duration(3*time.Second) {
			t.Errorf("the destination is %+v after the store works again, want the timeout 3s", d)
		}
	})
}

// TestChangeIsRepeatedAfterAConflict shows that Change repeats an edit on the newest version if
// another server has changed the destination.
func TestChangeIsRepeatedAfterAConflict(t *testing.T) {
	queue := &countingStore{Store: testkit.Must(memqueue.Open(memqueue.Config{}))}
	defer queue.Close()
	n := newNode(t, queue)
	queue.conflicts.Store(2)
	edits := 0
	err := n.Change(t.Context(), "crm", "", nil, func(map[string]any) (map[string]any, error) { edits++; return document("2s"), nil })
	if err != nil || edits != 3 || n.get("crm") == nil {
		t.Errorf("Change = %v after %d edits, want no error after 3", err, edits)
	}
	version := n.get("crm").Stored.Version + 1
	if err := n.Change(t.Context(), "crm", "", &version, nil); !errors.Is(err, ErrConflict) {
		t.Errorf("Change of another version: %v, want ErrConflict", err)
	}
	large := document("2s")
	large["secret"] = strings.Repeat("x", store.MaxDocument)
	if err := n.Change(t.Context(), "crm", "", nil, func(map[string]any) (map[string]any, error) { return large, nil }); !errors.Is(err, ErrTooLarge) {
		t.Errorf("Change to a document that is too large: %v, want ErrTooLarge", err)
	}
}

// TestInvalidDestinationsKeepTheirSources: a newer version may have written a destination that is
// not valid for this one. Such a destination keeps its sources, so that their calls wait for it.
// The log says why it is not valid, without secrets. A user can replace the destination.
func TestInvalidDestinationsKeepTheirSources(t *testing.T) {
	queue := testkit.Must(memqueue.Open(memqueue.Config{}))
	defer queue.Close()
	for id, value := range map[string]string{
		"newer": `{"destination": {"sources": ["web"], "newer": "SECRET", "endpoints": [{"url": "https://a.example/"}]}, "by": "bob"}`,
		"text":  `SECRET`,
		"empty": `{}`,
		"fine":  `{"destination": {"sources": ["web"], "endpoints": [{"url": "https://a.example/"}]}}`,
	} {
		if _, err := queue.SetDocument(t.Context(), store.Document{Folder: folder, Name: id, Value: []byte(value)}); err != nil {
			t.Fatal(err)
		}
	}
	n := newNode(t, queue)
	if d := n.get("newer"); d.Webhook != nil || !slices.Equal(d.Stored.Sources, []string{"web"}) || d.Stored.By != "bob" {
		t.Errorf("the destination of a newer version is %+v, want no webhook, the source web, and bob", d)
	}
	if d := n.get("fine"); d.Webhook == nil {
		t.Errorf("the valid destination is %+v, want a webhook", d)
	}
	for _, id := range []string{"text", "empty"} {
		if d := n.get(id); d.Webhook != nil {
			t.Errorf("%s: destination %+v, want no webhook", id, d)
		}
		n.set(t, id, document("2s"))
		if d := n.get(id); d.Webhook == nil {
			t.Errorf("%s: destination %+v after it was replaced, want a webhook", id, d)
		}
	}
	if log := n.log.String(); strings.Count(log, "is not valid") != 3 || strings.Contains(log, "SECRET") {
		t.Errorf("the log must have three destinations that are not valid, and no secret:\n%s", log)
	}
}
