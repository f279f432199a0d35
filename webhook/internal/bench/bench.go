// Package bench measures the speed of stores, and of deliveries against a bare http.Transport. It is
// for the benchmarks of the forwarder and of stores.
package bench

import (
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/hookferry/analytics/internal/testkit"
	"github.com/hookferry/analytics/signature"
	"github.com/hookferry/analytics/webhook/internal/nullreceiver"
)

// Main must be called first in TestMain. In a process that Receiver has started, it runs
// the receiver and does not return.
func Main() {
	if os.Getenv("HOOKFERRY_NULL_RECEIVER") != "" {
		nullreceiver.Run()
		os.Exit(0)
	}
}

// Receiver starts a nullreceiver in a separate process, and returns its URL. The process
// runs the test binary; see Main.
func Receiver(b *testing.B) string {
	b.Helper()
	_, addr := Start(b, "HOOKFERRY_NULL_RECEIVER=1")
	return "http://" + addr + "/hook"
}

// Body is a webhook body of 450 bytes.
var Body = func() []byte {
	const head, tail = `{"version":1,"type":"track","userId":"user-1","event":"Order Completed","properties":{"note":"`, `"},"timestamp":"2026-01-02T03:04:05.678Z"}`
	return []byte(head + strings.Repeat("x", 450-len(head)-len(tail)) + tail)
}()

// Bare posts n bodies with a bare http.Transport, and returns how long that took.
// concurrency is how many goroutines post at once.
func Bare(b *testing.B, rawURL string, n, concurrency int) time.Duration {
	sign, err := signature.Sign(Body, "shh")
	if err != nil {
		b.Fatal(err)
	}
	header := http.Header{"Content-Type": {"application/json"}, "User-Agent": {"Hookferry/1.0"}, signature.Header: {sign}}
	return testkit.Bare(b, rawURL, header, Body, n, concurrency)
}
