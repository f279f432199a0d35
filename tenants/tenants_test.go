package tenants_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/hookferry/analytics/internal/testkit"
	"github.com/hookferry/analytics/signature"
	"github.com/hookferry/analytics/tenants"
	"github.com/hookferry/analytics/tenants/tenantstest"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/filequeue"
	"github.com/hookferry/analytics/webhook/memqueue"
	"github.com/hookferry/analytics/webhook/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestTenantsInMemory(t *testing.T) {
	tenantstest.Run(t, true, func(t testing.TB) (a, b store.DocumentStore) {
		s := testkit.Must(memqueue.Open(memqueue.Config{}))
		t.Cleanup(func() { s.Close() })
		return s, s
	})
}

func TestTenantsInFolder(t *testing.T) {
	tenantstest.Run(t, true, func(t testing.TB) (a, b store.DocumentStore) {
		s := testkit.Must(filequeue.Open(t.TempDir(), filequeue.Config{}))
		t.Cleanup(func() { s.Close() })
		return s, s
	})
}

// rig is a directory in memory with a tenant acme.
func rig(t *testing.T, c tenants.Config) (*tenants.Directory, *memqueue.Store) {
	t.Helper()
	s, err := memqueue.Open(memqueue.Config{})
	if err != nil {
		t.Fatal(err)
	}
	d, err := tenants.New(s, c)
	if err == nil {
		_, err = d.CreateTenant(t.Context(), tenants.Tenant{ID: "acme"}, "ann")
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return d, s
}

// A tenant that exists is not created again, and the error says so.
func TestATenantIsCreatedOnce(t *testing.T) {
	d, _ := rig(t, tenants.Config{})
	_, err := d.CreateTenant(t.Context(), tenants.Tenant{ID: "acme"}, "ann")
	if !errors.Is(err, tenants.ErrConflict) || err.Error() == tenants.ErrConflict.Error() {
		t.Errorf("CreateTenant() of a tenant that exists = %v, want an ErrConflict that says that it exists", err)
	}
}

func at(urls ...string) (d tenants.Destination) {
	d.Tenant = "acme"
	for _, u := range urls {
		d.Endpoints = append(d.Endpoints, webhook.Endpoint{URL: u})
	}
	return d
}

func TestCreateRefusesWhatTheForwarderWould(t *testing.T) {
	d, _ := rig(t, tenants.Config{AllowAddresses: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}})
	for _, tt := range []struct {
		name   string
		given  tenants.Destination
		fields []string
	}{
		{"allowed and public", at("http://10.1.2.3/", "https://acme.example/", "https://9.9.9.9/", "https://[2620:fe::fe]/"), nil},
		{"metadata of the cloud", at("https://acme.example/", "http://169.254.169.254/"), []string{"Endpoints[1].URL"}},
		{"private", at("http://10.2.0.1/", "http://[::ffff:192.168.0.1]/", "http://[fe80::1%25eth0]/"), []string{"Endpoints[0].URL", "Endpoints[1].URL", "Endpoints[2].URL"}},
		{"localhost", at("http://LOCALHOST:1/", "http://a.localhost./"), []string{"Endpoints[0].URL", "Endpoints[1].URL"}},
		{"no URL", at(), []string{"Endpoints"}},
		{"much", tenants.Destination{Tenant: "acme", Name: strings.Repeat("x", 256), Settings: webhook.Settings{Timeout: webhook.Duration(time.Hour), MaxRate: -1}}, []string{"Name", "Endpoints", "Timeout", "MaxRate"}},
	} {
		_, secret, err := d.Create(t.Context(), tt.given, "ann")
		var fields []string
		for _, err := range faults(err) {
			fields = append(fields, err.Field)
		}
		if !reflect.DeepEqual(fields, tt.fields) || (err == nil) != (secret != "") {
			t.Errorf("%s: Create() = %v, want faults of %v", tt.name, err, tt.fields)
		}
	}
	for _, id := range []string{"", "a/b", "a b", "ä", strings.Repeat("x", 129)} {
		if _, err := d.CreateTenant(t.Context(), tenants.Tenant{ID: id}, ""); len(faults(err)) != 1 {
			t.Errorf("CreateTenant(%q) = %v, want a ConfigError", id, err)
		}
		if _, err := d.Tenant(t.Context(), id); !errors.Is(err, tenants.ErrUnknown) {
			t.Errorf("Tenant(%q) = %v, want ErrUnknown", id, err)
		}
	}
	for id, want := range map[string]error{"other": webhook.ErrUnknownDestination, "a b/1": webhook.ErrUnknownDestination, "/": webhook.ErrUnknownDestination, "acme/1": webhook.ErrUnknownDestination, "acme/" + strings.Repeat("x", 24): webhook.ErrTakesNothing} {
		if _, err := d.Destination(t.Context(), id); !errors.Is(err, want) {
			t.Errorf("Destination(%q): %v, want %v", id, err, want)
		}
	}
}

