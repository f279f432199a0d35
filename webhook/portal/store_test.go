package portal_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hookferry/analytics/step"
	"github.com/hookferry/analytics/tenants"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/memqueue"
	"github.com/hookferry/analytics/webhook/portal"
	"github.com/hookferry/analytics/webhook/store"
)

// A hookedStore passes the names of some calls to a function, if it has one, and fails with its error.
type hookedStore struct {
	*memqueue.Store
	hook atomic.Pointer[func(call string) error]
}

func (s *hookedStore) call(name string) error {
	if hook := s.hook.Load(); hook != nil {
		return (*hook)(name)
	}
	return nil
}

func (s *hookedStore) Get(ctx context.Context, ref webhook.Ref) (webhook.Record, error) {
	if err := s.call("Get"); err != nil {
		return webhook.Record{}, err
	}
	return s.Store.Get(ctx, ref)
}

func (s *hookedStore) List(ctx context.Context, q webhook.Query, after uint64, max int) ([]webhook.Record, uint64, error) {
	if err := s.call("List"); err != nil {
		return nil, 0, err
	}
	return s.Store.List(ctx, q, after, max)
}

func (s *hookedStore) Document(ctx context.Context, folder, name string) (store.Document, error) {
	if err := s.call("Document " + folder); err != nil {
		return store.Document{}, err
	}
	return s.Store.Document(ctx, folder, name)
}

func (s *hookedStore) CountByDestination(ctx context.Context, ids ...string) iter.Seq2[store.DestinationCounts, error] {
	if err := s.call("CountByDestination"); err != nil {
		return func(yield func(store.DestinationCounts, error) bool) { yield(store.DestinationCounts{}, err) }
	}
	return s.Store.CountByDestination(ctx, ids...)
}

// fail makes the calls fail whose names begin with prefix; none if it is empty.
func (s *hookedStore) fail(prefix string) {
	hook := func(call string) error {
		if prefix != "" && strings.HasPrefix(call, prefix) {
			return errors.New("the store fails")
		}
		return nil
	}
	s.hook.Store(&hook)
}

// block makes the calls wait whose names begin with prefix, until release is called. waiting is how many
// wait now.
func (s *hookedStore) block(prefix string) (waiting *atomic.Int64, release func()) {
	waiting = new(atomic.Int64)
	free := make(chan struct{})
	hook := func(call string) error {
		if strings.HasPrefix(call, prefix) {
			waiting.Add(1)
			<-free
			waiting.Add(-1)
		}
		return nil
	}
	s.hook.Store(&hook)
	return waiting, func() {
		s.hook.Store(nil)
		close(free)
	}
}

// Of many requests of a tenant at once, two use the store, also of those that fail.
func TestTestsAndResendsTakeTurns(t *testing.T) {
	for _, tt := range []struct {
		name, target, call string
		body               object
	}{
		{"a delivery", "/api/v1/deliveries/a.1/resend", "Get", object{}},
		{"all of an endpoint", "/api/v1/endpoints/a/resend", "Document", object{}},
		{"a test", "/api/v1/endpoints/a/test", "Document", object{"type": "invoice.paid"}},
	} {
		inWorld(t, portal.Config{}, func(w *world) {
			waiting, release := w.store.block(tt.call)
			statuses := make(chan int, 5)
			for range 5 {
				go func() { statuses <- w.send("acme", "POST", tt.target, tt.body).Code }() // until release
			}
			synctest.Wait()
			if n := waiting.Load(); n != 2 {
				t.Errorf("%s: %d requests use the store, want 2", tt.name, n)
			}
			release()
			for range 5 {
				if status := <-statuses; status != 404 {
					t.Errorf("%s: %d, want 404", tt.name, status)
				}
			}
		})
	}
}

