package admin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
	"github.com/hookferry/analytics/cmd/hookferry/internal/config"
	"github.com/hookferry/analytics/internal/testkit"
	"github.com/hookferry/analytics/signature"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/memqueue"
	"github.com/hookferry/analytics/webhook/store"
)

// edited is the JSON document of a destination.
const edited = `{
	"sources": ["web"], "timeout": "2s", "maxRate": 50, "secret": "s3cret", "filter": {"include": ["track:Order *"]},
	"endpoints": [{"url": "https://user:passw0rd@new.example/hook?token=s3cret", "headers": {"X-Key": "s3cret"}}],
	"standardSecrets": ["whsec_c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0"]
}`

const editedPath = "/api/v1/destinations/new"

// TestDestinationIsSetChangedAndDeleted sets a destination, changes it, and deletes it. No answer
// and no line of the log has its secrets.
func TestDestinationIsSetChangedAndDeleted(t *testing.T) {
	var log bytes.Buffer
	s := newServer(t, func(c *Config) { c.Logger = slog.New(slog.NewTextHandler(&log, nil)) })

	made := ask[api.Destination](s, 200, "PUT", editedPath+"?by=alice", edited)
	diff(t, "endpoints", made.Endpoints, []api.ShownEndpoint{{URL: "https://new.example/hook", Headers: []string{"X-Key"}}})
	diff(t, "settings", *made.Settings, api.DestinationSettings{
		Sources: []string{"web"}, StandardSecrets: 1,
		Settings: webhook.Settings{Timeout: webhook.Duration(2 * time.Second), MaxRate: 50, Filter: webhook.Filter{Include: []string{"track:Order *"}}},
	})
	if !made.Enabled || !made.Signed || !made.Standard || made.Stored.By != "alice" || made.Stored.Changed.IsZero() || made.Stored.Version == "" {
		t.Errorf("PUT: %+v, want an enabled destination that signs, set by alice", made)
	}

	changed := ask[api.Destination](s, 200, "PATCH", editedPath, `{"disabled": true, "timeout": null, "sources": ["app", "web"]}`)
	diff(t, "settings", *changed.Settings, api.DestinationSettings{
		Sources: []string{"app", "web"}, StandardSecrets: 1,
		Settings: webhook.Settings{Disabled: true, MaxRate: 50, Filter: webhook.Filter{Include: []string{"track:Order *"}}},
	})
	if changed.Enabled || changed.State != "disabled" || !changed.Signed || changed.Stored.By != "127.0.0.1" || changed.Stored.Version == made.Stored.Version {
		t.Errorf("PATCH: %+v, want it disabled, signed as before, and with another version", changed)
	}
	listed := ask[api.Destinations](s, 200, "GET", api.DestinationsPath+"?source=app&q=new.example", nil)
	if len(listed.Items) != 1 || listed.Items[0].Stored == nil || listed.Items[0].Settings != nil {
		t.Errorf("list: %+v, want one stored destination without settings", listed)
	}
	for _, part := range []string{"passw0rd", "s3cret"} {
		if hidden := ask[api.Destinations](s, 200, "GET", api.DestinationsPath+"?q="+part, nil); hidden.Total != 0 {
			t.Errorf("a search for a part of the URL that is not shown has found %+v", hidden)
		}
	}

	// A request that names an older version changes nothing.
	for _, tt := range []struct{ method, query string }{{"PATCH", ""}, {"PUT", ""}, {"DELETE", "&waiting=keep"}} {
		got := ask[api.Error](s, 409, tt.method, editedPath+"?version="+made.Stored.Version+tt.query, edited)
		if got.Code != api.CodeConflict || got.Field != "version" {
			t.Errorf("%s of an older version: error %+v, want a conflict of the version", tt.method, got)
		}
	}
	ask[api.Error](s, 409, "PUT", editedPath+"?version=0", edited)
	ask[api.Destination](s, 200, "PUT", editedPath+"?version="+changed.Stored.Version, edited)

	ask[api.Changed](s, 200, "DELETE", editedPath+"?waiting=keep&by=bob", nil)
	ask[api.Error](s, 404, "GET", editedPath, nil)
	ask[api.Error](s, 404, "PATCH", editedPath, `{"disabled": false}`)
	ask[api.Error](s, 404, "DELETE", editedPath+"?waiting=keep", nil)

	for _, want := range []string{
		`msg="a destination was set" destination=new by=alice address=127.0.0.1`,
		`msg="a destination was changed" destination=new by=127.0.0.1`,
		`msg="a destination was deleted" destination=new by=bob`,
	} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log lacks %q:\n%s", want, log.String())
		}
	}
	if strings.Contains(log.String(), "s3cret") || strings.Contains(log.String(), "passw0rd") {
		t.Errorf("the log has a secret:\n%s", log.String())
	}
}

