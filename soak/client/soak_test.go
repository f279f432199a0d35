package client_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hookferry/analytics"
	"github.com/hookferry/analytics/internal/soakenv"
)

const (
	soakSeed    = "CLIENT_SOAK_SEED" // environment variable with the collector's seed
	soakCallers = 3                  // goroutines that call each client
	soakMemory  = 8 << 20            // MaxMemory of each client
	soakSpool   = 32 << 20           // SpoolMax of the client with a spool
	soakMaxHeap = 96 << 20           // bound of the heap, that of the test included
)

// A collector records which numbered messages have arrived. It misbehaves for up to ten requests a
// second.
type collector struct {
	mu       sync.Mutex
	random   *rand.Rand
	seen     []uint64 // a bit for each number
	distinct int
	twice    int
	requests int
	faults   int
	next     time.Time // when the next fault is due
}

// collectChild serves until it is killed.
func collectChild() error {
	seed, err := strconv.ParseUint(os.Getenv(soakSeed), 10, 64)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	c := &collector{random: rand.New(rand.NewPCG(seed, 1))}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/batch", c.collect)
	mux.HandleFunc("GET /tally", c.tally)
	fmt.Println("http://" + listener.Addr().String())
	return http.Serve(listener, mux)
}

// tally answers with the counters, and with how many of the messages below n are missing.
func (c *collector) tally(w http.ResponseWriter, r *http.Request) {
	n, err := strconv.Atoi(r.FormValue("n"))
	if err != nil {
		http.Error(w, "bad n", 400)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	found := 0
	for i, word := range c.seen {
		if end := n - 64*i; end < 64 {
			word &= 1<<max(end, 0) - 1
		}
		found += bits.OnesCount64(word)
	}
	fmt.Fprintln(w, c.distinct, c.twice, c.requests, c.faults, n-found)
}

// A tally has the counters of the collector.
type tally struct{ distinct, twice, requests, faults, missing int }

func ask(t *testing.T, url string, n int) (got tally) {
	t.Helper()
	resp, err := http.Get(fmt.Sprintf("%s/tally?n=%d", url, n))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if _, err = fmt.Fscan(resp.Body, &got.distinct, &got.twice, &got.requests, &got.faults, &got.missing); err != nil {
		t.Fatal(err)
	}
	return got
}

// draw returns the fault of a request, from 0 to 79, or -1 for none. slow is how long a slow answer
// takes.
func (c *collector) draw(retries int) (fault int, slow time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.requests++
	// At the end all requests are retries, and some must succeed. So the fifth attempt has no
	// fault.
	now := time.Now()
	if now.Before(c.next) || retries >= 4 {
		return -1, 0
	}
	c.faults++
	c.next = now.Add(time.Duration(c.random.Int64N(int64(200 * time.Millisecond))))
	return c.random.IntN(80), time.Duration(c.random.Int64N(int64(300 * time.Millisecond)))
}

func (c *collector) collect(w http.ResponseWriter, r *http.Request) {
	retries, _ := strconv.Atoi(r.Header.Get("X-Retry-Count"))
	fault, slow := c.draw(retries)
	hijack := func() *net.TCPConn {
		c, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			panic(err)
		}
		return c.(*net.TCPConn)
	}
	switch {
	case 0 <= fault && fault < 15:
		w.WriteHeader(503) // before the body is read
		return
	case 15 <= fault && fault < 30:
		io.CopyN(io.Discard, r.Body, r.ContentLength/2)
		hijack().Close()
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		w.WriteHeader(400) // the client will not read this answer
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
	if err := c.take(body); err != nil {
		w.WriteHeader(400)
		return
	}
	// The collector has accepted the batch. If the client does not learn that, it sends the batch
	// again.
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
		time.Sleep(slow)
	}
	io.WriteString(w, `{"success":true}`)
}

// take records the arrival of the messages of a batch. Their ids are numbers. It skips the id of
// the batch, which is a UUID.
func (c *collector) take(body []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
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
		for n/64 >= len(c.seen) {
			c.seen = append(c.seen, make([]uint64, 1+len(c.seen)/4)...)
		}
		if bit := uint64(1) << (n % 64); c.seen[n/64]&bit == 0 {
			c.seen[n/64] |= bit
			c.distinct++
		} else {
			c.twice++
		}
	}
}

// A sample has the resources that the process uses at one moment.
type sample struct {
	heap       uint64 // bytes, after a garbage collection
	goroutines int
	files      int // open files; -1 if their number is unknown
}

func takeSample() sample {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	s := sample{heap: m.HeapAlloc, goroutines: runtime.NumGoroutine(), files: -1}
	if list, err := os.ReadDir("/dev/fd"); err == nil {
		s.files = len(list)
	}
	return s
}

