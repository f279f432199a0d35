// Package bench measures deliveries against a bare http.Transport, for the
// benchmarks of stores that are modules of their own.
package bench

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hookferry/analytics/signature"
	"github.com/hookferry/analytics/webhook"
)

// Main is called by TestMain first. It does not return in the process of a
// Receiver.
func Main() {
	if os.Getenv("HOOKFERRY_NULL_RECEIVER") != "" {
		NullReceiver()
		os.Exit(0)
	}
}

// NullReceiver is the receiver of the benchmarks, run in a process of its own:
// it takes HTTP/1.1 requests and answers 200, with as little work as can be.
// It prints its address, and ends when its standard input does.
func NullReceiver() {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(ln.Addr())
	go func() { // ends with the process
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go nullConn(c) // ends with the connection
		}
	}()
	io.Copy(io.Discard, os.Stdin)
}

func nullConn(c net.Conn) {
	defer c.Close()
	r := bufio.NewReaderSize(c, 8<<10)
	answer := []byte("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
	length := 0
	for {
		line, err := r.ReadSlice('\n')
		if err != nil {
			return
		}
		line = bytes.TrimRight(line, "\r\n")
		if v, ok := bytes.CutPrefix(line, []byte("Content-Length: ")); ok {
			length, _ = strconv.Atoi(string(v))
		}
		if len(line) > 0 {
			continue
		}
		if _, err := r.Discard(length); err != nil {
			return
		}
		if _, err := c.Write(answer); err != nil {
			return
		}
	}
}

// Receiver starts a NullReceiver in a process of its own, which Main makes of the
// test binary, and returns its URL.
func Receiver(b *testing.B) string {
	b.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "HOOKFERRY_NULL_RECEIVER=1")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		in.Close()
		cmd.Wait()
	})
	addr, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		b.Fatal(err)
	}
	return "http://" + strings.TrimSpace(addr) + "/hook"
}

// Body is a webhook body of 450 bytes.
var Body = func() []byte {
	const head, tail = `{"version":1,"type":"track","userId":"user-1","event":"Order Completed","properties":{"note":"`, `"},"timestamp":"2026-01-02T03:04:05.678Z"}`
	return []byte(head + strings.Repeat("x", 450-len(head)-len(tail)) + tail)
}()

// Bare posts n bodies by a bare http.Transport, so many at once, and returns how
// long that took.
func Bare(b *testing.B, rawURL string, n, concurrency int) time.Duration {
	u, err := url.Parse(rawURL)
	if err != nil {
		b.Fatal(err)
	}
	t := &http.Transport{MaxIdleConnsPerHost: concurrency, DisableCompression: true}
	defer t.CloseIdleConnections()
	sign, err := signature.Sign(Body, "shh")
	if err != nil {
		b.Fatal(err)
	}
	header := http.Header{"Content-Type": {"application/json"}, "User-Agent": {"Hookferry/1.0"}, signature.Header: {sign}}
	var left atomic.Int64
	left.Store(int64(n))
	begin := time.Now()
	var wg sync.WaitGroup
	for range concurrency {
		wg.Go(func() {
			for left.Add(-1) >= 0 {
				resp, err := t.RoundTrip(&http.Request{
					Method: "POST", URL: u, Host: u.Host, Header: header,
					Body: io.NopCloser(bytes.NewReader(Body)), ContentLength: int64(len(Body)),
				})
				if err != nil {
					b.Error(err)
					return
				}
				io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
			}
		})
	}
	wg.Wait()
	return time.Since(begin)
}

type endings struct {
	n, target atomic.Int64
	reached   chan struct{}
}

func (e *endings) Accepted(webhook.Accepted)   {}
func (e *endings) Attempted(webhook.Attempted) {}
func (e *endings) Ended(webhook.Ended) {
	if e.n.Add(1) == e.target.Load() {
		e.reached <- struct{}{}
	}
}

// Deliveries prints deliveries a second, and as x_bare their ratio to those of a
// bare http.Transport which posts the same bytes to the same receiver with the
// same concurrency, in turn with it. The receiver is a process of its own.
func Deliveries(b *testing.B, open func(b *testing.B) webhook.Queue) {
	const round, batch = 10_000, 100
	for _, destinations := range []int{1, 10} {
		for _, concurrency := range []int{64} {
			b.Run(fmt.Sprintf("destinations=%d/concurrency=%d", destinations, concurrency), func(b *testing.B) {
				rawURL := Receiver(b)
				q := open(b)
				ended := &endings{reached: make(chan struct{}, 1)}
				c := webhook.Config{Queue: q, Observer: ended, MaxInFlight: concurrency, MaxConcurrent: concurrency}
				for i := range destinations {
					c.Destinations = append(c.Destinations, webhook.Destination{ID: fmt.Sprint(i), Endpoints: []webhook.Endpoint{{URL: rawURL}}, Secret: "shh"})
				}
				f, err := webhook.New(c)
				if err != nil {
					b.Fatal(err)
				}
				run := make(chan error, 1)
				go func() { run <- f.Run(context.Background()) }()
				b.Cleanup(func() {
					if err := f.Shutdown(context.Background()); err != nil {
						b.Error(err)
					}
					if err := <-run; err != nil {
						b.Error(err)
					}
					q.Close()
				})
				var id atomic.Int64
				forward := func(n int) time.Duration {
					begin := time.Now()
					ended.target.Store(ended.n.Load() + int64(n))
					var left atomic.Int64
					left.Store(int64(n / batch))
					var wg sync.WaitGroup
					for range 4 {
						wg.Go(func() {
							events := make([]webhook.Event, batch)
							for left.Add(-1) >= 0 {
								at := id.Add(batch)
								for i := range events {
									events[i] = webhook.Event{ID: fmt.Sprint("message-", at+int64(i)), Type: "track", Body: Body, Received: time.Now()}
								}
								if err := f.ForwardEvents(context.Background(), []string{fmt.Sprint(int(at/batch) % destinations)}, events...); err != nil {
									b.Error(err)
									return
								}
							}
						})
					}
					wg.Wait()
					select {
					case <-ended.reached:
					case <-time.After(time.Minute):
						b.Fatalf("%+v after a minute", f.Stats())
					}
					return time.Since(begin)
				}
				Bare(b, rawURL, round/10, concurrency)
				forward(round / 10)
				var bareTime, ourTime time.Duration
				n := 0
				for b.Loop() {
					bareTime += Bare(b, rawURL, round, concurrency)
					ourTime += forward(round)
					n += round
				}
				b.ReportMetric(float64(n)/bareTime.Seconds(), "bare/s")
				b.ReportMetric(float64(n)/ourTime.Seconds(), "deliveries/s")
				b.ReportMetric(bareTime.Seconds()/ourTime.Seconds(), "x_bare")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}
