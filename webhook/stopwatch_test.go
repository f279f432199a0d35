package webhook_test

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
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hookferry/analytics/webhook/internal/bench"
)

// Stopwatch runs a receiver for benchmarks, in a process of its own. First it prints its address.
// It never answers requests to /hang, and answers others by 200 at once. If a body begins with the
// time at which the event was made, {"made":"<nanoseconds since 1970>", it records the age of the
// event. For each line of standard input, it prints one line with the ages recorded since the last
// line, in nanoseconds. It returns when standard input ends.
func Stopwatch() {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(ln.Addr())
	var w stopwatch
	go func() { // ends with the process
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go w.serve(c) // ends with the connection
		}
	}()
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		w.print(os.Stdout)
	}
}

// A stopwatch records the ages of events, in nanoseconds.
type stopwatch struct {
	mu   sync.Mutex
	ages []int64
}

// print writes the ages since the last print, as one line.
func (w *stopwatch) print(to io.Writer) {
	w.mu.Lock()
	ages := w.ages
	w.ages = nil
	w.mu.Unlock()
	line := make([]byte, 0, 8*len(ages)+1)
	for _, age := range ages {
		line = append(strconv.AppendInt(line, age, 10), ' ')
	}
	to.Write(append(line, '\n'))
}

func (w *stopwatch) serve(c net.Conn) {
	defer c.Close()
	r := bufio.NewReaderSize(c, 8<<10)
	answer := []byte("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
	hang, length := false, 0
	for {
		line, err := r.ReadSlice('\n')
		if err != nil {
			return
		}
		line = bytes.TrimRight(line, "\r\n")
		hang = hang || bytes.HasPrefix(line, []byte("POST /hang"))
		if v, ok := bytes.CutPrefix(line, []byte("Content-Length: ")); ok {
			length, _ = strconv.Atoi(string(v))
		}
		if len(line) > 0 {
			continue
		}
		body, err := r.Peek(length)
		if err != nil {
			return
		}
		w.record(body)
		r.Discard(length)
		if hang {
			continue
		}
		if _, err := c.Write(answer); err != nil {
			return
		}
	}
}

// record records the age of the event with this body, if the body has the time, or its data.
func (w *stopwatch) record(body []byte) {
	_, rest, ok := bytes.Cut(body, []byte(`{"made":"`))
	if !ok {
		return
	}
	made, _, _ := bytes.Cut(rest, []byte(`"`))
	if at, err := strconv.ParseInt(string(made), 10, 64); err == nil {
		w.mu.Lock()
		w.ages = append(w.ages, time.Now().UnixNano()-at)
		w.mu.Unlock()
	}
}

// BareLoad posts body to a URL through a bare http.Transport, at rate requests per second, until
// its standard input ends. Then it prints the number of requests. It runs in a process of its own,
// beside the measured one.
func BareLoad(rawURL string, rate int, body []byte) {
	const concurrency = 64
	u, err := url.Parse(rawURL)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	transport := &http.Transport{MaxIdleConnsPerHost: concurrency, DisableCompression: true}
	ctx, cancel := context.WithCancel(context.Background())
	posted := make([]int, concurrency)
	var wg sync.WaitGroup
	begin := time.Now()
	for i := range posted {
		wg.Go(func() {
			for ctx.Err() == nil {
				// Each request is due at a fixed time, so that late requests catch up.
				time.Sleep(time.Until(begin.Add(time.Second * time.Duration(posted[i]*concurrency+i) / time.Duration(rate))))
				resp, err := transport.RoundTrip(&http.Request{
					Method: "POST", URL: u, Host: u.Host, Header: http.Header{"Content-Type": {"application/json"}},
					Body: io.NopCloser(bytes.NewReader(body)), ContentLength: int64(len(body)),
				})
				if err != nil {
					fmt.Fprintln(os.Stderr, err)
					os.Exit(1)
				}
				io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
				posted[i]++
			}
		})
	}
	fmt.Println("posting")
	io.Copy(io.Discard, os.Stdin)
	cancel()
	wg.Wait()
	n := 0
	for _, p := range posted {
		n += p
	}
	fmt.Println(n)
}

// startProcess starts a process in which runBenchProcess runs name with args. It returns the
// process and the first line that the process prints.
func startProcess(b *testing.B, name string, args ...any) (*bench.Process, string) {
	b.Helper()
	return bench.Start(b, "HOOKFERRY_BENCH_PROCESS="+strings.TrimSpace(name+" "+fmt.Sprintln(args...)))
}

// runBenchProcess is the main function of processes that benchmarks start. process is the name of
// the program and its arguments, separated by spaces.
func runBenchProcess(process string) {
	args := strings.Fields(process)
	switch args[0] {
	case "stopwatch":
		Stopwatch()
	case "load":
		rate, err := strconv.Atoi(args[2])
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		BareLoad(args[1], rate, bytes.Repeat([]byte("1"), 450))
	}
}
