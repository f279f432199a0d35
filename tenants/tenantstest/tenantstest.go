// Package tenantstest tests package tenants on a store. The modules of all stores call it.
package tenantstest

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hookferry/analytics/tenants"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/store"
)

// A kit has the directories of two nodes of a store.
type kit struct {
	*testing.T
	ctx   context.Context
	a, b  *tenants.Directory
	s, sb store.DocumentStore // of a and b
}

// Run runs all cases. open returns the stores of two nodes for a case, which may be the same value, and
// closes them when the case ends. They may have documents, but none of package tenants. bubble says that
// open works in a bubble of testing/synctest; otherwise the cases take ten seconds.
func Run(t *testing.T, bubble bool, open func(testing.TB) (a, b store.DocumentStore)) {
	for _, c := range []struct {
		name string
		run  func(k *kit)
	}{
		{"Changes are made once, and seen by all nodes", changes},
		{"Follow reports changes of all nodes", follow},
		{"Lists have a cursor, and what is deleted is gone", lists},
		{"Old secrets end", rotation},
		{"A tenant never has too many destinations", bound},
		{"A deleted tenant keeps no destination", deletion},
		{"Of the program's own destinations one version is replaced", ownChanges},
		{"The program's own destinations are listed and loaded", ownLists},
		{"Routes follow changes of all nodes", ownFollow},
		{"Routes are right after the store has forgotten changes", ownForgotten},
		{"A token is for one tenant, until it is revoked", tokens},
		{"A link is for one tenant, until it ends or is revoked", links},
	} {
		t.Run(c.name, func(t *testing.T) {
			body := func(t *testing.T) {
				k := &kit{T: t, ctx: t.Context()}
				k.s, k.sb = open(t)
				k.a, k.b = k.open(k.s), k.open(k.sb)
				c.run(k)
			}
			if bubble {
				synctest.Test(t, body)
			} else {
				body(t)
			}
		})
	}
}

func (k *kit) open(s store.DocumentStore) *tenants.Directory {
	d, err := tenants.New(s, tenants.Config{MaxDestinations: 3})
	k.fine(err)
	return d
}

func (k *kit) fine(err error) {
	k.Helper()
	if err != nil {
		k.Fatal(err)
	}
}

func (k *kit) want(what string, err, want error) {
	k.Helper()
	if !errors.Is(err, want) {
		k.Fatalf("%s: %v, want %v", what, err, want)
	}
}

func equal[T any](k *kit, what string, got, want T) {
	k.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		k.Fatalf("%s (-want +got):\n%s", what, diff)
	}
}

func all[T any](k *kit, list iter.Seq2[T, error]) (found []T) {
	k.Helper()
	for x, err := range list {
		k.fine(err)
		found = append(found, x)
	}
	return found
}

func (k *kit) tenant(id string) tenants.Tenant {
	k.Helper()
	t, err := k.a.CreateTenant(k.ctx, tenants.Tenant{ID: id}, "ann")
	k.fine(err)
	return t
}

// settings returns the settings of a destination that takes invoices.
func settings(tenant string) tenants.Destination {
	return tenants.Destination{
		Tenant: tenant,
		Settings: webhook.Settings{
			Endpoints: []webhook.Endpoint{{URL: "https://acme.example/", Headers: map[string]string{"A": "b"}}},
			Filter:    webhook.Filter{Include: []string{"invoice.*"}}, Timeout: webhook.Duration(time.Second), MaxRate: 0.5,
		},
	}
}

func (k *kit) create(tenant string) tenants.Destination {
	k.Helper()
	d, _, err := k.a.Create(k.ctx, settings(tenant), "ann")
	k.fine(err)
	return d
}

func changes(k *kit) {
	t := k.tenant("acme")
	_, err := k.b.CreateTenant(k.ctx, tenants.Tenant{ID: "acme"}, "bob")
	k.want("CreateTenant twice", err, tenants.ErrConflict)
	_, _, err = k.b.Create(k.ctx, settings("other"), "bob")
	k.want("Create for an unknown tenant", err, tenants.ErrUnknown)

	d := k.create("acme")
	got, err := k.b.Get(k.ctx, d.ID)
	k.fine(err)
	equal(k, "Get after Create", got, d)

	mine, theirs := d, d
	mine.Disabled, theirs.Name = true, "theirs"
	mine, err = k.b.Update(k.ctx, mine, "bob")
	k.fine(err)
	_, err = k.a.Update(k.ctx, theirs, "ann")
	k.want("Update of an old version", err, tenants.ErrConflict)
	k.want("Delete of an old version", k.a.Delete(k.ctx, d.ID, d.Version, "ann"), tenants.ErrConflict)
	var what []string
	for _, c := range mine.Changes {
		what = append(what, c.By+" "+c.What)
	}
	equal(k, "the changes", what, []string{"bob changed Disabled", "ann created"})

	old := t
	t.Disabled = true
	_, err = k.b.UpdateTenant(k.ctx, t, "bob")
	k.fine(err)
	_, err = k.b.UpdateTenant(k.ctx, old, "bob")
	k.want("UpdateTenant of an old version", err, tenants.ErrConflict)

	made, err := k.a.Destination(k.ctx, d.ID)
	k.fine(err)
	of, err := k.a.Destinations(k.ctx, "acme")
	k.fine(err)
	if !cmp.Equal(of, []webhook.Destination{made}) || len(made.StandardSecrets) != 1 || !made.Disabled || made.MaxRate != 0.5 {
		k.Fatalf("Destinations = %v, want the destination %v", of, made)
	}
	k.fine(k.a.DeleteTenant(k.ctx, "acme", "ann"))
}

