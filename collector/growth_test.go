package collector_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/hookferry/analytics/collector"
)

// TestGrowthOfABatchIsBounded: the webhook bodies of a request, times the destinations, may have
// 4 MB plus four times the size of the request. The handler rejects the calls beyond that bound
// one by one. It refuses the request only if no call fits.
func TestGrowthOfABatchIsBounded(t *testing.T) {
	x := strings.Repeat("x", 32_000)
	context := `{"a":"` + x + `"}`
	const page = `{"type":"page","userId":"u"}`
	large := `{"type":"track","userId":"u","event":"` + x + `"}`
	times := func(n int, call string) []string {
		return strings.Split(strings.Repeat(call+"\n", n)[:n*(len(call)+1)-1], "\n")
	}
	join := func(parts ...[]string) (all []string) {
		for _, p := range parts {
			all = append(all, p...)
		}
		return all
	}
	padded := `{"type":"track","userId":"u","event":"` + strings.Repeat("x", 1000) + `"}`
	for _, tt := range []struct {
		name         string
		calls        []string
		context      string
		destinations int
		accepted     int
		wrong        int // number of rejected calls with another code than too_large
		refused      bool
	}{
		{"a context that fits", times(120, page), context, 1, 120, 0, false},
		{"a context that does not fit", times(2500, page), context, 1, 143, 0, false},
		{"a context for ten destinations", times(2500, page), context, 10, 14, 0, false},
		{"a context for no destination", times(2500, page), context, 0, 143, 0, false},
		{"calls with contexts of their own", times(2500, `{"type":"page","userId":"u","context":{"a":1}}`), context, 1, 149, 0, false},
		{"calls that are switched off take nothing", times(2500, `{"type":"page","userId":"u","integrations":{"Webhooks":false}}`), context, 1, 2500, 0, false},
		{"wrong calls take nothing", join(times(2000, `{"type":"page"}`), times(100, page)), context, 1, 100, 2000, false},
		{"a context of duplicates", times(2500, page), `{` + strings.Repeat(`"a":1,`, 5000) + `"a":2}`, 1, 2500, 0, false},
		{"numbers", times(100, `{"type":"track","userId":"u","event":"e","properties":{"a":[`+strings.Repeat("1e20,", 800)+`1]}}`), `{}`, 20, 16, 0, false},
		{"full batches for nine destinations", times(1000, callOf(490)), `{}`, 9, 1000, 0, false},
		{"small calls after calls that do not fit", join(times(10, large), times(5, page)), `{}`, 200, 5, 0, false},
		{"a call that fits after 200 that do not", join(times(200, padded), times(1, page)), context, 160, 1, 0, false},
		{"a call that no longer fits after 400 that do not", join(times(400, padded), times(1, page)), context, 185, 0, 0, true},
		{"no call fits", times(10, large), `{}`, 200, 0, 0, true},
		{"no call fits, and one is wrong", join(times(1, `{}`), times(1, large)), `{}`, 200, 0, 1, true},
	} {
		body := `{"batch":[` + strings.Join(tt.calls, ",") + `],"context":` + tt.context + `}`
		f := &forwarder{}
		h := newHandler(t, f, func(c *collector.Config) {
			c.Sources = collector.Keys(map[string]collector.Source{"key": {Destinations: strings.Split(strings.Repeat("d", tt.destinations), "")}})
		})
		a := send(t, h, "POST", "/v1/batch", auth, bytes.NewReader(zipped([]byte(body))))
		if tt.refused {
			if a.status != 400 || a.Code != "too_large" || f.calls() > 0 {
				t.Errorf("%s: answered %d %.200s, forwarded %d times, want 400 and nothing forwarded", tt.name, a.status, a.body, f.calls())
			}
			continue
		}
		allowed, size, wrong := 4<<20+4*len(body), 0, 0
		for _, e := range f.events() {
			size += len(e.Body) * tt.destinations
		}
		for _, r := range a.Rejected {
			if r.Code != "too_large" {
				wrong++
			} else if !strings.Contains(r.Message, fmt.Sprint(allowed)) {
				t.Errorf("%s: rejected with %q, want the bound of %d", tt.name, r.Message, allowed)
			}
		}
		accepted := len(tt.calls) - len(a.Rejected)
		if tt.destinations > 0 && accepted != len(f.events()) {
			t.Errorf("%s: %d calls accepted and %d forwarded, want as many", tt.name, accepted, len(f.events()))
		}
		if a.status != 200 || accepted != tt.accepted || wrong != tt.wrong || size > allowed {
			t.Errorf("%s: answered %d %.200s: %d accepted and %d wrong, want %d and %d; %d bytes, want at most %d", tt.name, a.status, a.body, accepted, wrong, tt.accepted, tt.wrong, size, allowed)
		}
	}
}

// TestGrowthOfACallIsBounded shows that the handler refuses a single call whose webhooks are beyond
// the bound of growth.
func TestGrowthOfACallIsBounded(t *testing.T) {
	for _, tt := range []struct {
		destinations, size int
		want               int
	}{{100, 32 << 10, 200}, {1000, 4000, 200}, {1000, 5000, 400}} {
		f := &forwarder{}
		h := newHandler(t, f, func(c *collector.Config) {
			c.Sources = collector.Keys(map[string]collector.Source{"key": {Destinations: strings.Split(strings.Repeat("d", tt.destinations), "")}})
		})
		a := send(t, h, "POST", "/v1/track", auth, strings.NewReader(callOf(tt.size)))
		if a.status != tt.want || (a.Code == "too_large") != (tt.want == 400) || f.calls() > 0 != (tt.want == 200) {
			t.Errorf("a call of %d bytes for %d destinations: answered %d %s, want %d", tt.size, tt.destinations, a.status, a.body, tt.want)
		}
	}
}