// faults returns the ConfigErrors that err joins.
func faults(err error) (all []*webhook.ConfigError) {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, err := range joined.Unwrap() {
			all = append(all, faults(err)...)
		}
	} else if fault, ok := errors.AsType[*webhook.ConfigError](err); ok {
		all = append(all, fault)
	}
	return all
}

// An old secret stops signing, and leaves the store, when its time is over. The same holds for the
// old secrets of two rotations, and while nobody calls the directory. A node that follows hears of
// it within two seconds.
func TestOldSecretsAreRemovedByThemselves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, s := rig(t, tenants.Config{})
		made, first, err := d.Create(t.Context(), at("https://acme.example/"), "ann")
		if err != nil {
			t.Fatal(err)
		}
		heard := make(chan string, 100)
		ctx, cancel := context.WithCancel(t.Context())
		go d.Follow(ctx, func(_, destination string) { heard <- destination }) // ends with ctx
		defer synctest.Wait()
		defer cancel()
		time.Sleep(time.Hour)
		_, second, err := d.Rotate(t.Context(), made.ID, tenants.DefaultOverlap, "ann")
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		if _, _, err = d.Rotate(t.Context(), made.ID, tenants.DefaultOverlap, "ann"); err != nil {
			t.Fatal(err)
		}
		stored := func() string {
			folder, name, _ := strings.Cut(made.ID, "/")
			held, err := s.Document(t.Context(), "tenant/"+folder, name)
			if err != nil {
				t.Fatal(err)
			}
			return string(held.Value)
		}
		for _, step := range []struct {
			after time.Duration
			want  [2]bool // the first two secrets
		}{{23*time.Hour - 1, [2]bool{true, true}}, {2 * time.Second, [2]bool{false, true}}, {time.Hour - 3*time.Second, [2]bool{false, true}}, {3 * time.Second, [2]bool{}}} {
			for len(heard) > 0 {
				<-heard
			}
			time.Sleep(step.after)
			synctest.Wait()
			text := stored()
			if got := [2]bool{strings.Contains(text, first.Reveal()), strings.Contains(text, second.Reveal())}; got != step.want {
				t.Fatalf("after %v, the store has the first two secrets: %v, want %v", step.after, got, step.want)
			}
			if step.after < time.Minute && len(heard) != 1 {
				t.Errorf("after %v, Follow has reported %d changes, want one", step.after, len(heard))
			}
		}
		for held, err := range s.Documents(t.Context(), "tenant-expiry", "") {
			t.Errorf("document %q, %v is left", held.Name, err)
		}
	})
}

// No form of a destination that is made to be shown has a secret.
func TestDestinationsHideSecrets(t *testing.T) {
	d, _ := rig(t, tenants.Config{})
	made, secret, err := d.Create(t.Context(), at("https://acme.example/"), "ann")
	if err != nil {
		t.Fatal(err)
	}
	got, err := d.Get(t.Context(), made.ID)
	w, werr := d.Destination(t.Context(), made.ID)
	if text := fmt.Sprintf("%#v %#v %+v %v %v", made, got, w, err, werr); strings.Contains(text, secret.Reveal()) {
		t.Errorf("%s has the secret", text)
	}
}

func TestLimitsAreThoseOfTheForwarder(t *testing.T) {
	d, _ := rig(t, tenants.Config{Timeout: 20 * time.Second, Window: 48 * time.Hour})
	given := at("https://acme.example/")
	given.Timeout, given.Window = webhook.Duration(20*time.Second), webhook.Duration(48*time.Hour)
	if _, _, err := d.Create(t.Context(), given, ""); err != nil {
		t.Errorf("Create() = %v for settings at their limits", err)
	}
	given.Timeout++
	given.Window++
	if _, _, err := d.Create(t.Context(), given, ""); len(faults(err)) != 2 {
		t.Errorf("Create() = %v, want faults of Timeout and Window", err)
	}
	if _, _, err := d.CreateToken(t.Context(), "acme", "a_b", ""); len(faults(err)) != 1 {
		t.Errorf("CreateToken() = %v, want a fault of Name", err)
	}
}

