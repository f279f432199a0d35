package collector_test

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"github.com/hookferry/analytics"
)

// TestCollectorTakesWhatClientTakes shows that the collector accepts every call that the client
// accepts, including the largest, the deepest and the most unusual ones.
func TestCollectorTakesWhatClientTakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &forwarder{}
		n, address := serve(t, &http.Server{Handler: newHandler(t, f)})
		transport := &http.Transport{DialContext: n.DialContext}
		defer transport.CloseIdleConnections()
		c := analytics.New("key")
		c.Endpoint, c.Transport = "http://"+address+"/", transport

		largest := ""
		for n := analytics.MaxCallSize; ; n-- { // until the client accepts the call
			largest = strings.Repeat("x", n)
			err := c.Track(&analytics.Track{UserId: "u", Event: largest, MessageId: "largest"})
			if err == nil {
				break
			}
			if !errors.As(err, new(*analytics.SizeError)) {
				t.Fatal(err)
			}
		}
		strange := map[string]any{"10": "ten", "2": "two", "__proto__": nil, "\u2028": "<&>\xff", "n": 1e21}
		deepest := any(1)
		for range 998 { // the map and the call around them are two more levels
			deepest = []any{deepest}
		}
		for _, err := range []error{
			c.Track(&analytics.Track{UserId: "u", Event: "e", Properties: map[string]any{"d": deepest}, MessageId: "deepest"}),
			c.Identify(&analytics.Identify{UserId: "u", AnonymousId: "a", Traits: strange, MessageId: "identify"}),
			c.Track(&analytics.Track{AnonymousId: "a", Event: "e", Properties: strange, Context: strange, MessageId: "track"}),
			c.Page(&analytics.Page{UserId: "u", Category: "c", Name: "n", Traits: strange, Timestamp: "2026-3-1T11:59:58+0100", MessageId: "page"}),
			c.Screen(&analytics.Screen{UserId: "u", Name: "n", MessageId: strings.Repeat("\U0001F98A", analytics.MaxMessageID)}),
			c.Group(&analytics.Group{UserId: "u", GroupId: "g", MessageId: "group"}),
			c.Alias(&analytics.Alias{UserId: "u", PreviousId: "p", MessageId: "alias"}),
			c.Track(&analytics.Track{UserId: "u", Event: "e", MessageId: "off", Integrations: map[string]any{"All": false}}),
			c.Close(),
		} {
			if err != nil {
				t.Error(err)
			}
		}

		var got []string
		for _, e := range f.events() {
			id := e.ID
			if strings.HasPrefix(id, "sha256:") {
				id = "digest"
			}
			if e.Off {
				id += " off"
			}
			got = append(got, e.Type+" "+id)
			if !e.Off && !strings.Contains(string(e.Body), `"library":{"name":"analytics-go"`) {
				t.Errorf("%s: the body %s lacks the client's context", id, e.Body)
			}
		}
		want := []string{"track largest", "track deepest", "identify identify", "track track", "page page", "screen digest", "group group", "alias alias", "track off off"}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("events (-want +got):\n%s", diff)
		}
	})
}
