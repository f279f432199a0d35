package api_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
)

func TestNewClientTakesAddressesAndURLs(t *testing.T) {
	for _, tt := range []struct {
		base string
		host string // "" if it is refused
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
			t.Errorf("NewClient(%q) was not refused", tt.base)
		case tt.host == "" && strings.Contains(err.Error(), "pa55"):
			t.Errorf("NewClient(%q): the error repeats the password: %v", tt.base, err)
		case tt.host != "" && err != nil:
			t.Errorf("NewClient(%q): %v", tt.base, err)
		case tt.host != "" && c.Host() != tt.host:
			t.Errorf("NewClient(%q) has the host %q, want %q", tt.base, c.Host(), tt.host)
		}
	}
}

// newClient returns a client of a server that answers by handle.
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

func TestClientRequests(t *testing.T) {
	from := time.Date(2026, 1, 31, 12, 0, 0, 0, time.FixedZone("", 3600))
	filter := api.DeadFilter{Destination: "acme", Type: "track", Reason: "status", From: &from}
	drain := func(s iter.Seq2[api.Progress, error]) error {
		var last error
		for _, err := range s {
			last = err
		}
		return last
	}
	for _, tt := range []struct {
		name string
		call func(context.Context, *api.Client) error
		want string // method, path and query, type, body
	}{
		{"status", func(ctx context.Context, c *api.Client) error { _, err := c.Status(ctx); return err },
			"GET /base/api/v1/status  "},
		{"sources", func(ctx context.Context, c *api.Client) error { _, err := c.Sources(ctx, "a b", 20); return err },
			"GET /base/api/v1/sources?limit=20&q=a+b  "},
		{"audiences", func(ctx context.Context, c *api.Client) error {
			_, err := c.Audiences(ctx, api.AudienceFilter{Destination: "a/b", Query: "vip"}, 20)
			return err
		}, "GET /base/api/v1/audiences?destination=a%2Fb&limit=20&q=vip  "},
		{"destinations", func(ctx context.Context, c *api.Client) error {
			filter := api.DestinationFilter{Query: "a b", Source: "web", States: []string{api.StateOK, api.StateIdle}, Sort: api.SortDead}
			_, err := c.Destinations(ctx, filter, 20, "7:a")
			return err
		}, "GET /base/api/v1/destinations?after=7%3Aa&limit=20&q=a+b&sort=dead&source=web&state=ok&state=idle  "},
		{"pause", func(ctx context.Context, c *api.Client) error { _, err := c.Pause(ctx, "a/b c"); return err },
			"POST /base/api/v1/destinations/a%2Fb%20c/pause  "},
		{"resume", func(ctx context.Context, c *api.Client) error { _, err := c.Resume(ctx, "acme"); return err },
			"POST /base/api/v1/destinations/acme/resume  "},
		{"dead", func(ctx context.Context, c *api.Client) error {
			for _, err := range c.Dead(ctx, filter) {
				return err
			}
			return nil
		}, "GET /base/api/v1/dead?destination=acme&from=2026-01-31T11%3A00%3A00Z&limit=500&reason=status&type=track  "},
		{"count", func(ctx context.Context, c *api.Client) error {
			_, err := c.CountDead(ctx, api.DeadFilter{})
			return err
		},
			"GET /base/api/v1/dead/count  "},
		{"show", func(ctx context.Context, c *api.Client) error { _, err := c.DeadLetter(ctx, "k/1"); return err },
			"GET /base/api/v1/dead/k%2F1  "},
		{"replay", func(ctx context.Context, c *api.Client) error {
			return drain(c.Replay(ctx, api.Selection{Keys: []string{"a", "b"}}))
		}, `POST /base/api/v1/dead/replay application/json {"keys":["a","b"]}`},
		{"discard", func(ctx context.Context, c *api.Client) error {
			return drain(c.Discard(ctx, api.Selection{Filter: &api.DeadFilter{Reason: "status"}}))
		}, `POST /base/api/v1/dead/discard application/json {"filter":{"reason":"status"}}`},
		{"test", func(ctx context.Context, c *api.Client) error {
			_, err := c.Test(ctx, api.TestRequest{URL: "http://a.example"})
			return err
		}, `POST /base/api/v1/test application/json {"url":"http://a.example"}`},
		{"delete", func(ctx context.Context, c *api.Client) error {
			return drain(c.Delete(ctx, api.Deletion{ID: "d1", Users: []string{"u1"}}))
		}, `POST /base/api/v1/deletions application/json {"id":"d1","users":["u1"]}`},
		{"delete by lines", func(ctx context.Context, c *api.Client) error {
			return drain(c.DeleteLines(ctx, api.Deletion{ID: "d1", Sources: []string{"web", "app"}}, strings.NewReader("u1\nu2\n")))
		}, "POST /base/api/v1/deletions?id=d1&source=web&source=app text/plain u1\nu2\n"},
		{"create", func(ctx context.Context, c *api.Client) error {
			_, err := c.CreateAudience(ctx, api.Audience{Destination: "acme", Name: "Big Spenders"})
			return err
		}, `POST /base/api/v1/audiences application/json {"destination":"acme","name":"Big Spenders"}`},
		{"sync", func(ctx context.Context, c *api.Client) error {
			return drain(c.SyncAudience(ctx, "acme", "Big Spenders", strings.NewReader("u1\n")))
		}, "PUT /base/api/v1/destinations/acme/audiences/Big%20Spenders/members text/plain u1\n"},
		{"members", func(ctx context.Context, c *api.Client) error {
			members, err := c.Members(ctx, "acme", "vip")
			if err != nil {
				return err
			}
			return members.Close()
		},
			"GET /base/api/v1/destinations/acme/audiences/vip/members  "},
		{"live", func(ctx context.Context, c *api.Client) error {
			for _, err := range c.Live(ctx, url.Values{api.ParamKind: {"attempt", "dead"}}, nil) {
				return err
			}
			return nil
		}, "GET /base/api/v1/events/live?kind=attempt&kind=dead  "},
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
					t.Errorf("Authorization: %q", auth)
				}
				io.WriteString(w, `{"ended":true}`+"\n")
			})
			if err := tt.call(t.Context(), c); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestClientErrors(t *testing.T) {
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
		text   string // else a part of what is said
	}{
		{name: "refused", handle: answer(404, `{"code":"not_found","message":"no destination \"x\""}`), code: api.CodeNotFound},
		{name: "no admin API", handle: answer(404, "404 page not found"), text: "answered 404 Not Found, not as an admin API does"},
		{name: "other JSON", handle: answer(500, `{"success":false}`), text: "answered 500"},
		{name: "a redirect is not followed", handle: answer(307, ""), text: "answered 307"},
		{name: "not JSON", handle: answer(200, "<html>"), text: "reading the answer"},
		{name: "cut short", handle: answer(200, `{"version":`), text: "reading the answer"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := newClient(t, tt.handle).Status(t.Context())
			var refused *api.Error
			errors.As(err, &refused)
			switch {
			case err == nil:
				t.Fatal("no error")
			case tt.code != "" && (refused == nil || refused.Code != tt.code):
				t.Errorf("error %v, want one of code %s", err, tt.code)
			case tt.code == "" && (refused != nil || !strings.Contains(err.Error(), tt.text)):
				t.Errorf("error %q, want %q in it", err, tt.text)
			}
		})
	}
}

