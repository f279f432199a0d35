package admin

import (
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
	"github.com/hookferry/analytics/cmd/hookferry/internal/config"
)

// What was delivered is found, and sent again once.
func TestDelivered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServerWith(t, func(c *config.Settings) { c.History.MaxAge = time.Hour })
		s.run()
		for _, id := range []string{"a1", "a2", "a3"} {
			s.track("crm", id)
			time.Sleep(time.Minute)
		}
		list := func(query string) (ids string, after string) {
			page := ask[api.Delivered](s, 200, "GET", api.DeliveredPath+"?destination=crm"+query, nil)
			for _, d := range page.Delivered {
				if ids += " " + d.ID; d.Key == "" || d.Type != "track" || d.Delivered.Before(d.Accepted) {
					t.Errorf("delivered%s: %+v", query, d)
				}
			}
			return strings.TrimSpace(ids), page.After
		}
		for query, want := range map[string]string{
			"": "a3 a2 a1", "&id=a2": "a2", "&user=nobody": "", "&to=1999-01-01T00:00:00Z": "",
		} {
			if got, _ := list(query); got != want {
				t.Errorf("delivered%s: %q, want %q", query, got, want)
			}
		}
		first, after := list("&limit=2")
		if rest, end := list("&limit=2&after=" + url.QueryEscape(after)); first != "a3 a2" || rest != "a1" || end != "" {
			t.Errorf("pages %q and %q, then %q", first, rest, end)
		}
		for range 2 { // what was sent again is not sent again with it
			if p := s.work("POST", api.ResendPath, `{"destination":"crm","id":"a2"}`); p.Done != 1 {
				t.Errorf("sent again: %+v, want one", p)
			}
			time.Sleep(time.Minute)
		}
		if got, _ := list(""); got != "a2 a2 a3 a2 a1" {
			t.Errorf("delivered: %q, want a2 twice more", got)
		}
	})
}

func TestNothingDeliveredIsKept(t *testing.T) {
	s := newServer(t, nil)
	for _, e := range []api.Error{ask[api.Error](s, 404, "GET", api.DeliveredPath, nil), ask[api.Error](s, 404, "POST", api.ResendPath, `{}`)} {
		if !strings.Contains(e.Message, "history.maxAge") {
			t.Errorf("%+v, want what has it kept", e)
		}
	}
}