// Requests for what does not exist are counted, too.
func TestFailedTestsAndResendsAreCounted(t *testing.T) {
	inWorld(t, portal.Config{TestsPerMinute: 2, ResendsPerMinute: 4}, func(w *world) {
		for i, tt := range []struct {
			target string
			body   object
			status int
		}{
			{"/api/v1/endpoints/a/test", object{"type": "invoice.lost"}, 422}, // asks the store nothing
			{"/api/v1/endpoints/a/test", object{"type": "invoice.paid"}, 404},
			{"/api/v1/endpoints/a/test", object{"type": "invoice.paid"}, 404},
			{"/api/v1/endpoints/a/test", object{"type": "invoice.paid"}, 429},
			{"/api/v1/deliveries/a.1/resend", object{}, 404},
			{"/api/v1/deliveries/a.1/resend", object{}, 404},
			{"/api/v1/endpoints/a/resend", object{}, 404},
			{"/api/v1/endpoints/a/resend", object{}, 404},
			{"/api/v1/endpoints/a/resend", object{}, 429},
			{"/api/v1/deliveries/a.1/resend", object{}, 429},
		} {
			if answer := w.send("acme", "POST", tt.target, tt.body); answer.Code != tt.status {
				t.Errorf("request %d, POST %s: %d, want %d", i, tt.target, answer.Code, tt.status)
			}
		}
	})
}

// Receivers that are slow to answer tests delay no other request of the tenant.
func TestATestEndsItsTurnBeforeItIsSent(t *testing.T) {
	inWorld(t, portal.Config{}, func(w *world) {
		w.network.Receiver("https://acme.example/", "", step.Hang())
		id, _ := w.create("https://acme.example/")
		ended := make(chan int, 3)
		for range 3 {
			go func() { // until the timeout of the test
				ended <- w.send("acme", "POST", "/api/v1/endpoints/"+id+"/test", object{"type": "invoice.paid"}).Code
			}()
		}
		synctest.Wait()
		w.do(200, "GET", "/api/v1/endpoints/"+id, nil)
		if len(ended) != 0 {
			t.Error("a test has ended, want all in flight")
		}
		for range 3 {
			if status := <-ended; status != 200 {
				t.Errorf("a test: %d, want 200", status)
			}
		}
	})
}

// A tenant sends what failed again once at a time, and four do so at the same time.
func TestFewResendAtOnceWhatFailed(t *testing.T) {
	inWorld(t, portal.Config{}, func(w *world) {
		type customer struct{ tenant, path string }
		var customers []customer
		for i := range 6 {
			c := customer{tenant: fmt.Sprint("t", i)}
			if _, err := w.tenants.CreateTenant(t.Context(), tenants.Tenant{ID: c.tenant}, "setup"); err != nil {
				t.Fatal(err)
			}
			d, _, err := w.tenants.Create(t.Context(), tenants.Destination{Tenant: c.tenant, Settings: webhook.Settings{Endpoints: []webhook.Endpoint{{URL: "https://acme.example/"}}}}, "setup")
			if err != nil {
				t.Fatal(err)
			}
			c.path = "/api/v1/endpoints/" + strings.TrimPrefix(d.ID, c.tenant+"/") + "/resend"
			customers = append(customers, c)
		}
		waiting, release := w.store.block("List")
		ended := make(chan string, len(customers))
		for _, c := range customers {
			go func() { ended <- w.send(c.tenant, "POST", c.path, object{}).Body.String() }() // until release
		}
		synctest.Wait()
		if n := waiting.Load(); n != 4 {
			t.Errorf("%d requests to resend use the store, want 4", n)
		}
		for _, c := range customers {
			second := make(chan *httptest.ResponseRecorder, 1)
			go func() { second <- w.send(c.tenant, "POST", c.path, object{}) }() // until release at the latest
			synctest.Wait()
			if len(second) == 0 {
				t.Errorf("a second request of %s to resend is not answered, want 429", c.tenant)
				continue
			}
			answer := <-second
			if answer.Code != 429 || answer.Header().Get("Retry-After") != "10" || !strings.Contains(answer.Body.String(), `"code":"resending"`) {
				t.Errorf("a second request of %s to resend: %d %s, want 429 and the code resending", c.tenant, answer.Code, answer.Body)
			}
			if answer := w.send(c.tenant, "GET", "/api/v1/endpoints", nil); answer.Code != 200 {
				t.Errorf("a list of %s: %d, want 200", c.tenant, answer.Code)
			}
		}
		release()
		for range customers {
			if lines := <-ended; !strings.HasSuffix(lines, `"ended":true}`+"\n") {
				t.Errorf("the end of sending again is %q", lines)
			}
		}
		if answer := w.send(customers[0].tenant, "POST", customers[0].path, object{}); answer.Code != 200 {
			t.Errorf("sending again after the first request has ended: %d, want 200", answer.Code)
		}
	})
}

