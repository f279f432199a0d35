package admin

import (
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
	"github.com/hookferry/analytics/cmd/hookferry/internal/config"
	"github.com/hookferry/analytics/cmd/hookferry/internal/feed"
)

// TestDeliveredIsListedAndResent lists past deliveries, and sends one again.
func TestDeliveredIsListedAndResent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServerWith(t, func(c *config.Settings) { c.History.MaxAge = time.Hour })
		s.run()
		for _, id := range []string{"a1", "a2", "a3"} {
			s.track("crm", id)
			time.Sleep(time.Minute)
		}
		list := func(query string) (ids string, after string) {
			page := ask[api.Page[api.Delivery]](s, 200, "GET", api.DeliveredPath+"?destination=crm"+query, nil)
			for _, d := range page.Items {
				if ids += " " + d.ID; d.Key == "" || d.Tries != 1 || len(d.Attempts) != 1 || d.Attempts[0].Reason != "" || d.Type != "track" || d.Ended.Before(d.Accepted) {
					t.Errorf("GET delivered%s: %+v, want a key, the type, both times and the attempt", query, d)
				}
			}
			return strings.TrimSpace(ids), page.After
		}
		for query, want := range map[string]string{
			"": "a3 a2 a1", "&id=a2": "a2", "&user=nobody": "", "&to=1999-01-01T00:00:00Z": "",
		} {
			if got, _ := list(query); got != want {
				t.Errorf("GET delivered%s: ids %q, want %q", query, got, want)
			}
		}
		first, after := list("&limit=2")
		if rest, end := list("&limit=2&after=" + url.QueryEscape(after)); first != "a3 a2" || rest != "a1" || end != "" {
			t.Errorf("the pages have %q and %q, and then %q, want \"a3 a2\", \"a1\" and the end", first, rest, end)
		}
		for range 2 { // the second resend does not repeat the delivery of the first
			if p := s.work("POST", api.ResendPath, `{"destination":"crm","id":"a2"}`); p.Done != 1 {
				t.Errorf("resend: %+v, want 1 done", p)
			}
			time.Sleep(time.Minute)
		}
		if got, _ := list(""); got != "a2 a2 a3 a2 a1" {
			t.Errorf("GET delivered: ids %q, want a2 twice more", got)
		}
	})
}

// TestStoryIsFoundInTheStore shows that the server finds a delivery in the store if its memory has
// lost the delivery, both a waiting delivery and a past one.
func TestStoryIsFoundInTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServerOn(t, inMemory(), func(c *config.Settings) { c.History.MaxAge = time.Hour }, func(c *Config) { c.Feed = feed.New() })
		s.run()
		s.track("crm", "a1")
		time.Sleep(time.Second)
		s.receiver.answers(503)
		s.track("crm", "a2")
		synctest.Wait()
		for _, tt := range []struct {
			query, state string
			tries        int
		}{{"&id=a1", "delivered", 1}, {"&id=a2", "waiting", 1}} {
			got := ask[api.Delivery](s, 200, "GET", api.StoryPath+"?destination=crm"+tt.query, nil)
			if got.State != tt.state || got.Tries != tt.tries || got.Event != "Signed <Up>" || got.User != "u1" || len(got.Body) == 0 ||
				got.Due.IsZero() == (tt.state == "waiting") || got.Ended.IsZero() == (tt.state == "delivered") {
				t.Errorf("story%s: %+v, want the state %s with all fields", tt.query, got, tt.state)
			}
			ask[api.Error](s, 404, "GET", api.StoryPath+"?destination=crm&source=other"+tt.query, nil)
		}
		ask[api.Error](s, 404, "GET", api.StoryPath+"?destination=shop/eu&id=a2", nil)
	})
}

func TestDeliveredNamesTheSettingThatIsOff(t *testing.T) {
	s := newServer(t, nil)
	for _, e := range []api.Error{ask[api.Error](s, 404, "GET", api.DeliveredPath, nil), ask[api.Error](s, 404, "POST", api.ResendPath, `{}`)} {
		if !strings.Contains(e.Message, "history.maxAge") {
			t.Errorf("the error is %+v, want one that names history.maxAge", e)
		}
	}
}
