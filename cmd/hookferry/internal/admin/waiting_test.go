package admin

import (
	"net/url"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
)

// TestWaitingIsListedRetriedAndDiscarded lists waiting deliveries, makes them due now, and discards
// them.
func TestWaitingIsListedRetriedAndDiscarded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t, nil)
		s.receiver.answers(503)
		s.track("crm", "a1", "a2", "a3")
		s.run()
		synctest.Wait()
		list := func(query string) (ids []string, after string) {
			page := ask[api.Page[api.Delivery]](s, 200, "GET", api.WaitingPath+"?destination=crm"+query, nil)
			for _, d := range page.Items {
				if ids = append(ids, d.ID); d.Type != "track" || d.Tries == 0 || len(d.Attempts) != 1 || d.Attempts[0].Status != 503 || d.Expires.IsZero() || !d.Due.After(d.Attempts[0].At) {
					t.Errorf("GET waiting%s: delivery %+v, want one attempt with the status 503", query, d)
				}
			}
			return ids, page.After
		}
		for query, want := range map[string]string{"": "a1 a2 a3", "&id=a2": "a2", "&user=nobody": "", "&event=nothing": ""} {
			if got, _ := list(query); len(got) != len(strings.Fields(want)) {
				t.Errorf("GET waiting%s: ids %q, want %q in any order", query, got, want)
			}
		}
		first, after := list("&limit=2")
		rest, end := list("&limit=2&after=" + url.QueryEscape(after))
		if len(first) != 2 || len(rest) != 1 || after == "" || end != "" {
			t.Errorf("the pages have %q and %q, after %q and %q, want 2 and 1 deliveries and an end", first, rest, after, end)
		}

		change := func(path, body string) api.Changed { return ask[api.Changed](s, 200, "POST", path, body) }
		if n := change(api.WaitingDiscardPath, `{"destination":"crm","id":"a3"}`); n != (api.Changed{Changed: 1}) {
			t.Errorf("discard: %+v, want 1 changed", n)
		}
		s.receiver.answers(200)
		if n := change(api.WaitingRetryPath, `{"destination":"crm"}`); n != (api.Changed{Changed: 2}) {
			t.Errorf("retry: %+v, want 2 changed", n)
		}
		if n := change(api.WaitingRetryPath, `{"destination":"gone"}`); n != (api.Changed{}) {
			t.Errorf("retry of a destination without deliveries: %+v, want none changed", n)
		}
		if totals := ask[api.Status](s, 200, "GET", api.StatusPath, nil).Totals; totals.Discarded != 1 {
			t.Errorf("the status counts %d discarded deliveries, want 1", totals.Discarded)
		}
		for path, body := range map[string]string{api.WaitingRetryPath: `{}`, api.WaitingDiscardPath: `{"id":"a1"}`} {
			if e := ask[api.Error](s, 400, "POST", path, body); e.Field != "destination" {
				t.Errorf("POST %s %s: error %+v, want the field destination", path, body, e)
			}
		}
	})
}