func TestClientTellsHowWorkEnded(t *testing.T) {
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
			for p, err := range c.Replay(t.Context(), api.Selection{}) {
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

func TestClientTurnsPages(t *testing.T) {
	c := newClient(t, func(w http.ResponseWriter, r *http.Request) {
		switch after := r.FormValue(api.ParamAfter); after {
		case "":
			io.WriteString(w, `{"dead":[{"key":"1"},{"key":"2"}],"after":"2"}`)
		case "2":
			io.WriteString(w, `{"dead":[{"key":"3"}]}`)
		default:
			t.Errorf("after=%s", after)
		}
	})
	all := c.Dead(t.Context(), api.DeadFilter{})
	for range 2 { // from the start each time
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

func TestAllDestinations(t *testing.T) {
	var asked []string
	c := newClient(t, func(w http.ResponseWriter, r *http.Request) {
		after := r.URL.Query().Get(api.ParamAfter)
		asked = append(asked, after)
		next := map[string]string{"": "0:a", "0:a": "0:b"}[after]
		json.NewEncoder(w).Encode(api.Destinations{Destinations: []api.Destination{{ID: "behind " + after}}, After: next, Total: 3})
	})
	all, err := c.AllDestinations(t.Context(), api.DestinationFilter{})
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"", "0:a", "0:b"}; !slices.Equal(asked, want) {
		t.Errorf("asked behind %q, want %q", asked, want)
	}
	if len(all.Destinations) != 3 || all.Destinations[2].ID != "behind 0:b" || all.Total != 3 || all.After != "" {
		t.Errorf("all destinations: %+v", all)
	}
}
