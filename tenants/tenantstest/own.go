package tenantstest

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/google/go-cmp/cmp"

	"github.com/hookferry/analytics/signature"
	"github.com/hookferry/analytics/tenants"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/store"
)

// A view is a store that counts the looks at its changes, and can forget changes.
type view struct {
	store.DocumentStore
	looks atomic.Int64
	// forgetful has the next look, beside one at the latest change, return ErrTooOld. read is then called
	// once after a folder was read.
	forgetful atomic.Bool
	read      func()
	look      func() // called before each look
}

func (v *view) Changes(ctx context.Context, since uint64) ([]store.DocumentChange, uint64, error) {
	v.looks.Add(1)
	if v.look != nil {
		v.look()
	}
	if since != store.Latest && v.forgetful.Swap(false) {
		return nil, 0, store.ErrTooOld
	}
	return v.DocumentStore.Changes(ctx, since)
}

func (v *view) Documents(ctx context.Context, folder, after string) iter.Seq2[store.Document, error] {
	return func(yield func(store.Document, error) bool) {
		for d, err := range v.DocumentStore.Documents(ctx, folder, after) {
			if !yield(d, err) {
				return
			}
		}
		if read := v.read; read != nil && folder == "destination" {
			v.read = nil
			read()
		}
	}
}

// ownSettings returns a destination of the program itself that gets the calls of these sources.
func ownSettings(id string, sources ...string) tenants.Destination {
	d := settings("")
	d.ID, d.Sources = id, sources
	return d
}

func (k *kit) put(d *tenants.Directory, in tenants.Destination) tenants.Destination {
	k.Helper()
	out, err := d.Put(k.ctx, in, tenants.Secrets{Secret: "s"}, "ann")
	k.fine(err)
	return out
}

// routes fails unless both nodes have these routes of the source "web".
func (k *kit) routes(what string, want ...string) {
	k.Helper()
	for node, d := range map[string]*tenants.Directory{"a": k.a, "b": k.b} {
		if got := d.Routes()["web"]; !slices.Equal(got, want) {
			k.Errorf("%s: node %s has the routes %q, want %q", what, node, got, want)
		}
	}
}

// loaded returns a Directory of s that has loaded the program's own destinations.
func (k *kit) loaded(s store.DocumentStore) *tenants.Directory {
	k.Helper()
	d := k.open(s)
	k.fine(d.Load(k.ctx))
	return d
}

// A follower runs Follow of k.b until stop.
type follower struct {
	heard chan heard
	stop  func() error // returns the error of Follow
}

// heard is a report of Follow, and how many looks at the store there were until it came.
type heard struct {
	destination string
	looks       int64
}

func (k *kit) follow(v *view) follower {
	ctx, cancel := context.WithCancel(k.ctx)
	f := follower{heard: make(chan heard, 1000)}
	var err error
	var running sync.WaitGroup
	running.Go(func() {
		err = k.b.Follow(ctx, func(_, destination string) { f.heard <- heard{destination, v.looks.Load()} })
		close(f.heard)
	})
	f.stop = func() error {
		cancel()
		running.Wait()
		return err
	}
	return f
}

// next waits for a report about a destination, and returns how many looks there were until it came.
func (k *kit) next(f follower, destination string) int64 {
	k.Helper()
	for h := range f.heard {
		if h.destination == destination {
			return h.looks
		}
	}
	k.Fatalf("Follow has not reported %q: %v", destination, f.stop())
	return 0
}

