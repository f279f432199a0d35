package lanes

import (
	"fmt"
	"testing"

	"github.com/hookferry/analytics/webhook"
)

// BenchmarkTable hands out 64 deliveries and has them wait again: they are due at
// once, or later and at different times, so that all are sorted.
func BenchmarkTable(b *testing.B) {
	for _, lanes := range []int{10, 10_000} {
		for _, when := range []string{"now", "later"} {
			b.Run(fmt.Sprintf("lanes=%d/due=%s", lanes, when), func(b *testing.B) {
				table := New(nil)
				now, seq := int64(0), uint64(0)
				order := func() Order {
					seq++
					o := Order{At: now, Seq: seq}
					if when == "later" {
						o.At += 1 + int64(seq*7919%10_000)
					}
					return o
				}
				for i := range 50_000 {
					table.Add(table.Lane(fmt.Sprint("d", i%lanes)), &Item{Order: order()}, now)
				}
				out := make([]webhook.Delivery, 0, 64)
				b.ReportAllocs()
				n := 0
				for b.Loop() {
					now += 13
					take := Take{Max: 64, Until: now + 1_000_000, Out: out}
					table.Begin(&take, now)
					table.Serve(&take, now)
					table.End()
					for i := range take.Out {
						table.Move(table.Leased(take.Out[i].Claim), order(), now)
					}
					n += len(take.Out)
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(n), "ns/delivery")
			})
		}
	}
}
