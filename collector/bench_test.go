package collector_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/hookferry/analytics/collector"
	"github.com/hookferry/analytics/event"
)

// A sink accepts events and keeps the latest body, so that memory stays in use as in a queue.
type sink struct{ last []byte }

func (s *sink) ForwardEvents(_ context.Context, _ []string, events ...event.Event) error {
	s.last = events[len(events)-1].Body
	return nil
}

// benchBatch returns a batch of n calls of about 450 bytes each.
func benchBatch(n int) []byte {
	var b bytes.Buffer
	b.WriteString(`{"context":{"library":{"name":"analytics-go","version":"2.1.0"}},"sentAt":"2026-03-01T12:00:00.000Z","messageId":"b","batch":[`)
	for i := range n {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `{"type":"track","messageId":"6ba7b810-9dad-41d1-80b4-%012x","timestamp":"2026-03-01T11:59:50.250Z","userId":"user-%d","event":"Order Completed","properties":{"orderId":"50314b8e9bcf000000000000","total":27.5,"currency":"EUR","coupon":"SUMMER","products":3,"first":false,"category":"Games","shipping":3,"tax":2.25,"referrer":"https://example.com/cart?step=3&from=mail"},"context":{"locale":"de-DE","timezone":"Europe/Berlin"}}`, i, i%17)
	}
	b.WriteString(`]}`)
	return b.Bytes()
}

// BenchmarkHandler measures the collector without a network and without a store.
func BenchmarkHandler(b *testing.B) {
	for _, n := range []int{1, 100, 1000} {
		for _, encoding := range []string{"none", "gzip"} {
			b.Run(fmt.Sprintf("calls=%d/encoding=%s", n, encoding), func(b *testing.B) {
				body := benchBatch(n)
				header := http.Header{"Authorization": {basic}}
				size := len(body)
				if encoding == "gzip" {
					body = zipped(body)
					header.Set("Content-Encoding", "gzip")
				}
				h := newHandler(b, &sink{}, func(c *collector.Config) {
					c.Sources = collector.Keys(map[string]collector.Source{"key": {Destinations: []string{"crm"}}})
				})
				rd := bytes.NewReader(body)
				r := httptest.NewRequest("POST", "/v1/batch", nil)
				r.Header, r.Body, r.ContentLength = header, io.NopCloser(rd), int64(len(body))
				w := &discard{header: http.Header{}}
				b.ReportAllocs()
				b.SetBytes(int64(size))
				for b.Loop() {
					rd.Reset(body)
					h.ServeHTTP(w, r)
					if w.status != 200 {
						b.Fatalf("status %d", w.status)
					}
				}
				b.ReportMetric(float64(n*b.N)/b.Elapsed().Seconds(), "calls/s")
			})
		}
	}
}

// discard is a ResponseWriter that keeps only the status.
type discard struct {
	header http.Header
	status int
}

func (d *discard) Header() http.Header         { return d.header }
func (d *discard) WriteHeader(status int)      { d.status = status }
func (d *discard) Write(b []byte) (int, error) { return len(b), nil }

// BenchmarkServer measures the collector over loopback connections, including the client.
func BenchmarkServer(b *testing.B) {
	srv := httptest.NewServer(newHandler(b, &sink{}))
	defer srv.Close()
	const n = 100
	body := benchBatch(n)
	b.ReportAllocs()
	b.SetBytes(int64(len(body)))
	for b.Loop() {
		req, err := http.NewRequest("POST", srv.URL+"/v1/batch", bytes.NewReader(body))
		if err != nil {
			b.Fatal(err)
		}
		req.Header.Set("Authorization", basic)
		resp, err := srv.Client().Do(req)
		if err != nil {
			b.Fatal(err)
		}
		io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		if resp.StatusCode != 200 {
			b.Fatal(resp.Status)
		}
	}
	b.ReportMetric(float64(n*b.N)/b.Elapsed().Seconds(), "calls/s")
}
