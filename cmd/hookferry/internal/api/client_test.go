package api_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
	"github.com/hookferry/analytics/webhook"
)

func TestNewClientTakesAddressesAndURLs(t *testing.T) {
	for _, tt := range []struct {
		base string
		host string // "" if NewClient returns an error
	}{
		{"localhost:8081", "localhost:8081"},
		{":8081", "localhost:8081"},
		{"http://admin.example", "admin.example"},
		{"https://admin.example/hookferry/", "admin.example"},
		{"[::1]:8081", "[::1]:8081"},
		{"ftp://admin.example", ""},
		{"http://user:pa55@admin.example", ""},
		{"http://admin.example/?token=pa55", ""},
		{"", ""},
		{"http://", ""},
		{"local host:8081", ""},
	} {
		c, err := api.NewClient(tt.base, "", nil)
		switch {
		case tt.host == "" && err == nil:
			t.Errorf("NewClient(%q) returned no error", tt.base)
		case tt.host == "" && strings.Contains(err.Error(), "pa55"):
			t.Errorf("NewClient(%q): the error repeats the password: %v", tt.base, err)
		case tt.host != "" && err != nil:
			t.Errorf("NewClient(%q): %v", tt.base, err)
		case tt.host != "" && c.Host() != tt.host:
			t.Errorf("NewClient(%q) has the host %q, want %q", tt.base, c.Host(), tt.host)
		}
	}
}

// newClient returns a client of a server that answers with handle.
func newClient(t *testing.T, handle http.HandlerFunc) *api.Client {
	t.Helper()
	server := httptest.NewServer(handle)
	t.Cleanup(server.Close)
	c, err := api.NewClient(server.URL+"/base/", "t0ken", nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func TestDoSendsRequests(t *testing.T) {
	for _, tt := range []struct {
		name    string
		request api.Request
		want    string // method, path and query, type, body
	}{
		{"status", api.Request{Path: api.StatusPath}, "GET /base/api/v1/status  "},
		{"destinations", api.Request{Path: api.DestinationsPath, Query: url.Values{api.ParamQuery: {"a b"}, api.ParamState: {"ok", "idle"}, api.ParamAfter: {"7:a"}}},
			"GET /base/api/v1/destinations?after=7%3Aa&q=a+b&state=ok&state=idle  "},
		{"pause", api.Request{Method: "POST", Path: api.Path(api.PausePath, "a/b c")}, "POST /base/api/v1/destinations/a%2Fb%20c/pause  "},
		{"show", api.Request{Path: api.Path(api.DeliveryPath, "k/1:a")}, "GET /base/api/v1/deliveries/k%2F1:a  "},
		{"retry", api.Request{Method: "POST", Path: api.RetryPath, Body: api.Selection{Keys: []string{"a", "b"}}},
			`POST /base/api/v1/deliveries/retry application/json {"keys":["a","b"]}`},
		{"delete by lines", api.Request{Method: "POST", Path: api.DeletionsPath, Query: url.Values{api.ParamSource: {"web", "app"}}, Body: strings.NewReader("u1\nu2\n")},
			"POST /base/api/v1/deletions?source=web&source=app text/plain u1\nu2\n"},
		{"sync", api.Request{Method: "PUT", Path: api.Path(api.MembersPath, "acme", "Big Spenders"), Body: strings.NewReader("u1\n")},
			"PUT /base/api/v1/destinations/acme/audiences/Big%20Spenders/members text/plain u1\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := newClient(t, func(w http.ResponseWriter, r *http.Request) {
				body, err := io.ReadAll(r.Body)
				if err != nil {
					t.Error(err)
				}
				got := fmt.Sprintf("%s %s %s %s", r.Method, r.RequestURI, r.Header.Get("Content-Type"), body)
				if got != tt.want {
					t.Errorf("the server got\n%q, want\n%q", got, tt.want)
				}
				if auth := r.Header.Get("Authorization"); auth != "Bearer t0ken" {
					t.Errorf("the server got Authorization: %q, want the token", auth)
				}
				io.WriteString(w, `{"version":"v1"}`+"\n")
			})
			if s, err := api.Do[api.Status](t.Context(), c, tt.request); err != nil || s.Version != "v1" {
				t.Errorf("Do = %+v, %v, want the version v1", s, err)
			}
		})
	}
}