func TestWrongEditsAreRefused(t *testing.T) {
	s := newServer(t, nil)
	ask[api.Destination](s, 200, "PUT", editedPath, edited)
	const some = `"endpoints": [{"url": "https://a.example/"}]`
	var large []string // endpoints with the most bytes of headers
	for i := range store.MaxEndpoints {
		value := strings.Repeat("x", 8<<10)
		large = append(large, fmt.Sprintf(`{"url": "https://%d.example/", "headers": {"A": "%s", "B": "%s"}}`, i, value, value))
	}
	for _, tt := range []struct {
		name, method, path, body string
		status                   int
		field, message           string
	}{
		{"a destination of the settings", "PUT", "/api/v1/destinations/crm", edited, 409, "", "change it there"},
		{"a change of a destination of the settings", "PATCH", "/api/v1/destinations/crm", edited, 409, "", "change it there"},
		{"deleting a destination of the settings", "DELETE", "/api/v1/destinations/crm?waiting=keep", "", 409, "", "change it there"},
		{"a secret for a destination of the settings", "POST", "/api/v1/destinations/crm/secrets", "", 409, "", "change it there"},
		{"no body", "PUT", editedPath, "", 415, "Content-Type", ""},
		{"no object", "PUT", editedPath, "[]", 400, "", "array"},
		{"another id", "PUT", editedPath, `{"id": "other", "sources": [], ` + some + `}`, 400, "id", ""},
		{"an id that a path cannot have", "PUT", "/api/v1/destinations/%2e%2e", `{"sources": [], ` + some + `}`, 400, "id", ""},
		{"an id that is not UTF-8", "PUT", "/api/v1/destinations/a%ff", `{"sources": [], ` + some + `}`, 400, "", "UTF-8"},
		{"no sources", "PUT", editedPath, `{` + some + `}`, 400, "sources", "required"},
		{"null as sources", "PATCH", editedPath, `{"sources": null}`, 400, "sources", "required"},
		{"an unknown source", "PUT", editedPath, `{"sources": ["web", "s3cret"], ` + some + `}`, 400, "sources", "sources[1]"},
		{"no endpoint", "PATCH", editedPath, `{"endpoints": []}`, 400, "endpoints", ""},
		{"an address that is not public", "PATCH", editedPath, `{"endpoints": [{"url": "http://127.0.0.1:9000/?s3cret"}]}`, 400, "endpoints[0].url", "not a public address"},
		{"several problems", "PATCH", editedPath, `{"timeout": "6s", "secrets": "s3cret"}`, 400, "secrets", "timeout"},
		{"a document that is too large for the store", "PATCH", editedPath, `{"endpoints": [` + strings.Join(large, ",") + `]}`, 413, "", "65536"},
		{"a name with a line break", "PATCH", editedPath + "?by=a%0Ab", `{}`, 400, "by", ""},
		{"a wrong version", "PATCH", editedPath + "?version=x", `{}`, 400, "version", ""},
		{"deleting without the parameter waiting", "DELETE", editedPath, "", 400, "waiting", ""},
		{"deleting with an unknown value of waiting", "DELETE", editedPath + "?waiting=lose", "", 400, "waiting", ""},
		{"an unknown parameter", "PATCH", editedPath + "?force=1", `{}`, 400, "force", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var body any
			if tt.body != "" {
				body = tt.body
			}
			got := ask[api.Error](s, tt.status, tt.method, tt.path, body)
			if got.Field != tt.field || !strings.Contains(got.Message, tt.message) {
				t.Errorf("the error is %+v, want the field %q and %q in the message", got, tt.field, tt.message)
			}
		})
	}
	if d := ask[api.Destination](s, 200, "GET", editedPath, nil); d.Settings.Timeout != webhook.Duration(2*time.Second) || len(d.Endpoints) != 1 || d.Settings.MaxRate != 50 {
		t.Errorf("the destination is %+v, want it unchanged", d)
	}
}

