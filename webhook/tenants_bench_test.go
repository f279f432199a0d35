package webhook_test

import (
	"context"
	"flag"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hookferry/analytics/event"
	"github.com/hookferry/analytics/internal/testkit"
	"github.com/hookferry/analytics/tenants"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/filequeue"
)

var (
	tenantsCount = flag.Int("tenants.count", 100, "tenants of BenchmarkTenants, with three destinations each, of which one in a hundred hangs")
	tenantsRate  = flag.Int("tenants.rate", 200, "events a second with which BenchmarkTenants begins; it goes on with half as many more")
	tenantsTurn  = flag.Duration("tenants.turn", 100*time.Millisecond, "how long BenchmarkTenants offers a rate")
)

// BenchmarkTenants reports the highest rate of events that reaches the healthy destinations of many
// tenants, by Send and through a folder, while one destination in a hundred hangs. For this rate it
// reports the time from Send to arrival, and as x_p99 what that was while the hanging ones were paused,
// divided by what it is while they are not. If not even the first rate was carried, it reports that one.
// The receivers run in two other processes.
func BenchmarkTenants(b *testing.B) {
	for b.Loop() {
		s := &isolation{b: b, queue: testkit.Must(filequeue.Open(b.TempDir(), filequeue.Config{}))}
		var fine string
		s.watch, fine = startProcess(b, "stopwatch")
		_, other := startProcess(b, "stopwatch")
		local := []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}
		directory := testkit.Must(tenants.New(s.queue, tenants.Config{AllowAddresses: local}))
		names := s.settle(directory, "http://"+fine+"/hook", "http://"+other+"/hang")
		s.Forwarder = testkit.Must(webhook.New(webhook.Config{Store: s.queue, Directory: directory, AllowAddresses: local}))
		run := make(chan error, 1)
		go func() { run <- s.Run(context.Background()) }() // ended below
		s.pause()
		s.send(names, 100, new(arrivals)) // makes connections and grows the file
		for rate := *tenantsRate; ; rate += rate / 2 {
			var before, during arrivals
			s.send(names, rate, &before)
			s.resume()
			s.send(names, rate, &during)
			s.pause()
			carried := during.rate() >= 0.95*float64(rate)*3*0.99
			if !carried && rate > *tenantsRate {
				break
			}
			b.ReportMetric(float64(rate), "events/s")
			b.ReportMetric(during.rate(), "arrived/s")
			b.ReportMetric(percentile(during.ages, 0.5), "p50-ms")
			b.ReportMetric(percentile(during.ages, 0.99), "p99-ms")
			b.ReportMetric(percentile(before.ages, 0.99)/percentile(during.ages, 0.99), "x_p99")
			if !carried {
				break // so the result is of a rate that was not carried
			}
		}
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		s.Shutdown(ctx) // cuts off attempts that hang
		if err := <-run; err != nil {
			b.Error(err)
		}
		if err := s.queue.Close(); err != nil {
			b.Error(err)
		}
	}
	b.ReportMetric(0, "ns/op")
}

// settle makes the tenants, and returns their ids.
func (s *isolation) settle(d *tenants.Directory, fine, hanging string) (names []string) {
	for i := range *tenantsCount {
		names = append(names, fmt.Sprintf("tenant-%05d", i))
	}
	var callers sync.WaitGroup
	for c := range 8 {
		callers.Go(func() {
			for i := c; i < len(names); i += 8 {
				if _, err := d.CreateTenant(s.b.Context(), tenants.Tenant{ID: names[i]}, ""); err != nil {
					s.b.Error(err)
				}
				for j := range 3 {
					url := fine
					if (3*i+j)%100 == 99 {
						url = hanging
					}
					made, _, err := d.Create(s.b.Context(), tenants.Destination{Tenant: names[i], Settings: webhook.Settings{Endpoints: []webhook.Endpoint{{URL: url}}}}, "")
					if err != nil {
						s.b.Error(err)
					} else if url == hanging {
						s.mu.Lock()
						s.troubled = append(s.troubled, made.ID)
						s.mu.Unlock()
					}
				}
			}
		})
	}
	callers.Wait()
	return names
}

// send sends events to tenants in turn, for -tenants.turn and at this rate, and sets a to what has
// arrived.
func (s *isolation) send(names []string, rate int, a *arrivals) {
	const callers = 32
	s.take()
	begin := time.Now()
	every := time.Second * callers / time.Duration(rate)
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() {
			to := i
			for at := begin.Add(every * time.Duration(i) / callers); at.Sub(begin) < *tenantsTurn; at = at.Add(every) {
				time.Sleep(time.Until(at)) // keeps the rate
				data := map[string]string{"made": strconv.FormatInt(time.Now().UnixNano(), 10), "x": strings.Repeat("x", 400)}
				if _, err := s.Send(context.Background(), names[to%len(names)], &event.Custom{Type: "tested", Data: data}); err != nil {
					s.b.Error(err)
					return
				}
				to += callers
			}
		})
	}
	wg.Wait()
	a.time = time.Since(begin)
	a.ages, _ = s.take()
}