func ownChanges(k *kit) {
	given := tenants.Secrets{Secret: "s3cret", StandardSecrets: []signature.Secret{signature.NewStandardSecret(), signature.NewStandardSecret()}}
	made, err := k.a.Put(k.ctx, ownSettings("shop/eu", "web"), given, "ann")
	k.fine(err)
	got, secrets, err := k.b.Secrets(k.ctx, "shop/eu")
	k.fine(err)
	equal(k, "Secrets after Put", got, made)
	if !cmp.Equal(secrets, given) {
		k.Error("Secrets after Put: the secrets differ")
	}
	_, err = k.b.Put(k.ctx, ownSettings("shop/eu"), given, "bob")
	k.want("Put of a destination that exists", err, tenants.ErrConflict)
	mine, theirs := made, made
	mine.MaxRate, theirs.Disabled = 5, true
	mine = k.put(k.b, mine)
	if mine.Version <= made.Version {
		k.Errorf("Put has the version %d after %d", mine.Version, made.Version)
	}
	_, err = k.a.Put(k.ctx, theirs, given, "ann")
	k.want("Put of an old version", err, tenants.ErrConflict)
	k.want("Delete of an old version", k.a.Delete(k.ctx, "shop/eu", made.Version, "ann"), tenants.ErrConflict)
	w, err := k.a.Destination(k.ctx, "shop/eu")
	if err != nil || w.MaxRate != 5 || w.Secret != "s" || len(w.StandardSecrets) != 0 || w.Tenant != "" {
		k.Errorf("Destination = %+v, %v, want the new settings and secrets", w, err)
	}

	// Of changes that replace the same version at once, one is made.
	var calls sync.WaitGroup
	var won atomic.Int64
	for i := range 8 {
		calls.Go(func() {
			in := mine
			in.MaxRate = float64(10 + i)
			_, err := []*tenants.Directory{k.a, k.b}[i%2].Put(k.ctx, in, given, "")
			if err == nil {
				won.Add(1)
			} else if !errors.Is(err, tenants.ErrConflict) {
				k.Error(err)
			}
		})
	}
	calls.Wait()
	if n := won.Load(); n != 1 {
		k.Errorf("%d of 8 calls of Put at once have replaced a version, want 1", n)
	}

	k.fine(k.a.Delete(k.ctx, "shop/eu", 0, "ann"))
	_, err = k.b.Destination(k.ctx, "shop/eu")
	k.want("Destination after Delete", err, webhook.ErrUnknownDestination)
	k.want("Delete twice", k.b.Delete(k.ctx, "shop/eu", 0, "bob"), tenants.ErrUnknown)
	_, err = k.b.Put(k.ctx, mine, given, "bob")
	k.want("Put of a version that is deleted", err, tenants.ErrConflict)
	again := k.put(k.b, ownSettings("shop/eu", "web"))
	if again.Version <= mine.Version || len(again.Changes) != 1 {
		k.Errorf("Put after Delete = %+v, want a version after %d, and one change", again, mine.Version)
	}
	_, err = k.a.Put(k.ctx, mine, given, "ann")
	k.want("Put of a version before Delete", err, tenants.ErrConflict)
	k.fine(k.a.Delete(k.ctx, "shop/eu", again.Version, "ann"))
}

func ownLists(k *kit) {
	ids := []string{strings.Repeat("x", 255), `odd.*>"\%|`, "A", "a", "shop/eu", "é", "e\u0301", "_", "x/" + strings.Repeat("y", 24) + "z"}
	for i := range 70 { // more than a store reads at once
		ids = append(ids, fmt.Sprintf("customer-%02d", i))
	}
	for _, id := range ids {
		k.put(k.a, ownSettings(id, "web"))
	}
	k.tenant("acme")
	k.create("acme")
	slices.Sort(ids)
	var got []string
	for _, d := range all(k, k.b.List(k.ctx, "", ids[9])) {
		got = append(got, d.ID)
	}
	equal(k, "List after the tenth", got, ids[10:])
	k.a, k.b = k.loaded(k.s), k.loaded(k.sb)
	k.routes("after Load", ids...)
	for _, id := range ids {
		k.fine(k.a.Delete(k.ctx, id, 0, "ann"))
	}
	if n := len(k.a.Routes()["web"]); n != 0 {
		k.Errorf("%d routes after all is deleted", n)
	}
	k.fine(k.a.DeleteTenant(k.ctx, "acme", "ann"))
}

