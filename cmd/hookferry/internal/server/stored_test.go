package server

import (
	"net/http"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
)

// TestStoredDestinationGetsCallsAtOnce makes a destination while the server runs. The destination
// gets the calls of its sources at once, after a reload, and after a restart. If the file names a
// destination with the same id, the one in the file wins.
func TestStoredDestinationGetsCallsAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		made, named := w.sink(), w.sink()
		const file = "webhooks: {allow: [127.0.0.1]}\nsources:\n- {name: web, keys: [web-key]}\n- {name: app, keys: [app-key]}\n"
		s := w.start(file)
		change := func(method, path, document string, want int) {
			t.Helper()
			r, err := http.NewRequest(method, s.admin()+path, strings.NewReader(document))
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("Content-Type", "application/json")
			if status, text := w.do(w.client, r); status != want {
				t.Fatalf("%s %s: status %d, want %d: %s", method, path, status, want, text)
			}
		}
		call := func(key, event string) {
			t.Helper()
			if status := s.call(key, event); status != 200 {
				t.Fatalf("call %q: status %d, want 200", event, status)
			}
		}
		const path = "/api/v1/destinations/crm"
		change("PUT", path, `{"sources": ["web"], "endpoints": [{"url": "`+made.url+`"}]}`, 200)
		call("web-key", "made")
		made.want("made")
		call("app-key", "of another source")

		change("PATCH", path, `{"sources": ["web", "app"]}`, 200)
		call("app-key", "of both sources")
		made.want("of both sources")

		s.write(file + "log: {access: 1}\n")
		s.await(`msg="new configuration"`)
		call("web-key", "after a reload")
		made.want("after a reload")

		if err := s.stop(); err != nil {
			t.Fatal(err)
		}
		s = w.start(file)
		call("web-key", "after a restart")
		made.want("after a restart")

		s.write("destinations: [{id: crm, endpoints: [{url: '" + named.url + "'}]}]\n" + strings.ReplaceAll(file, "-key]}", "-key], destinations: [crm]}"))
		s.await(`msg="new configuration"`)
		call("web-key", "named")
		named.want("named")
		change("DELETE", path+"?waiting=keep", "", 409)

		s.write(file)
		s.await(`(?s)msg="new configuration".*msg="new configuration"`)
		call("web-key", "stored")
		made.want("stored")
		change("DELETE", path+"?waiting=keep", "", 200)
		call("web-key", "deleted")
		synctest.Wait() // the outcomes are stored: a destination with waiting deliveries is listed
		var all api.Destinations
		if s.read(api.DestinationsPath, &all); all.Total != 0 {
			t.Errorf("%d destinations, want none", all.Total)
		}
	})
}
