package tenants_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hookferry/analytics"
	"github.com/hookferry/analytics/internal/testkit"
	"github.com/hookferry/analytics/signature"
	"github.com/hookferry/analytics/tenants"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/filequeue"
	"github.com/hookferry/analytics/webhook/memqueue"
	"github.com/hookferry/analytics/webhook/store"
	"github.com/hookferry/analytics/webhook/webhooktest"
)

// named is a destination without a tenant that gets the calls of these sources.
func named(id string, sources ...string) tenants.Destination {
	d := at("https://a.example/")
	d.ID, d.Tenant, d.Sources = id, "", sources
	return d
}

func put(t *testing.T, d *tenants.Directory, in tenants.Destination, s tenants.Secrets) tenants.Destination {
	t.Helper()
	out, err := d.Put(t.Context(), in, s, "ann")
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// Put creates and replaces one version, with its secrets. What is shown has none of them.
func TestPutReplacesOneVersion(t *testing.T) {
	d, _ := rig(t, tenants.Config{})
	given := tenants.Secrets{Secret: "s3cret", StandardSecrets: []signature.Secret{signature.NewStandardSecret(), signature.NewStandardSecret()}}
	made := put(t, d, named("shop/eu", "web"), given)
	if _, err := d.Put(t.Context(), named("shop/eu"), given, "bob"); !errors.Is(err, tenants.ErrConflict) {
		t.Errorf("Put() of one that exists = %v, want ErrConflict", err)
	}
	got, secrets, err := d.Secrets(t.Context(), "shop/eu")
	if err != nil || !reflect.DeepEqual(got, made) || !reflect.DeepEqual(secrets, given) {
		t.Errorf("Secrets() = %+v, %v, want %+v and what was put", got, err, made)
	}
	w, err := d.Destination(t.Context(), "shop/eu")
	if err != nil || w.Secret != "s3cret" || !slices.Equal(w.StandardSecrets, given.StandardSecrets) || w.Tenant != "" || w.Trusted {
		t.Errorf("Destination() = %+v, %v, want the secrets and no tenant", w, err)
	}
	if same := put(t, d, made, given); same.Version != made.Version {
		t.Error("Put() of the same settings has made a new version")
	}
	made.MaxRate = 5
	given.Secret = ""
	changed := put(t, d, made, given)
	if changed.Version <= made.Version || changed.Changes[0].What != "changed MaxRate, Secret" || changed.Changes[1].What != "created" {
		t.Errorf("Put() = %+v, want a new version that says what was changed", changed)
	}
	if text := fmt.Sprintf("%#v %+v %+v", changed, w, given); strings.Contains(text, "s3cret") {
		t.Errorf("%s has the secret", text)
	}
	if err := d.Delete(t.Context(), "shop/eu", made.Version, "bob"); !errors.Is(err, tenants.ErrConflict) {
		t.Errorf("Delete() of an older version = %v, want ErrConflict", err)
	}
	if err := d.Delete(t.Context(), "shop/eu", 0, "bob"); err != nil {
		t.Error(err)
	}
	if _, err := d.Destination(t.Context(), "shop/eu"); !errors.Is(err, webhook.ErrUnknownDestination) {
		t.Errorf("Destination() of a deleted one = %v, want ErrUnknownDestination, so that its deliveries wait", err)
	}
}

func TestPutRefusesWhatTheForwarderWould(t *testing.T) {
	d, _ := rig(t, tenants.Config{})
	bad := named("bad")
	bad.Timeout, bad.MaxRate = webhook.Duration(time.Hour), -1
	for _, tt := range []struct {
		name    string
		in      tenants.Destination
		secrets tenants.Secrets
		want    []string
	}{
		{"id of a tenant", named("acme/" + strings.Repeat("x", 24)), tenants.Secrets{}, []string{"ID"}},
		{"no id", named(""), tenants.Secrets{}, []string{"ID", "ID"}}, // the forwarder refuses it, too
		{"id with a line break", named("a\nb"), tenants.Secrets{}, []string{"ID"}},
		{"settings", bad, tenants.Secrets{}, []string{"Timeout", "MaxRate"}},
		{"secrets", named("a"), tenants.Secrets{StandardSecrets: []signature.Secret{"x"}, TLS: &webhook.PEM{Certificate: "x", CA: "y"}}, []string{"StandardSecrets[0]", "TLS.Key", "TLS.CA"}},
	} {
		_, err := d.Put(t.Context(), tt.in, tt.secrets, "ann")
		var fields []string
		for _, err := range faults(err) {
			fields = append(fields, err.Field)
		}
		if !slices.Equal(fields, tt.want) {
			t.Errorf("%s: Put() = %v, want faults of %v", tt.name, err, tt.want)
		}
	}
	of := at("https://a.example/")
	of.Sources = []string{"web"}
	if _, _, err := d.Create(t.Context(), of, "ann"); len(faults(err)) != 1 {
		t.Errorf("Create() of a tenant's destination with sources = %v, want a fault", err)
	}
}

// A flakyStore fails while failing is set, or once after failOnce is set, and has forgotten older changes
// while forgetful is.
type flakyStore struct {
	*memqueue.Store
	failing, failOnce, forgetful atomic.Bool
}

func (f *flakyStore) Changes(ctx context.Context, since uint64) ([]store.DocumentChange, uint64, error) {
	switch {
	case f.failing.Load(), f.failOnce.Swap(false):
		return nil, 0, os.ErrDeadlineExceeded
	case since != store.Latest && f.forgetful.Swap(false):
		return nil, 0, store.ErrTooOld
	}
	return f.Store.Changes(ctx, since)
}

// A removal that was read before the destination was made again does not take its calls away, not even
// for a moment.
func TestRoutesIgnoreAnOlderRemoval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		other, s := rig(t, tenants.Config{})
		slow := &slowStore{Store: s}
		d := testkit.Must(tenants.New(slow, tenants.Config{}))
		put(t, other, named("crm", "web"), tenants.Secrets{})
		if err := d.Load(t.Context()); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer synctest.Wait()
		defer cancel()
		var routes [][]string                                                              // at each report
		go d.Follow(ctx, func(_, _ string) { routes = append(routes, d.Routes()["web"]) }) // ends with ctx
		synctest.Wait()
		if err := other.Delete(t.Context(), "crm", 0, "ann"); err != nil {
			t.Fatal(err)
		}
		again := func() { put(t, d, named("crm", "web"), tenants.Secrets{}) }
		slow.read.Store(&again)
		time.Sleep(1500 * time.Millisecond)
		synctest.Wait()
		if len(routes) != 3 || slices.ContainsFunc(routes, func(ids []string) bool { return len(ids) != 1 }) {
			t.Errorf("at the reports, the source web had the routes %v, want the destination at each of three", routes)
		}
	})
}