func ownFollow(k *kit) {
	v := &view{DocumentStore: k.sb}
	first := k.put(k.a, ownSettings("b", "web", "app"))
	k.put(k.a, ownSettings("a", "web"))
	k.a, k.b = k.loaded(k.s), k.loaded(v)
	k.routes("after Load", "a", "b")
	f := k.follow(v)
	defer func() { k.want("Follow", f.stop(), context.Canceled) }()
	k.next(f, "")
	// change makes a change on node a, and waits until node b knows it. Follow looks once a second, so
	// its first look after the change must find it.
	change := func(what, id string, make func() error, want ...string) {
		k.Helper()
		err := make()
		mark := v.looks.Load()
		k.fine(err)
		if n := k.next(f, id) - mark; n > 1 {
			k.Errorf("%s: node b has found the change at look %d, want the first", what, n)
		}
		k.routes(what, want...)
	}
	put := func(in tenants.Destination) func() error {
		return func() error {
			_, err := k.a.Put(k.ctx, in, tenants.Secrets{}, "ann")
			return err
		}
	}
	remove := func(id string) func() error { return func() error { return k.a.Delete(k.ctx, id, 0, "ann") } }

	change("after Put", "c", put(ownSettings("c", "web")), "a", "b", "c")
	first.Sources, first.Disabled = []string{"app"}, true
	change("after a change of sources", "b", put(first), "a", "c")
	if own, ok := k.b.FindOwn("b"); !ok || !own.Disabled || !slices.Equal(k.b.Routes()["app"], []string{"b"}) {
		k.Errorf("FindOwn = %+v, %v, want it disabled, with the source app", own, ok)
	}
	change("after Delete", "a", remove("a"), "c")
	if _, ok := k.b.FindOwn("a"); ok {
		k.Error("FindOwn has found a destination that is deleted")
	}
	change("after it is made again", "a", put(ownSettings("a", "web")), "a", "c")
	k.fine(errors.Join(remove("a")(), put(ownSettings("a", "web", "app"))()))
	for k.next(f, "a"); len(k.b.Routes()["web"]) < 2; k.next(f, "a") { // a look may come between the two
	}
	k.routes("after Delete and Put at once", "a", "c")

	// Somebody, or a newer version, writes what this one cannot read.
	held, err := k.s.Document(k.ctx, "destination", "c")
	k.fine(err)
	held.Value = []byte(`{"destination": {"sources": ["web"], "endpoints": 3}}`)
	_, err = k.s.SetDocument(k.ctx, held)
	k.fine(err)
	k.next(f, "c")
	if own, ok := k.b.FindOwn("c"); !ok || !own.Unreadable || !slices.Equal(k.b.Routes()["web"], []string{"a", "c"}) {
		k.Errorf("FindOwn of a document that is not readable = %+v, %v, want that, and its source", own, ok)
	}
	broken, _, err := k.b.Secrets(k.ctx, "c")
	k.want("Secrets of a document that is not readable", err, tenants.ErrUnreadable)
	_, err = k.a.Put(k.ctx, ownSettings("c"), tenants.Secrets{}, "ann")
	k.want("Put of a destination that is not readable", err, tenants.ErrConflict)
	in := ownSettings("c", "web")
	in.Version = broken.Version
	change("after a document that was not readable is replaced", "c", put(in), "a", "c")
	if own, _ := k.b.FindOwn("c"); own.Unreadable {
		k.Error("FindOwn has a destination that is replaced as not readable")
	}
	for _, id := range []string{"a", "b", "c"} {
		k.fine(remove(id)())
	}
	k.next(f, "c")
	k.routes("after all is deleted")
}

func ownForgotten(k *kit) {
	v := &view{DocumentStore: k.sb}
	k.put(k.a, ownSettings("gone", "web"))
	k.put(k.a, ownSettings("stays", "web"))
	k.a, k.b = k.loaded(k.s), k.loaded(v)
	f := k.follow(v)
	k.next(f, "")
	v.forgetful.Store(true)
	for range f.heard { // until Follow ends
	}
	k.want("Follow", f.stop(), store.ErrTooOld)
	k.fine(k.a.Delete(k.ctx, "gone", 0, "ann"))
	k.put(k.a, ownSettings("new", "web"))

	// The forwarder calls Follow again. While that reads all documents, others change.
	v.forgetful.Store(true)
	v.read = func() {
		k.fine(k.a.Delete(k.ctx, "stays", 0, "ann"))
		k.put(k.a, ownSettings("later", "web"))
		k.put(k.b, ownSettings("own", "web"))
		v.look = func() {
			if !slices.Contains(k.b.Routes()["web"], "own") {
				k.Error("right after Load, the routes lack a destination that this node has made meanwhile")
			}
			v.look = nil
		}
	}
	f = k.follow(v)
	k.next(f, "")
	if got, want := k.b.Routes()["web"], []string{"later", "new", "own"}; !slices.Equal(got, want) {
		k.Errorf("after the store has forgotten changes, the routes are %q, want %q", got, want)
	}
	for _, id := range []string{"later", "new", "own"} {
		k.fine(k.a.Delete(k.ctx, id, 0, "ann"))
	}
	k.next(f, "own")
	k.want("Follow", f.stop(), context.Canceled)
	if n := len(k.b.Routes()["web"]); n != 0 {
		k.Errorf("%d routes after all is deleted", n)
	}
}