func TestDoReturnsErrors(t *testing.T) {
	answer := func(status int, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Location", "/elsewhere")
			w.WriteHeader(status)
			io.WriteString(w, body)
		}
	}
	for _, tt := range []struct {
		name   string
		handle http.HandlerFunc
		code   string // of an *api.Error
		text   string // part of the text of any other error
	}{
		{name: "refused", handle: answer(404, `{"code":"not_found","message":"no destination \"x\""}`), code: api.CodeNotFound},
		{name: "no admin API", handle: answer(404, "404 page not found"), text: "answered 404 Not Found, which is not an answer of an admin API"},
		{name: "other JSON", handle: answer(500, `{"success":false}`), text: "answered 500"},
		{name: "a redirect is not followed", handle: answer(307, ""), text: "answered 307"},
		{name: "not JSON", handle: answer(200, "<html>"), text: "reading the answer"},
		{name: "cut short", handle: answer(200, `{"version":`), text: "reading the answer"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := api.Do[api.Status](t.Context(), newClient(t, tt.handle), api.Request{Path: api.StatusPath})
			var refused *api.Error
			errors.As(err, &refused)
			switch {
			case err == nil:
				t.Fatal("Do returned no error")
			case tt.code != "" && (refused == nil || refused.Code != tt.code):
				t.Errorf("error %v, want one of code %s", err, tt.code)
			case tt.code == "" && (refused != nil || !strings.Contains(err.Error(), tt.text)):
				t.Errorf("error %q, want %q in it", err, tt.text)
			}
		})
	}
}

func TestWorkReportsItsEnd(t *testing.T) {
	refusal := &api.Error{Code: api.CodeUnavailable, Message: "the store is closed"}
	for _, tt := range []struct {
		name  string
		lines []api.Progress
		want  []int // Done of each
		err   error // by errors.Is
	}{
		{"done", []api.Progress{{Done: 1, Total: 2}, {Done: 2, Total: 2, Ended: true}}, []int{1, 2}, nil},
		{"failed", []api.Progress{{Done: 1}, {Done: 1, Error: refusal}}, []int{1, 1}, refusal},
		{"cut off", []api.Progress{{Done: 1}}, []int{1, 0}, api.ErrCutOff},
		{"nothing", nil, []int{0}, api.ErrCutOff},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := newClient(t, func(w http.ResponseWriter, _ *http.Request) {
				for _, p := range tt.lines {
					json.NewEncoder(w).Encode(p)
					io.WriteString(w, "\n")
				}
			})
			var got []int
			var last error
			for p, err := range api.Work(t.Context(), c, api.Request{Method: http.MethodPost, Path: api.RetryPath}) {
				got, last = append(got, p.Done), err
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("progress (-want +got):\n%s", diff)
			}
			var said *api.Error
			if errors.As(last, &said) {
				last = said
				if diff := cmp.Diff(tt.err, last); diff != "" {
					t.Errorf("error (-want +got):\n%s", diff)
				}
			} else if !errors.Is(last, tt.err) {
				t.Errorf("error %v, want %v", last, tt.err)
			}
		})
	}
}

func TestListReadsAllPages(t *testing.T) {
	c := newClient(t, func(w http.ResponseWriter, r *http.Request) {
		if limit, reason := r.FormValue(api.ParamLimit), r.FormValue(api.ParamReason); limit != "500" || reason != "refused" {
			t.Errorf("the server got limit=%s and reason=%s, want 500 and refused", limit, reason)
		}
		switch after := r.FormValue(api.ParamAfter); after {
		case "":
			io.WriteString(w, `{"items":[{"key":"1"},{"key":"2"}],"after":"2"}`)
		case "2":
			io.WriteString(w, `{"items":[{"key":"3"}]}`)
		default:
			t.Errorf("the server got after=%s, want none or 2", after)
		}
	})
	all := api.List[api.Delivery](t.Context(), c, api.DeliveriesPath, url.Values{api.ParamReason: {"refused"}})
	for range 2 { // each loop begins at the first page
		var keys []string
		for d, err := range all {
			if err != nil {
				t.Fatal(err)
			}
			keys = append(keys, d.Key)
		}
		if diff := cmp.Diff([]string{"1", "2", "3"}, keys); diff != "" {
			t.Errorf("keys (-want +got):\n%s", diff)
		}
	}
}

func TestKeysAreParsed(t *testing.T) {
	for _, want := range []webhook.Ref{{Destination: "crm", Seq: 1}, {Destination: "a:b/c", Seq: 1<<64 - 1}} {
		if got, err := api.ParseKey(api.KeyOf(want)); got != want || err != nil {
			t.Errorf("ParseKey(%q) = %+v, %v, want %+v", api.KeyOf(want), got, err, want)
		}
	}
	for _, key := range []string{"", "crm", "crm:", ":1", "crm:1.", "crm:-1", "crm:zzzzzzzzzzzzzzz"} {
		if got, err := api.ParseKey(key); err == nil {
			t.Errorf("ParseKey(%q) = %+v, want an error", key, got)
		}
	}
}