// What fails after a change does not hide the change: the customer gets the secret, and Changed is told.
func TestWhatFailsAfterAChangeDoesNotHideIt(t *testing.T) {
	for _, tt := range []struct {
		name, fails, method, below string
		body                       object // gets the version
		status                     int
		action                     portal.Action
	}{
		{"rotating", "CountByDestination", "POST", "/rotate", object{}, 200, portal.ActionRotate},
		{"changing", "CountByDestination", "PATCH", "", object{"description": "CRM"}, 200, portal.ActionChange},
		{"enabling", "CountByDestination", "PATCH", "", object{"enabled": true, "description": "CRM"}, 200, portal.ActionChange},
		{"enabling a disabled one", "Document pause", "PATCH", "", object{"enabled": true, "description": "CRM"}, 500, portal.ActionChange},
		{"deleting", "List", "DELETE", "?version=", nil, 200, portal.ActionDelete},
		{"deleting a paused one", "Document pause", "DELETE", "?version=", nil, 200, portal.ActionDelete},
	} {
		inWorld(t, portal.Config{}, func(w *world) {
			w.network.Receiver("https://acme.example/", "", step.Answer(503))
			id, first := w.create("https://acme.example/")
			w.forward("acme", "invoice.paid")
			time.Sleep(3 * time.Hour) // the forwarder has disabled the endpoint
			path := "/api/v1/endpoints/" + id
			now := w.do(200, "GET", path, nil)
			if now["state"] != "disabled" || now["enabled"] != false {
				t.Fatalf("%s: the endpoint is %v, want disabled", tt.name, now)
			}
			version := now["version"].(string)
			var body any
			switch tt.method {
			case "PATCH":
				tt.body["version"] = version
				fallthrough
			case "POST":
				body, version = tt.body, ""
			}
			w.changes = nil
			w.store.fail(tt.fails)
			answer := w.do(tt.status, tt.method, path+tt.below+version, body)
			w.store.fail("")
			if len(w.changes) != 1 || w.changes[0].Action != tt.action {
				t.Errorf("%s: the changes are %v, want one", tt.name, w.changes)
			}
			d, secrets, err := w.tenants.Secrets(t.Context(), "acme/"+id)
			switch tt.action {
			case portal.ActionRotate:
				if err != nil || len(secrets.StandardSecrets) != 2 || secrets.StandardSecrets[0].Reveal() != answer["secret"] || answer["secret"] == first {
					t.Errorf("%s: the answer is %v, and its secret is not the newest one", tt.name, answer)
				}
			case portal.ActionChange:
				if err != nil || d.Name != "CRM" {
					t.Errorf("%s: the endpoint is %v, %v", tt.name, d, err)
				}
			case portal.ActionDelete:
				w.do(404, "GET", path, nil)
				if n, err := w.forwarder.Count(t.Context(), webhook.Query{States: []webhook.State{webhook.StateWaiting}}); err != nil || tt.fails != "List" && n != 0 {
					t.Errorf("%s: %d deliveries wait, %v, want none", tt.name, n, err)
				}
			}
		})
	}
}
