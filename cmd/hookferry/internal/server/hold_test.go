package server

import (
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestNewSettingsEndAHoldAtOnce enables a destination by a reload, and another one by the admin API,
// which also deletes it and makes it again. Their deliveries are attempted at once.
func TestNewSettingsEndAHoldAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		named, made := w.sink(), w.sink()
		file := func(destinations string) string {
			return "webhooks: {allow: [127.0.0.1]}\nsources: [{name: web, keys: [k1], destinations: [crm]}]\n" + destinations
		}
		crm := func(disabled bool) string {
			return file(fmt.Sprintf("destinations: [{id: crm, disabled: %v, endpoints: [{url: %q}]}]\n", disabled, named.url))
		}
		s := w.start(crm(true))
		reload := func(text string) {
			s.write(text)
			s.reload <- os.Interrupt // any signal
			synctest.Wait()
		}
		change := func(method, document string) {
			t.Helper()
			path := "/api/v1/destinations/shop"
			if method == "DELETE" {
				path += "?waiting=keep"
			}
			r, err := http.NewRequest(method, s.admin()+path, strings.NewReader(document))
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("Content-Type", "application/json")
			if status, text := w.do(w.client, r); status != 200 {
				t.Fatalf("%s: status %d, want 200: %s", method, status, text)
			}
		}
		atOnce := func(to *sink, event string, change func()) {
			t.Helper()
			if status := s.call("k1", event); status != 200 {
				t.Fatalf("status %d, want 200", status)
			}
			time.Sleep(10*time.Minute + 2*time.Second)
			change()
			begin := time.Now()
			to.want(event)
			if took := time.Since(begin); took > time.Second {
				t.Errorf("%s comes %v after the change, want at most 1 s", event, took)
			}
		}
		atOnce(named, "Enabled", func() { reload(crm(false)) })
		reload("webhooks: {allow: [127.0.0.1]}\nsources: [{name: web, keys: [k1]}]\n")
		shop := `{"sources": ["web"], "endpoints": [{"url": "` + made.url + `"}]}`
		change("PUT", `{"disabled": true, `+shop[1:])
		atOnce(made, "Changed", func() { change("PATCH", `{"disabled": false}`) })
		change("PATCH", `{"disabled": true}`)
		atOnce(made, "Made", func() { change("DELETE", ""); change("PUT", shop) })
	})
}
