package analytics

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/bits"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

var soak = flag.Duration("soak", 2*time.Second, "how long TestSoak goes on")

const (
	soakCollector = "ANALYTICS_TEST_SOAK" // set in the process that collects
	soakCallers   = 3                     // of each client
	soakMemory    = 8 << 20               // MaxMemory of each client
	soakSpool     = 32 << 20              // SpoolMax
	soakMaxHeap   = 96 << 20              // what is live then, the test's own included
)

// A soaker is the collector of TestSoak, in a process of its own. It ticks off
// numbered messages, and does its worst to up to ten requests a second.
type soaker struct {
	mu       sync.Mutex
	seen     []uint64 // a bit for each number
	distinct int
	twice    int
	requests int
	faults   int
	next     time.Time // when the next fault is due
}

// soakChild serves until its standard input ends.
func soakChild() error {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	s := new(soaker)
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/batch", s.collect)
	mux.HandleFunc("GET /tally", s.tally)
	go http.Serve(listener, mux)
	fmt.Println("http://" + listener.Addr().String())
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// tally answers with the counters, and how many of the first n are missing.
func (s *soaker) tally(w http.ResponseWriter, r *http.Request) {
	n, err := strconv.Atoi(r.FormValue("n"))
	if err != nil {
		http.Error(w, "bad n", 400)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	found := 0
	for i, word := range s.seen {
		if end := n - 64*i; end < 64 {
			word &= 1<<max(end, 0) - 1
		}
		found += bits.OnesCount64(word)
	}
	fmt.Fprintln(w, s.distinct, s.twice, s.requests, s.faults, n-found)
}

// A soakTally is what the collector has counted.
type soakTally struct{ distinct, twice, requests, faults, missing int }

func askSoaker(url string, n int) (t soakTally, err error) {
	resp, err := http.Get(fmt.Sprintf("%s/tally?n=%d", url, n))
	if err != nil {
		return t, err
	}
	defer resp.Body.Close()
	_, err = fmt.Fscan(resp.Body, &t.distinct, &t.twice, &t.requests, &t.faults, &t.missing)
	return t, err
}

func (s *soaker) collect(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.requests++
	fault := -1
	// At the end there are none but requests that come again; some must get through.
	retries, _ := strconv.Atoi(r.Header.Get(retryCountHeader))
	if now := time.Now(); now.After(s.next) && retries < 4 {
		s.next = now.Add(rand.N(200 * time.Millisecond))
		s.faults++
		fault = rand.IntN(80)
	}
	s.mu.Unlock()
	hijack := func() *net.TCPConn {
		c, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			panic(err)
		}
		return c.(*net.TCPConn)
	}
	switch {
	case 0 <= fault && fault < 15:
		w.WriteHeader(503) // before it is read
		return
	case 15 <= fault && fault < 30:
		io.CopyN(io.Discard, r.Body, r.ContentLength/2)
		hijack().Close()
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		w.WriteHeader(400) // nobody will read that
		return
	}
	switch {
	case fault == 30:
		w.Header().Set("Retry-After", "1")
		w.WriteHeader(429)
		return
	case fault == 31:
		<-r.Context().Done() // the client gives up
		return
	}
	if err := s.take(body); err != nil {
		w.WriteHeader(400)
		return
	}
	// What follows has been taken, and comes again where the client cannot know.
	switch {
	case 32 <= fault && fault < 45:
		w.WriteHeader(503)
		return
	case 45 <= fault && fault < 60:
		c := hijack()
		c.SetLinger(0)
		c.Close()
		return
	case 60 <= fault && fault < 70:
		c := hijack()
		io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{\"suc")
		c.Close()
		return
	case 70 <= fault:
		time.Sleep(rand.N(300 * time.Millisecond))
	}
	io.WriteString(w, `{"success":true}`)
}

// take ticks off the messages of a batch. They have numbers as ids; the batch
// has another.
func (s *soaker) take(body []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		_, rest, ok := bytes.Cut(body, []byte(`"messageId":"`))
		if !ok {
			return nil
		}
		id, rest, ok := bytes.Cut(rest, []byte(`"`))
		if !ok {
			return errors.New("the batch breaks off")
		}
		body = rest
		if len(id) == len("01234567-89ab-cdef-0123-456789abcdef") {
			continue
		}
		n, err := strconv.Atoi(string(id))
		if err != nil {
			return err
		}
		for n/64 >= len(s.seen) {
			s.seen = append(s.seen, make([]uint64, 1+len(s.seen)/4)...)
		}
		if bit := uint64(1) << (n % 64); s.seen[n/64]&bit == 0 {
			s.seen[n/64] |= bit
			s.distinct++
		} else {
			s.twice++
		}
	}
}

// A soakSample is what the process holds at one moment.
type soakSample struct {
	heap       uint64 // bytes, after a collection of garbage
	goroutines int
	files      int // -1 where that cannot be told
}

func sampleSoak() soakSample {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	s := soakSample{heap: m.HeapAlloc, goroutines: runtime.NumGoroutine(), files: -1}
	if list, err := os.ReadDir("/dev/fd"); err == nil {
		s.files = len(list)
	}
	return s
}