// TestSecretsAreRotatedInTwoSteps replaces a secret in two steps. Between them, both secrets are
// valid.
func TestSecretsAreRotatedInTwoSteps(t *testing.T) {
	s := newServer(t, nil)
	ask[api.Destination](s, 200, "PUT", editedPath, edited)
	secrets := func() []signature.Secret {
		d, err := s.handler.config.Tenants.Destination(t.Context(), "new")
		if err != nil {
			t.Fatal(err)
		}
		return d.StandardSecrets
	}
	old := secrets()[0]
	added := ask[api.NewSecret](s, 200, "POST", editedPath+"/secrets", nil)
	if got := secrets(); added.Valid != 2 || len(got) != 2 || got[0].Reveal() != added.Secret || got[1] != old {
		t.Errorf("%d secrets are valid, want the new one, followed by the old one", len(got))
	}
	d := ask[api.Destination](s, 200, "DELETE", editedPath+"/secrets", nil)
	if got := secrets(); d.Settings.StandardSecrets != 1 || len(got) != 1 || got[0].Reveal() != added.Secret {
		t.Errorf("%d secrets are valid, want only the new one", len(got))
	}
	for range webhook.MaxStandardSecrets - 1 {
		ask[api.NewSecret](s, 200, "POST", editedPath+"/secrets", nil)
	}
	ask[api.Error](s, 409, "POST", editedPath+"/secrets", nil)
	ask[api.Error](s, 404, "POST", "/api/v1/destinations/gone/secrets", nil)
}

// TestDeletingADestinationKeepsOrDiscardsDeliveries shows that waiting deliveries of a deleted
// destination stay for the next destination with its id, or are discarded.
func TestDeletingADestinationKeepsOrDiscardsDeliveries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t, nil)
		document := `{"sources": [], "endpoints": [{"url": "https://a.example/"}], "disabled": true}`
		waiting := func() int {
			return len(ask[api.Page[api.Delivery]](s, 200, "GET", api.DeliveriesPath+"?destination=new", nil).Items)
		}
		ask[api.Destination](s, 200, "PUT", editedPath, document)
		s.track("new", "m1", "m2")
		if got := ask[api.Changed](s, 200, "DELETE", editedPath+"?waiting=keep", nil); got.Changed != 0 || waiting() != 2 {
			t.Errorf("DELETE: %+v, and %d deliveries wait, want 2 that wait", got, waiting())
		}
		if d := ask[api.Destination](s, 200, "GET", editedPath, nil); d.State != "unknown" || d.Stored != nil {
			t.Errorf("the deleted destination is %+v, want the state unknown", d)
		}
		ask[api.Destination](s, 200, "PUT", editedPath, document)
		if got := ask[api.Changed](s, 200, "DELETE", editedPath+"?waiting=discard", nil); got.Changed != 2 || waiting() != 0 {
			t.Errorf("DELETE: %+v, and %d deliveries wait, want 2 discarded", got, waiting())
		}
	})
}

// A halfStore fails some of the calls that follow a change.
type halfStore struct {
	*memqueue.Store
	broken atomic.Bool
}

var errHalf = errors.New("the disk is away")

func (s *halfStore) Document(ctx context.Context, folder, name string) (store.Document, error) {
	if folder == "pause" && s.broken.Load() {
		return store.Document{}, errHalf
	}
	return s.Store.Document(ctx, folder, name)
}

func (s *halfStore) CountByDestination(ctx context.Context, ids ...string) iter.Seq2[store.DestinationCounts, error] {
	if s.broken.Load() {
		return func(yield func(store.DestinationCounts, error) bool) { yield(store.DestinationCounts{}, errHalf) }
	}
	return s.Store.CountByDestination(ctx, ids...)
}

// TestErrorsAfterAChangeSayThatItWasMade shows that an error of what follows a change does not hide the
// change, and that a destination is deleted although its pause could not be removed.
func TestErrorsAfterAChangeSayThatItWasMade(t *testing.T) {
	half := &halfStore{Store: testkit.Must(memqueue.Open(memqueue.Config{}))}
	s := newServerOf(t, half, inMemory(), func(*config.Settings) {}, nil)
	path := acme + "/destinations/" + s.made("acme")
	ask[api.Destination](s, 200, "PUT", editedPath, edited)
	half.broken.Store(true)
	for _, tt := range []struct {
		name, method, path, body, want string
	}{
		{"of a destination", "PATCH", editedPath, `{"timeout": "3s"}`, "it is changed"},
		{"of a tenant's destination", "PATCH", path, `{"timeout": "3s", "disabled": false}`, "it is changed"},
	} {
		if e := ask[api.Error](s, 500, tt.method, tt.path, tt.body); !strings.HasPrefix(e.Message, tt.want) {
			t.Errorf("%s: the message is %q, want one that begins with %q", tt.name, e.Message, tt.want)
		}
	}
	ask[api.Changed](s, 200, "DELETE", editedPath+"?waiting=discard", nil)
	ask[api.Changed](s, 200, "DELETE", path+"?waiting=discard", nil)
}