func follow(k *kit) {
	ctx, cancel := context.WithCancel(k.ctx)
	heard := make(chan string, 100)
	var following sync.WaitGroup
	following.Go(func() {
		if err := k.b.Follow(ctx, func(tenant, destination string) { heard <- tenant + " " + destination }); ctx.Err() == nil {
			k.Errorf("Follow: %v", err)
			close(heard)
		}
	})
	defer following.Wait()
	defer cancel()
	next := func(want string) {
		k.Helper()
		for got := range heard { // a change may be reported twice
			if got == want {
				return
			}
		}
		k.Fatalf("Follow has not reported %q", want)
	}
	next(" ")
	k.tenant("acme")
	d := k.create("acme")
	next("acme ")
	next("acme " + d.ID)
	k.fine(k.a.Delete(k.ctx, d.ID, 0, "ann"))
	next("acme " + d.ID)
	k.fine(k.a.DeleteTenant(k.ctx, "acme", "ann"))
}

func lists(k *kit) {
	ids := []string{strings.Repeat("x", 128), `odd.*>"\%|`}
	for i := range 70 { // more than a store reads at once
		ids = append(ids, fmt.Sprintf("tenant-%02d", i))
	}
	for _, id := range ids {
		k.tenant(id)
	}
	slices.Sort(ids)
	var got []string
	for _, t := range all(k, k.b.Tenants(k.ctx, ids[9])) {
		got = append(got, t.ID)
	}
	equal(k, "Tenants after the tenth", got, ids[10:])
	for _, id := range []string{ids[0], ids[len(ids)-1]} {
		want := []tenants.Destination{k.create(id), k.create(id), k.create(id)}
		slices.SortFunc(want, func(a, b tenants.Destination) int { return strings.Compare(a.ID, b.ID) })
		equal(k, "List", all(k, k.b.List(k.ctx, id, "")), want)
		equal(k, "List after the first", all(k, k.b.List(k.ctx, id, want[0].ID)), want[1:])
		k.fine(k.b.Delete(k.ctx, want[1].ID, want[1].Version, "bob"))
		_, err := k.a.Destination(k.ctx, want[1].ID)
		k.want("Destination after Delete", err, webhook.ErrTakesNothing)
		k.want("Delete twice", k.a.Delete(k.ctx, want[1].ID, 0, "ann"), tenants.ErrUnknown)
	}
	for _, id := range ids {
		k.fine(k.b.DeleteTenant(k.ctx, id, "bob"))
		of, err := k.a.Destinations(k.ctx, id)
		if len(of) > 0 || err != nil {
			k.Fatalf("Destinations after DeleteTenant = %v, %v, want none", of, err)
		}
	}
	equal(k, "Tenants when all are deleted", all(k, k.a.Tenants(k.ctx, "")), nil)
}

func rotation(k *kit) {
	k.tenant("acme")
	d, first, err := k.a.Create(k.ctx, settings("acme"), "ann")
	k.fine(err)
	secrets := func(want ...string) {
		k.Helper()
		var got []string
		made, err := k.b.Destination(k.ctx, d.ID)
		k.fine(err)
		for _, s := range made.StandardSecrets {
			got = append(got, s.Reveal())
		}
		equal(k, "the secrets", got, want)
	}
	_, second, err := k.b.Rotate(k.ctx, d.ID, tenants.DefaultOverlap, "bob")
	k.fine(err)
	secrets(second.Reveal(), first.Reveal())
	_, third, err := k.b.Rotate(k.ctx, d.ID, 0, "bob")
	k.fine(err)
	secrets(third.Reveal())
	all := []string{third.Reveal()}
	for range webhook.MaxStandardSecrets - 1 {
		_, s, err := k.b.Rotate(k.ctx, d.ID, time.Hour, "bob")
		k.fine(err)
		all = slices.Insert(all, 0, s.Reveal())
	}
	_, _, err = k.b.Rotate(k.ctx, d.ID, time.Hour, "bob")
	k.want("Rotate of as many secrets as can sign", err, tenants.ErrTooMany)
	secrets(all...)
	k.fine(k.a.DeleteTenant(k.ctx, "acme", "ann"))
}