func TestDestinationsHaveDurationsAsTexts(t *testing.T) {
	given := at("https://acme.example/")
	given.Timeout, given.Window = webhook.Duration(1500*time.Millisecond), webhook.Duration(time.Hour)
	given.Batch, given.Order = webhook.Batch{MaxEvents: 10, MaxWait: 2 * time.Second}, webhook.OrderByUser
	text, err := json.Marshal(given)
	if err != nil || !strings.Contains(string(text), `"timeout":"1.5s","window":"1h0m0s","order":"user","batch":{"maxEvents":10,"maxWait":"2s"}`) {
		t.Errorf("Marshal() = %s, %v", text, err)
	}
	var got tenants.Destination
	if err := json.Unmarshal(text, &got); err != nil || !reflect.DeepEqual(got, given) {
		t.Errorf("Unmarshal() = %+v, %v, want %+v", got, err, given)
	}
	for _, text := range []string{`{"timeout":"soon"}`, `{"window":"1"}`, `{"batch":{"maxWait":"2"}}`, `{"retries":{"window":2}}`} {
		if err := json.Unmarshal([]byte(text), &got); err == nil {
			t.Errorf("Unmarshal(%s) returns no error", text)
		}
	}
}

// failing is a store whose calls fail.
type failing struct{ store.DocumentStore }

func (failing) Changes(context.Context, uint64) ([]store.DocumentChange, uint64, error) {
	return nil, 0, os.ErrDeadlineExceeded
}

func TestFollowReturnsTheErrorOfTheStore(t *testing.T) {
	d, err := tenants.New(failing{}, tenants.Config{})
	if err == nil {
		err = d.Follow(t.Context(), func(_, _ string) { t.Error("Follow has reported a change") })
	}
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("Follow: %v, want the error of the store", err)
	}
	if _, err := tenants.New(nil, tenants.Config{MaxDestinations: -2}); err == nil || !strings.Contains(err.Error(), "MaxDestinations") {
		t.Errorf("New = %v, want the faults of both", err)
	}
}

// TENANTS=100000 go test -run '^$' -bench Tenants -benchtime 1x ./tenants
func BenchmarkTenantsInFolder(b *testing.B) {
	dir := b.TempDir()
	tenantstest.Bench(b, false, func() tenantstest.Store {
		s, err := filequeue.Open(dir, filequeue.Config{})
		if err != nil {
			b.Fatal(err)
		}
		return s
	})
}

func TestLinksEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _ := rig(t, tenants.Config{})
		l, text, err := d.CreateLink(t.Context(), "acme", "ann", time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Until(l.Ends) - time.Nanosecond)
		if _, err = d.CheckLink(t.Context(), text.Reveal()); err != nil {
			t.Errorf("CheckLink() before its end = %v", err)
		}
		time.Sleep(time.Nanosecond)
		if _, err = d.CheckLink(t.Context(), text.Reveal()); !errors.Is(err, tenants.ErrUnknown) {
			t.Errorf("CheckLink() at its end = %v, want ErrUnknown", err)
		}
	})
}

// A destination may come with the secret of another sender, and with longer retries. Both are checked.
func TestImportKeepsSecretAndRetries(t *testing.T) {
	d, _ := rig(t, tenants.Config{})
	given := at("https://acme.example/")
	text := `{"standard": true, "timeout": "20s", "statuses": ["409"]}`
	if err := json.Unmarshal([]byte(text), &given.Retries); err != nil {
		t.Fatal(err)
	}
	given.Timeout, given.Window = webhook.Duration(20*time.Second), webhook.Duration(72*time.Hour)
	secret := signature.NewStandardSecret()
	made, err := d.Import(t.Context(), given, secret, "ann")
	if err != nil {
		t.Fatal(err)
	}
	w, err := d.Destination(t.Context(), made.ID)
	if err != nil || !reflect.DeepEqual(w.StandardSecrets, []signature.Secret{secret}) {
		t.Errorf("the forwarder gets the secrets %v, %v, want the imported one", len(w.StandardSecrets), err)
	}
	want := webhook.StandardRetries()
	want.Timeout, want.Statuses = 20*time.Second, []string{"409"}
	if !reflect.DeepEqual(w.Retries, want) {
		t.Errorf("the forwarder gets the retries %+v, want %+v", w.Retries, want)
	}
	given.Timeout++
	if _, err := d.Import(t.Context(), given, "s3cret", "ann"); len(faults(err)) != 2 || faults(err)[0].Field != "Secret" && faults(err)[1].Field != "Secret" || strings.Contains(err.Error(), "s3cret") {
		t.Errorf("Import() = %v, want faults of the secret and of Timeout", err)
	}
	for _, text := range []string{`{"timeout": "x"}`, `{"window": 3}`} {
		if err := json.Unmarshal([]byte(text), new(webhook.Retries)); err == nil {
			t.Errorf("Unmarshal(%s) returns no error", text)
		}
	}
}
