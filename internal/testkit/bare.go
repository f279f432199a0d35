package testkit

import (
	"bytes"
	"io"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Bare posts body n times to rawURL by an http.Transport alone, in concurrency goroutines, and
// returns how long that took. Benchmarks compare deliveries with it.
func Bare(tb testing.TB, rawURL string, header http.Header, body []byte, n, concurrency int) time.Duration {
	tb.Helper()
	u, err := url.Parse(rawURL)
	if err != nil {
		tb.Fatal(err)
	}
	t := &http.Transport{MaxIdleConnsPerHost: concurrency, DisableCompression: true}
	defer t.CloseIdleConnections()
	var left atomic.Int64
	left.Store(int64(n))
	begin := time.Now()
	var posting sync.WaitGroup
	for range concurrency {
		posting.Go(func() {
			for left.Add(-1) >= 0 {
				resp, err := t.RoundTrip(&http.Request{
					Method: "POST", URL: u, Host: u.Host, Header: header,
					Body: io.NopCloser(bytes.NewReader(body)), ContentLength: int64(len(body)),
				})
				if err != nil {
					tb.Error(err)
					return
				}
				io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
			}
		})
	}
	posting.Wait()
	return time.Since(begin)
}
