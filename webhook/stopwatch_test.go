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

// Stopwatch is a receiver for benchmarks, run in a process of its own. It
// prints its address. It answers 200 at once, but for requests to /hang, which
// it never answers, and notes how old events are whose bodies begin with when
// they were made, {"made":<nanoseconds since 1970>. For each line that it
// reads it prints the ages it has noted since the last, in nanoseconds, as one
// line. It ends when its standard input does.
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

type stopwatch struct {
	mu   sync.Mutex
	ages []int64
}

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
		w.note(body)
		r.Discard(length)
		if hang {
			continue
		}
		if _, err := c.Write(answer); err != nil {
			return
		}
	}
}

func (w *stopwatch) note(body []byte) {
	rest, ok := bytes.CutPrefix(body, []byte(`{"made":`))
	if !ok {
		return
	}
	made, _, _ := bytes.Cut(rest, []byte(","))
	if at, err := strconv.ParseInt(string(made), 10, 64); err == nil {
		w.mu.Lock()
		w.ages = append(w.ages, time.Now().UnixNano()-at)
		w.mu.Unlock()
	}
}

// BareLoad posts body to a URL by a bare http.Transport, at a rate, until its
// standard input ends; then it prints how often it did. It runs in a process
// of its own, beside what is measured.
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
				// Each is due by the clock, so that those that were late catch up.
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

// startProcess starts a process that runBenchProcess is to be, and returns it with
// the first line that it prints.
func startProcess(b *testing.B, name string, args ...any) (*bench.Process, string) {
	b.Helper()
	return bench.Start(b, "HOOKFERRY_BENCH_PROCESS="+strings.TrimSpace(name+" "+fmt.Sprintln(args...)))
}

// runBenchProcess is main for the processes that benchmarks start. process is a
// name and its arguments.
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