// TestSoak has two clients, of which one has a spool, send at full speed to a
// process that does its worst now and then. All that was accepted arrives, the
// counters agree with what has, and the process holds no more at the end than
// at the beginning. -soak 10m is for changes of the client.
func TestSoak(t *testing.T) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), soakCollector+"=1")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer in.Close()
	defer http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	var url string
	if _, err := fmt.Fscanln(out, &url); err != nil {
		t.Fatal(err)
	}

	before := sampleSoak()
	clients := [2]*Client{New("k"), New("k")}
	var told [2]atomic.Uint64
	for i, c := range clients {
		c.Endpoint, c.MaxMemory, c.Timeout = url, soakMemory, 5*time.Second
		c.OnDelivery = func(d Delivery) { told[i].Add(uint64(d.Count)) }
	}
	clients[1].SpoolDir, clients[1].SpoolMax = t.TempDir(), soakSpool

	var made, full atomic.Uint64
	start := time.Now()
	ctx, stop := context.WithTimeout(t.Context(), *soak)
	defer stop()
	var calling sync.WaitGroup
	for _, c := range clients {
		for range soakCallers {
			calling.Go(func() {
				m := Track{UserId: "u-2041", Event: "Order Completed", Properties: tenProperties()}
				for ctx.Err() == nil {
					m.MessageId = strconv.FormatUint(made.Add(1)-1, 10)
					m.Properties["total"] = rand.Float64()
					err := c.Track(&m)
					if err == ErrQueueFull {
						full.Add(1)
						err = c.Enqueue(context.Background(), &m)
					}
					if err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
	}

	delivered := func() (n uint64) {
		for _, c := range clients {
			s := c.Stats()
			if !s.sums() || s.Memory > soakMemory || s.Dropped > 0 || s.Unspooled > 0 {
				t.Errorf("Stats() = %+v: the sums do not hold, or too much memory, or something is lost", s)
			}
			n += s.Delivered
		}
		return n
	}
	var samples []soakSample
	ticks := time.NewTicker(max(*soak/60, 100*time.Millisecond))
	defer ticks.Stop()
	for ctx.Err() == nil {
		select {
		case <-ticks.C:
		case <-ctx.Done():
		}
		n := delivered() // before the collector is asked
		tally, err := askSoaker(url, 0)
		if err != nil {
			t.Fatal(err)
		}
		if uint64(tally.distinct) < n {
			t.Errorf("%d messages arrived, but %d were delivered", tally.distinct, n)
		}
		s := sampleSoak()
		samples = append(samples, s)
		if s.heap > soakMaxHeap {
			t.Errorf("%d MB of heap, want at most %d", s.heap>>20, soakMaxHeap>>20)
		}
		t.Logf("%4.0f s: %d delivered; %d arrived, %d of them again; %d requests, %d faults; heap %.1f MB, %d goroutines, %d files", time.Since(start).Seconds(),
			n, tally.distinct, tally.twice, tally.requests, tally.faults, float64(s.heap)/(1<<20), s.goroutines, s.files)
	}
	calling.Wait()
	took := time.Since(start)
	for i, c := range clients {
		end, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		if err := c.Shutdown(end); err != nil {
			t.Errorf("Shutdown: %v", err)
		}
		cancel()
		if s := c.Stats(); s.Pending+s.Spooled+s.Memory != 0 || told[i].Load() != s.Delivered {
			t.Errorf("Stats() = %+v, OnDelivery was told of %d, want nothing left and as many delivered", s, told[i].Load())
		}
	}
	all := int(made.Load())
	tally, err := askSoaker(url, all)
	if err != nil {
		t.Fatal(err)
	}
	if n := delivered(); n != uint64(all) || tally.distinct != all || tally.missing != 0 {
		t.Errorf("%d messages made, %d delivered, %d arrived, %d missing", all, n, tally.distinct, tally.missing)
	}
	http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	after := sampleSoak()
	for closed := time.Now(); after.files > before.files && time.Since(closed) < 10*time.Second; after = sampleSoak() {
		runtime.Gosched() // the last connections are being closed
	}
	if after.files > before.files {
		t.Errorf("%d files open, %d before", after.files, before.files)
	}

	heaps := make([]float64, len(samples))
	most := soakSample{}
	for i, s := range samples {
		heaps[i] = float64(s.heap) / (1 << 20)
		most.goroutines, most.files = max(most.goroutines, s.goroutines), max(most.files, s.files)
	}
	quarter := max(1, len(heaps)/4)
	first, last := median(heaps[:quarter]), median(heaps[len(heaps)-quarter:])
	if *soak >= time.Minute && last > 1.25*first+1 {
		t.Errorf("the heap has grown from %.1f to %.1f MB", first, last)
	}
	t.Logf("%.0f s, %.0f messages/s: %d made, all arrived, %d again; %d calls met a full queue; %d requests, %d faults; heap %.1f MB in the first quarter, %.1f in the last, %.1f at most, %.1f after; at most %d goroutines, %d files",
		took.Seconds(), float64(all)/took.Seconds(), all, tally.twice, full.Load(), tally.requests, tally.faults,
		first, last, slices.Max(heaps), float64(after.heap)/(1<<20), most.goroutines, most.files)
}

func median(list []float64) float64 {
	list = slices.Sorted(slices.Values(list))
	return list[len(list)/2]
}