// A slowStore calls read once after it has read a document, before it returns the document.
type slowStore struct {
	*memqueue.Store
	read atomic.Pointer[func()]
}

func (s *slowStore) Document(ctx context.Context, folder, name string) (store.Document, error) {
	d, err := s.Store.Document(ctx, folder, name)
	if read := s.read.Swap(nil); read != nil {
		(*read)()
	}
	return d, err
}

// Another node has new routes within two seconds, and keeps those that it knows while the store fails
// or has forgotten what has changed.
func TestRoutesReachOtherNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, s := rig(t, tenants.Config{})
		flaky := &flakyStore{Store: s}
		var routed atomic.Int64
		b := testkit.Must(tenants.New(flaky, tenants.Config{Routed: func() { routed.Add(1) }}))
		first := put(t, a, named("b", "web", "app"), tenants.Secrets{})
		put(t, a, named("a", "web"), tenants.Secrets{})
		for _, d := range []*tenants.Directory{a, b} {
			if err := d.Load(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer synctest.Wait()
		defer cancel()
		follow := func() { // as a forwarder does: again after an error
			for ctx.Err() == nil {
				_ = b.Follow(ctx, func(_, _ string) {})
				select {
				case <-ctx.Done():
				case <-time.After(time.Second):
				}
			}
		}
		go follow() // ends with ctx
		synctest.Wait()
		want := func(when string, routes map[string][]string) {
			t.Helper()
			for name, d := range map[string]*tenants.Directory{"the node that made it": a, "another node": b} {
				got := make(map[string][]string)
				for source, ids := range d.Routes() {
					if len(ids) > 0 {
						got[source] = ids
					}
				}
				if !reflect.DeepEqual(got, routes) {
					t.Errorf("%s: %s has the routes %v, want %v", when, name, got, routes)
				}
			}
		}
		want("after Load", map[string][]string{"web": {"a", "b"}, "app": {"b"}})

		before := routed.Load()
		first.Sources, first.Disabled = []string{"app"}, true
		first = put(t, a, first, tenants.Secrets{})
		put(t, a, named("c", "web"), tenants.Secrets{})
		time.Sleep(2 * time.Second)
		synctest.Wait()
		want("after a change", map[string][]string{"web": {"a", "c"}, "app": {"b"}})
		if own, ok := b.FindOwn("b"); !ok || !own.Disabled || len(b.Owned()) != 3 || routed.Load() != before+1 {
			t.Errorf("another node has %+v of %d, and was told %d times, want it disabled, 3, and once", own, len(b.Owned()), routed.Load()-before)
		}

		flaky.failing.Store(true)
		if err := a.Delete(t.Context(), "a", 0, "ann"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		if got := b.Routes()["web"]; !slices.Equal(got, []string{"a", "c"}) {
			t.Errorf("while the store fails, another node has the routes %v, want those before", got)
		}
		flaky.failing.Store(false)
		time.Sleep(4 * time.Second)
		synctest.Wait()
		want("after the store has failed", map[string][]string{"web": {"c"}, "app": {"b"}})

		flaky.forgetful.Store(true)
		if err := a.Delete(t.Context(), "b", 0, "ann"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(4 * time.Second)
		synctest.Wait()
		want("after the store has forgotten changes", map[string][]string{"web": {"c"}})
	})
}

// Somebody, or a newer version, may have written a document that this version cannot read. It keeps its
// sources, so their calls are stored, and wait. So do the events of a tenant for such a destination.
// No log line has what is in the document. Once somebody replaces it, all are delivered.
func TestDeliveriesOfUnreadableDocumentsWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		d, s := rig(t, tenants.Config{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		network := webhooktest.NewNetwork()
		defer network.Close()
		receiver := network.Receiver("https://a.example/", "")
		of, _, err := d.Create(t.Context(), at("https://a.example/"), "ann")
		if err != nil {
			t.Fatal(err)
		}
		_, name, _ := strings.Cut(of.ID, "/")
		held := testkit.Must(s.Document(t.Context(), "tenant/acme", name))
		for _, document := range []store.Document{
			{Folder: "destination", Name: "odd", Value: []byte(`{"destination": {"sources": ["web"], "maxRate": "SENTINEL", "endpoints": 3}}`)},
			{Folder: "destination", Name: "text", Value: []byte(`SENTINEL`)},
			{Folder: "tenant/acme", Name: name, Value: []byte(`{"destination": []}`), Version: held.Version},
		} {
			if _, err := s.SetDocument(t.Context(), document); err != nil {
				t.Fatal(err)
			}
		}
		if err := d.Load(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := d.Routes()["web"]; !slices.Equal(got, []string{"odd"}) {
			t.Fatalf("the source web has the routes %v, want the unreadable destination", got)
		}
		f := testkit.Must(webhook.New(webhook.Config{Store: s, Directory: d, DialContext: network.DialContext, TLSClientConfig: network.TLSClientConfig()}))
		ran := make(chan error, 1)
		go func() { ran <- f.Run(context.Background()) }() // until Shutdown
		for _, id := range append(d.Routes()["web"], "text") {
			if err := f.Forward(t.Context(), id, &analytics.Track{UserId: "u", Event: "e"}); err != nil {
				t.Fatal(err)
			}
		}
		if sent, err := f.Send(t.Context(), "acme", &analytics.Track{UserId: "u", Event: "e"}); err != nil || sent[0].Stored != 1 {
			t.Fatalf("Send() = %+v, %v, want that the event is stored", sent, err)
		}
		time.Sleep(time.Minute)
		kinds := make(map[string]webhook.HoldKind)
		for _, h := range f.Held() {
			kinds[h.Destination] = h.Kind
		}
		if want := map[string]webhook.HoldKind{"odd": webhook.HoldInvalid, "text": webhook.HoldInvalid, of.ID: webhook.HoldInvalid}; !reflect.DeepEqual(kinds, want) || len(receiver.Requests()) != 0 {
			t.Errorf("held are %v, with %d requests, want %v and none", kinds, len(receiver.Requests()), want)
		}
		for _, id := range []string{"odd", "text"} {
			broken, _, err := d.Secrets(t.Context(), id)
			if !errors.Is(err, tenants.ErrUnreadable) || broken.Version == 0 {
				t.Errorf("Secrets(%s) = %+v, %v, want ErrUnreadable and the version", id, broken, err)
			}
			in := named(id, "web")
			in.Version = broken.Version
			put(t, d, in, tenants.Secrets{})
		}
		time.Sleep(5 * time.Second)
		if n := len(receiver.Requests()); n != 2 {
			t.Errorf("after both are replaced, there were %d requests, want 2", n)
		}
		if strings.Contains(log.String(), "SENTINEL") || !strings.Contains(log.String(), "destination=odd") {
			t.Errorf("the log must name the destination, and have nothing of its document:\n%s", log.String())
		}
		if err := errors.Join(f.Shutdown(context.Background()), <-ran); err != nil {
			t.Error(err)
		}
	})
}

// OWN=100000 go test -run '^$' -bench Own -benchtime 1x ./tenants
func BenchmarkOwn(b *testing.B) {
	count, _ := strconv.Atoi(os.Getenv("OWN"))
	count = max(count, 1000)
	s := testkit.Must(filequeue.Open(b.TempDir(), filequeue.Config{}))
	defer s.Close()
	writer := testkit.Must(tenants.New(s, tenants.Config{}))
	next := make(chan int, count)
	for i := range count {
		next <- i
	}
	close(next)
	done := make(chan error)
	for range 64 { // ends with next
		go func() {
			for i := range next {
				if _, err := writer.Put(context.Background(), named(fmt.Sprintf("customer-%07d", i), "web"), tenants.Secrets{Secret: "s"}, "ann"); err != nil {
					done <- err
					return
				}
			}
			done <- nil
		}()
	}
	for range 64 {
		if err := <-done; err != nil {
			b.Fatal(err)
		}
	}
	heap := func() float64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return float64(m.HeapAlloc)
	}
	for b.Loop() {
		d := testkit.Must(tenants.New(s, tenants.Config{}))
		before, began := heap(), time.Now()
		if err := d.Load(b.Context()); err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(float64(time.Since(began).Milliseconds()), "ms/load")
		b.ReportMetric((heap()-before)/1e6, "MB")
		began = time.Now()
		const changes = 100
		for i := range changes {
			if _, err := d.Put(b.Context(), named(fmt.Sprint("new-", i), "web"), tenants.Secrets{}, "ann"); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(time.Since(began).Microseconds())/changes, "us/change")
		for i := range changes {
			if err := d.Delete(b.Context(), fmt.Sprint("new-", i), 0, "ann"); err != nil {
				b.Fatal(err)
			}
		}
		runtime.KeepAlive(d)
	}
}