func bound(k *kit) {
	k.tenant("acme")
	var calls sync.WaitGroup
	for i := range 8 {
		calls.Go(func() {
			if _, _, err := []*tenants.Directory{k.a, k.b}[i%2].Create(k.ctx, settings("acme"), ""); err != nil && !errors.Is(err, tenants.ErrTooMany) {
				k.Error(err)
			}
		})
	}
	calls.Wait()
	for len(all(k, k.a.List(k.ctx, "acme", ""))) < 3 { // calls at once may all have failed
		k.create("acme")
	}
	if n := len(all(k, k.a.List(k.ctx, "acme", ""))); n != 3 {
		k.Errorf("%d destinations, want 3", n)
	}
	_, _, err := k.b.Create(k.ctx, settings("acme"), "")
	k.want("Create of a fourth destination", err, tenants.ErrTooMany)
	k.fine(k.a.DeleteTenant(k.ctx, "acme", "ann"))
}

func deletion(k *kit) {
	for i := range 10 {
		id := fmt.Sprint("tenant", i)
		k.tenant(id)
		var calls sync.WaitGroup
		calls.Go(func() {
			if _, _, err := k.a.Create(k.ctx, settings(id), ""); err != nil && !errors.Is(err, tenants.ErrUnknown) && !errors.Is(err, tenants.ErrConflict) {
				k.Error(err)
			}
		})
		calls.Go(func() {
			for err := tenants.ErrConflict; errors.Is(err, tenants.ErrConflict); { // Create may undo at the same time
				if err = k.b.DeleteTenant(k.ctx, id, ""); err != nil && !errors.Is(err, tenants.ErrConflict) {
					k.Error(err)
				}
			}
		})
		calls.Wait()
		equal(k, "List of a deleted tenant", all(k, k.a.List(k.ctx, id, "")), nil)
	}
	// A crash may end DeleteTenant half-way.
	k.tenant("acme")
	d := k.create("acme")
	held, err := k.s.Document(k.ctx, "tenant", "acme")
	k.fine(err)
	held.Value = []byte(`{"deleting":true}`)
	_, err = k.s.SetDocument(k.ctx, held)
	k.fine(err)
	_, err = k.b.Destination(k.ctx, d.ID)
	k.want("Destination of a tenant that is being deleted", err, webhook.ErrTakesNothing)
	_, _, err = k.b.Create(k.ctx, settings("acme"), "")
	k.want("Create for a tenant that is being deleted", err, tenants.ErrUnknown)
	k.fine(k.b.DeleteTenant(k.ctx, "acme", ""))
	equal(k, "List of a deleted tenant", all(k, k.a.List(k.ctx, "acme", "")), nil)
}

// A Store is a DocumentStore that can be closed.
type Store interface {
	store.DocumentStore
	Close() error
}

// Bench reports what tenants with three destinations each cost a node: the heap, the time to open, the
// time until it sees a change of another node, and what it spends while nothing changes. open opens
// the store of a node; the benchmark closes one before it opens the next, unless shared says that
// several nodes may have it open. The environment variable TENANTS has the number of tenants, 100 by
// default.
func Bench(b *testing.B, shared bool, open func() Store) {
	count := 100
	if n, err := strconv.Atoi(os.Getenv("TENANTS")); err == nil {
		count = n
	}
	for b.Loop() {
		bench(b, count, shared, open)
	}
}

func bench(b *testing.B, count int, shared bool, open func() Store) {
	fine := func(err error) {
		if err != nil {
			b.Fatal(err)
		}
	}
	before := heap()
	s := open()
	d, err := tenants.New(s, tenants.Config{})
	fine(err)
	began := time.Now()
	var callers sync.WaitGroup
	for c := range 4 {
		callers.Go(func() {
			for i := c; i < count; i += 4 {
				t := fmt.Sprintf("tenant-%06d", i)
				_, err := d.CreateTenant(b.Context(), tenants.Tenant{ID: t}, "ann")
				for range 3 {
					if err == nil {
						_, _, err = d.Create(b.Context(), settings(t), "ann")
					}
				}
				if err != nil {
					b.Error(err)
				}
			}
		})
	}
	callers.Wait()
	b.ReportMetric(time.Since(began).Seconds()/float64(3*count)*1e6, "us/destination")
	writer := s
	if !shared {
		fine(s.Close())
	}
	began = time.Now()
	s = open()
	b.ReportMetric(float64(time.Since(began).Microseconds())/1e3, "open-ms")
	if !shared {
		writer = s
	}
	d, err = tenants.New(s, tenants.Config{})
	fine(err)
	began = time.Now()
	for i := range 1000 {
		if all, err := d.Destinations(b.Context(), fmt.Sprintf("tenant-%06d", i*7919%count)); err != nil || len(all) != 3 {
			b.Fatalf("%d destinations, %v, want 3", len(all), err)
		}
	}
	b.ReportMetric(time.Since(began).Seconds()*1e3, "us/tenant")
	b.ReportMetric(seen(b, writer, d, count), "seen-s")
	b.ReportMetric((heap()-before)/1e6, "heap-MB")
	_, upTo, err := s.Changes(b.Context(), store.Latest)
	fine(err)
	began = time.Now()
	for range 60 {
		_, upTo, err = s.Changes(b.Context(), upTo)
		fine(err)
	}
	b.ReportMetric(time.Since(began).Seconds()*1e3, "idle-ms/min")
	fine(s.Close())
	if shared {
		fine(writer.Close())
	}
}