// TestSoak runs two clients, one of them with a spool, at full speed. Their collector, in another
// process, misbehaves now and then. Every accepted message arrives, the counters agree with the
// arrivals, and the process uses no more resources at the end than at the beginning.
func TestSoak(t *testing.T) {
	length, seed := soakenv.Long(t, "client")
	child := start(t, "collect", fmt.Sprint(soakSeed, "=", seed))
	defer http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	url, err := child.Await(regexp.MustCompile(`(http://.*)\n`))
	if err != nil {
		t.Fatal(err)
	}

	before := takeSample()
	clients := [2]*analytics.Client{analytics.New("k"), analytics.New("k")}
	var told [2]atomic.Uint64
	for i, c := range clients {
		c.Endpoint, c.MaxMemory, c.Timeout = url, soakMemory, 5*time.Second
		c.OnDelivery = func(d analytics.Delivery) { told[i].Add(uint64(d.Count)) }
	}
	clients[1].SpoolDir, clients[1].SpoolMax = t.TempDir(), soakSpool

	var made, full atomic.Uint64
	begin := time.Now()
	ctx, stop := context.WithTimeout(t.Context(), length)
	defer stop()
	var calling sync.WaitGroup
	for i, c := range clients {
		for caller := range soakCallers {
			calling.Go(func() {
				random := rand.New(rand.NewPCG(seed, uint64(2+i*soakCallers+caller)))
				m := analytics.Track{UserId: "u-2041", Event: "Order Completed", Properties: map[string]any{
					"order_id": "ord_4f8b2c9e", "currency": "EUR", "items": 3, "coupon": nil, "express": true, "customer": int64(8675309),
					"placed": begin, "tags": []string{"spring", "returning", "mobile"}, "shipping": map[string]any{"city": "Tromsø", "zip": "9008"},
				}}
				for ctx.Err() == nil {
					m.MessageId = strconv.FormatUint(made.Add(1)-1, 10)
					m.Properties["total"] = random.Float64()
					err := c.Track(&m)
					if err == analytics.ErrQueueFull {
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
			if !sums(s) || s.Memory > soakMemory || s.Dropped > 0 || s.Unspooled > 0 {
				t.Errorf("Stats() = %+v, want counters that agree, at most %d bytes of memory, and nothing dropped", s, soakMemory)
			}
			n += s.Delivered
		}
		return n
	}
	var samples []sample
	ticks := time.NewTicker(max(length/60, 100*time.Millisecond))
	defer ticks.Stop()
	for ctx.Err() == nil {
		select {
		case <-ticks.C:
		case <-ctx.Done():
		}
		n := delivered() // first, so that the collector has at least as many
		got := ask(t, url, 0)
		if uint64(got.distinct) < n {
			t.Errorf("%d messages arrived, want at least the %d delivered ones", got.distinct, n)
		}
		s := takeSample()
		samples = append(samples, s)
		if s.heap > soakMaxHeap {
			t.Errorf("got %d MB of heap, want at most %d", s.heap>>20, soakMaxHeap>>20)
		}
		t.Logf("%4.0f s: %d delivered; %d arrived, %d of them again; %d requests, %d faults; heap %.1f MB, %d goroutines, %d files", time.Since(begin).Seconds(),
			n, got.distinct, got.twice, got.requests, got.faults, float64(s.heap)/(1<<20), s.goroutines, s.files)
	}
	calling.Wait()
	took := time.Since(begin)
	for i, c := range clients {
		if err := c.Shutdown(t.Context()); err != nil {
			t.Errorf("Shutdown = %v, want nil", err)
		}
		if s := c.Stats(); s.Pending+s.Spooled+s.Memory != 0 || told[i].Load() != s.Delivered {
			t.Errorf("Stats() = %+v, OnDelivery got %d messages; want nothing left, and all delivered ones", s, told[i].Load())
		}
	}
	all := int(made.Load())
	got := ask(t, url, all)
	if n := delivered(); n != uint64(all) || got.distinct != all || got.missing != 0 {
		t.Errorf("%d messages made, %d delivered, %d arrived, %d missing; want all delivered and arrived", all, n, got.distinct, got.missing)
	}
	http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	after := takeSample()
	for closed := time.Now(); after.files > before.files && time.Since(closed) < time.Minute; after = takeSample() {
		runtime.Gosched() // until the last connections are closed
	}
	if after.files > before.files {
		t.Errorf("%d files open at the end, want at most the %d from before", after.files, before.files)
	}

	heaps := make([]float64, len(samples))
	most := sample{}
	for i, s := range samples {
		heaps[i] = float64(s.heap) / (1 << 20)
		most.goroutines, most.files = max(most.goroutines, s.goroutines), max(most.files, s.files)
	}
	quarter := max(1, len(heaps)/4)
	first, last := median(heaps[:quarter]), median(heaps[len(heaps)-quarter:])
	if length >= time.Minute && last > 1.25*first+1 {
		t.Errorf("the heap has grown from %.1f to %.1f MB, want at most %.1f", first, last, 1.25*first+1)
	}
	t.Logf("%.0f s, %.0f messages/s: %d made, all arrived, %d again; %d calls met a full queue; %d requests, %d faults; heap %.1f MB in the first quarter, %.1f in the last, %.1f at most, %.1f after; at most %d goroutines, %d files",
		took.Seconds(), float64(all)/took.Seconds(), all, got.twice, full.Load(), got.requests, got.faults,
		first, last, slices.Max(heaps), float64(after.heap)/(1<<20), most.goroutines, most.files)
}

func median(list []float64) float64 {
	list = slices.Sorted(slices.Values(list))
	return list[len(list)/2]
}