// A cutStore calls cut after it has stored a document.
type cutStore struct {
	*memqueue.Store
	cut func()
}

func (s *cutStore) SetDocument(ctx context.Context, d store.Document) (uint64, error) {
	defer s.cut()
	return s.Store.SetDocument(ctx, d)
}

// Delete removes the pause even if its context ends meanwhile. If the store fails there, Delete says that
// the destination is deleted, which it is.
func TestDeleteThatIsCutOffSaysThatTheDestinationIsDeleted(t *testing.T) {
	for _, fails := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			other, s := rig(t, tenants.Config{})
			made, _, err := other.Create(t.Context(), at("https://a.example/"), "ann")
			if err != nil {
				t.Fatal(err)
			}
			if _, err := s.SetDocument(t.Context(), store.Document{Folder: "pause", Name: made.ID, Value: []byte("{}")}); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			cut := &cutStore{s, cancel}
			if fails {
				cut.cut = func() { s.Close() }
			}
			d := testkit.Must(tenants.New(cut, tenants.Config{}))
			if err := d.Delete(ctx, made.ID, made.Version, "ann"); err != nil {
				t.Errorf("Delete() = %v, want nil", err)
			}
			if fails {
				return
			}
			if left, err := s.Document(t.Context(), "pause", made.ID); err != nil || left.Version != 0 {
				t.Errorf("the pause is %+v, %v, want none", left, err)
			}
		})
	}
}
