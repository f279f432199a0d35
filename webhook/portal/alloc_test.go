//go:build !race

// With the race detector, allocations vary.

package portal_test

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/hookferry/analytics/webhook/portal"
)

// A question about an endpoint of another tenant takes the same work as one about an endpoint that
// does not exist. So the time of the answer reveals nothing. BenchmarkForeign measures the times.
func TestForeignAndUnknownIDsTakeTheSameWork(t *testing.T) {
	inWorld(t, portal.Config{TestsPerMinute: 1000, ResendsPerMinute: 1000}, func(w *world) {
		w.network.Receiver("https://acme.example/", "")
		id, _ := w.create("https://acme.example/")
		w.forward("acme", "invoice.paid")
		time.Sleep(5 * time.Second)
		page := w.do(200, "GET", "/api/v1/deliveries?limit=1&endpoint="+id, nil)
		version := w.do(200, "GET", "/api/v1/endpoints/"+id, nil)["version"].(string)
		delivery := items(page)[0]["id"].(string)
		unknown := strings.Repeat("0", len(id))
		foreign := walk(id, delivery, "", version)
		nobodys := walk(unknown, unknown+delivery[len(id):], "", version)
		for i := range foreign {
			work := func(i int, target string) float64 {
				return testing.AllocsPerRun(20, func() { w.send("globex", foreign[i].method, target, foreign[i].body) })
			}
			if a, b := work(i, foreign[i].target), work(i, nobodys[i].target); math.Abs(a-b) > 1 { // a buffer of a pool may be gone
				t.Errorf("%s %s: %v allocations for what another tenant has, %v for what nobody has", foreign[i].method, foreign[i].target, a, b)
			}
		}
	})
}