// seen returns how long a change takes from one node to another, in seconds.
func seen(b *testing.B, from Store, by *tenants.Directory, count int) float64 {
	ctx, cancel := context.WithCancel(b.Context())
	heard := make(chan string, 100)
	var following sync.WaitGroup
	following.Go(func() { by.Follow(ctx, func(tenant, _ string) { heard <- tenant }) })
	defer following.Wait()
	defer cancel()
	<-heard // that it begins
	d, err := tenants.New(from, tenants.Config{})
	if err != nil {
		b.Fatal(err)
	}
	id := fmt.Sprintf("tenant-%06d", count/2)
	t, err := d.Tenant(ctx, id)
	if err == nil {
		t.Name = "changed"
		_, err = d.UpdateTenant(ctx, t, "ann")
	}
	if err != nil {
		b.Fatal(err)
	}
	began := time.Now()
	for <-heard != id {
	}
	return time.Since(began).Seconds()
}

func heap() float64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc)
}

func tokens(k *kit) {
	k.tenant("token")
	k.tenant("token2")
	made, text, err := k.a.CreateToken(k.ctx, "token", "portal", "ann")
	k.fine(err)
	got, err := k.b.CheckToken(k.ctx, "token", text.Reveal())
	k.fine(err)
	equal(k, "CheckToken", got, made)
	_, _, err = k.b.CreateToken(k.ctx, "token", "portal", "bob")
	k.want("CreateToken twice", err, tenants.ErrConflict)
	_, _, err = k.b.CreateToken(k.ctx, "nobody", "portal", "bob")
	k.want("CreateToken of an unknown tenant", err, tenants.ErrUnknown)
	_, other, err := k.b.CreateToken(k.ctx, "token2", "portal", "ann")
	k.fine(err)
	for _, c := range []struct{ tenant, text string }{
		{"token2", text.Reveal()}, {"token", other.Reveal()}, {"token", text.Reveal() + "x"}, {"token", text.Reveal()[:11]},
		{"token", strings.TrimPrefix(text.Reveal(), "hft_")}, {"token", ""}, {"", text.Reveal()}, {"nobody", text.Reveal()},
	} {
		_, err := k.b.CheckToken(k.ctx, c.tenant, c.text)
		k.want("CheckToken of "+c.tenant, err, tenants.ErrUnknown)
	}
	equal(k, "Tokens", all(k, k.b.Tokens(k.ctx, "token", "")), []tenants.Token{made})
	for held, err := range k.s.Documents(k.ctx, "tenant-token/token", "") {
		k.fine(err)
		if strings.Contains(string(held.Value), text.Reveal()[11:]) {
			k.Error("the store has the text of a token")
		}
	}
	k.fine(k.b.RevokeToken(k.ctx, "token", "portal", "bob"))
	k.want("RevokeToken twice", k.b.RevokeToken(k.ctx, "token", "portal", "bob"), tenants.ErrUnknown)
	_, err = k.a.CheckToken(k.ctx, "token", text.Reveal())
	k.want("CheckToken after RevokeToken", err, tenants.ErrUnknown)
	for i := range 20 {
		_, text, err = k.a.CreateToken(k.ctx, "token", fmt.Sprint("n-", i), "ann")
		k.fine(err)
	}
	_, _, err = k.a.CreateToken(k.ctx, "token", "one-more", "ann")
	k.want("CreateToken for the 21st", err, tenants.ErrTooMany)
	k.fine(k.a.DeleteTenant(k.ctx, "token", "ann"))
	k.tenant("token")
	_, err = k.b.CheckToken(k.ctx, "token", text.Reveal())
	k.want("CheckToken after DeleteTenant", err, tenants.ErrUnknown)
	k.fine(k.a.DeleteTenant(k.ctx, "token", "ann"))
	k.fine(k.a.DeleteTenant(k.ctx, "token2", "ann"))
}
