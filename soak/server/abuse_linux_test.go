package server_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/hookferry/analytics/internal/soakenv"
)

// maxMemory bounds the memory of the server under abuse, in bytes. The bound also holds with the
// race detector.
const maxMemory = 1 << 30

// mostDelay bounds how much slower the requests of others may become during an attack: the ratio of
// their 99th percentiles with and without it.
const mostDelay = 2

// TestAbuse measures how long the requests of other clients take during attacks. On a machine that
// does nothing else they must stay within mostDelay, and no accepted call may be lost. The last
// line of its log has the result of all attacks.
//
// On Linux all of 127.0.0.0/8 is local. So the attacker and the others have different addresses.
func TestAbuse(t *testing.T) {
	length, seed := soakenv.Long(t, "abuse")
	// The server's default limit is 10,000 connections. The test was written on a machine that
	// allows 20,000 open files for each process.
	const idle, slow = 10_000, 1000
	span := length / 20 // each attack takes two: one span without the attack, and one with it
	l := startLoad(t, "", "log: {access: 0}\n")
	public, admin := strings.TrimPrefix(l.base, "http://"), strings.Trim(strings.TrimPrefix(l.admin, "http:"), "/")
	o := &others{load: l}
	o.run(span) // warm

	bomb := func() []byte {
		var b bytes.Buffer
		w := gzip.NewWriter(&b)
		zeros := make([]byte, 1<<20)
		for range 100 {
			_, _ = w.Write(zeros)
		}
		_ = w.Close()
		return b.Bytes()
	}()
	garbage := make([]byte, 1<<20)
	_, _ = rand.NewChaCha8([32]byte{byte(seed)}).Read(garbage)

	peakMemory := watchMemory(t, l.server.Cmd.Process.Pid)
	worst, worstAttack, attacks := 0.0, "", 0
	for _, tt := range []struct {
		name   string
		attack func(ctx context.Context, a *attacker)
	}{
		{"slow headers", func(ctx context.Context, a *attacker) {
			a.slowly(ctx, public, slow, "POST /v1/batch HTTP/1.1\r\nHost: a\r\nX: ")
		}},
		{"slow bodies", func(ctx context.Context, a *attacker) {
			a.slowly(ctx, public, slow, "POST /v1/batch HTTP/1.1\r\nHost: a\r\nAuthorization: Basic b3RoZXI6\r\nContent-Length: 400000\r\n\r\n{")
		}},
		{"slow headers of the admin API", func(ctx context.Context, a *attacker) {
			a.slowly(ctx, admin, slow, "GET /api/v1/status HTTP/1.1\r\nX: ")
		}},
		{"slow bodies of the admin API", func(ctx context.Context, a *attacker) {
			a.slowly(ctx, admin, slow, "POST /api/v1/test HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 4000\r\n\r\n{")
		}},
		{"idle connections", func(ctx context.Context, a *attacker) { a.slowly(ctx, public, idle, "") }},
		{"large headers", func(ctx context.Context, a *attacker) {
			a.often(ctx, 100, "POST", "/v1/batch", "other", http.Header{"X": {strings.Repeat("x", 1<<20)}}, nil)
		}},
		{"large bodies", func(ctx context.Context, a *attacker) {
			a.often(ctx, 100, "POST", "/v1/batch", "other", nil, func() io.Reader { return io.LimitReader(repeated(garbage), 8<<20) })
		}},
		{"gzip bombs", func(ctx context.Context, a *attacker) {
			a.often(ctx, 100, "POST", "/v1/batch", "other", http.Header{"Content-Encoding": {"gzip"}}, func() io.Reader { return bytes.NewReader(bomb) })
		}},
		{"wrong keys", func(ctx context.Context, a *attacker) {
			a.often(ctx, 1000, "POST", "/v1/track", "wrong", nil, func() io.Reader { return strings.NewReader(`{}`) })
		}},
		{"reloads", func(ctx context.Context, a *attacker) {
			a.every(ctx, 100*time.Millisecond, func(n int) { l.reload(fmt.Sprintf(", maxBurst: %d, maxRate: 1000000", n+1), "log: {access: 0}\n") })
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			without := o.run(span)
			ctx, cancel := context.WithCancel(t.Context())
			a := &attacker{t: t, load: l}
			var attacking sync.WaitGroup
			attacking.Go(func() { tt.attack(ctx, a) })
			defer attacking.Wait()
			defer cancel()
			a.begin(t)
			with := o.run(span)
			resident := memory(t, l.server.Cmd.Process.Pid)
			cancel()
			attacking.Wait()
			if with == 0 || without == 0 {
				t.Fatal("all requests of others failed, want some that succeed")
			}
			delay := float64(with) / float64(without)
			attacks++
			if delay > worst {
				worst, worstAttack = delay, tt.name
			}
			t.Logf("p99 %v without, %v with: %.2f x; %d of the attacker's acts; %d MB", without.Round(time.Microsecond), with.Round(time.Microsecond),
				delay, a.acts.Load(), resident>>20)
			if a.acts.Load() == 0 {
				t.Error("the attacker did nothing, want an attack")
			}
			// If both times are very short, the scheduler may add a millisecond.
			if with > mostDelay*without+time.Millisecond {
				t.Errorf("others wait %v with the attack and %v without, want at most %d times as long", with, without, mostDelay)
			}
		})
	}
	if n := o.failed.Load(); n > 0 {
		t.Errorf("%d requests of others failed, want 0", n)
	}
	accepted := int(o.accepted.Load())
	l.await(accepted)
	of := func(name string) (int, error) {
		n, err := l.metric("hookferry_deliveries_" + name + `_total\{destination="crm"\}`)
		return int(n), err
	}
	until(t, "calls that the server has recorded as delivered", accepted, func() (int, error) { return of("delivered") })
	// The receiver counts a call again if the server retries it because its answer came too late.
	received, err := l.received()
	retried, rerr := of("retried")
	if err != nil || rerr != nil || received < accepted || received > accepted+retried {
		t.Errorf("%d calls arrived, %d were accepted, %d were retried; %v, %v; want all accepted, and no more than the retried ones twice", received, accepted, retried, err, rerr)
	}
	peak := peakMemory()
	if peak > maxMemory {
		t.Errorf("the server had %d bytes in memory, want at most %d", peak, maxMemory)
	}
	t.Logf("%d attacks: others waited %.2f x as long at worst (%s), of at most %d x; %d of their requests failed; %d calls lost of %d accepted; %d MB at most, of %d MB",
		attacks, worst, worstAttack, mostDelay, o.failed.Load(), max(accepted-received, 0), accepted, peak>>20, int64(maxMemory)>>20)
	stop(t, l.server)
}

// watchMemory samples the memory of a process until ended is called. ended returns the largest
// sample, in bytes. Pages of mapped files do not count, as the system can take them back.
func watchMemory(t *testing.T, pid int) (ended func() int64) {
	stop, peak := make(chan struct{}), make(chan int64, 1)
	go func() { // ended by stop, or with the test
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		most := int64(0)
		for {
			most = max(most, memory(t, pid))
			select {
			case <-tick.C:
			case <-stop:
				peak <- most
				return
			case <-t.Context().Done():
				return
			}
		}
	}()
	return func() int64 {
		close(stop)
		return <-peak
	}
}

// memory returns the anonymous memory of a process, in bytes.
func memory(t *testing.T, pid int) int64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Error(err)
		return 0
	}
	_, text, _ = bytes.Cut(text, []byte("\nRssAnon:"))
	var kilobytes int64
	if _, err := fmt.Fscan(bytes.NewReader(text), &kilobytes); err != nil {
		t.Error(err)
	}
	return kilobytes << 10
}

// others are clients that behave well.
type others struct {
	load             *load
	accepted, failed atomic.Int64
}

// run makes requests of others for a while, and returns the 99th percentile of their times.
func (o *others) run(span time.Duration) time.Duration {
	var mu sync.Mutex
	var took []time.Duration
	end := time.Now().Add(span)
	var working sync.WaitGroup
	for range 4 {
		working.Go(func() {
			b := newBatch()
			tick := time.NewTicker(10 * time.Millisecond)
			defer tick.Stop()
			for time.Now().Before(end) {
				<-tick.C
				b.number(o.load.next.Add(batchSize))
				begin := time.Now()
				status, err := o.load.send(b.body)
				if err != nil || status != 200 {
					o.load.tb.Logf("others: status %d, %v", status, err)
					o.failed.Add(1)
					continue
				}
				o.accepted.Add(batchSize)
				mu.Lock()
				took = append(took, time.Since(begin))
				mu.Unlock()
			}
		})
	}
	working.Wait()
	if len(took) == 0 {
		return 0
	}
	slices.Sort(took)
	return took[len(took)*99/100]
}

// An attacker does what clients should not do. It has many addresses, and others use none of them.
type attacker struct {
	t    *testing.T
	load *load
	acts atomic.Int64
	next atomic.Int64 // number of its next connection, which selects an address
	// connections is how many connections an attack opens at first. It is 0 for other attacks.
	connections atomic.Int64
}

// begin waits until the attack has begun.
func (a *attacker) begin(t *testing.T) {
	t.Helper()
	until(t, "the attacker's acts beyond its first ones", 0, func() (int, error) {
		return int(a.acts.Load() - max(a.connections.Load(), 3)), nil
	})
}

func (a *attacker) dial(ctx context.Context, network, address string) (net.Conn, error) {
	n := a.next.Add(1)
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, byte(1+n/100%100), byte(1+n%100))}, Timeout: 5 * time.Second}
	return d.DialContext(ctx, network, address)
}

// slowly keeps n connections open. On each it sends begin, and then one byte a second. It replaces
// a connection that the server closes.
func (a *attacker) slowly(ctx context.Context, address string, n int, begin string) {
	a.connections.Store(int64(n))
	var open sync.WaitGroup
	pause := time.Duration(0)
	if n > 500 {
		pause = time.Millisecond // dialing must not use the processors that are measured
	}
	for range n {
		if ctx.Err() != nil {
			break
		}
		time.Sleep(pause)
		open.Go(func() {
			for ctx.Err() == nil {
				c, err := a.dial(ctx, "tcp", address)
				if err != nil {
					if ctx.Err() == nil {
						time.Sleep(100 * time.Millisecond)
					}
					continue
				}
				a.acts.Add(1)
				stop := context.AfterFunc(ctx, func() { c.Close() })
				_, err = io.WriteString(c, begin)
				if begin != "" {
					tick := time.NewTicker(time.Second)
					for err == nil && ctx.Err() == nil {
						select {
						case <-tick.C:
							_, err = io.WriteString(c, "x")
						case <-ctx.Done():
						}
					}
					tick.Stop()
				} else {
					_, _ = c.Read(make([]byte, 1)) // until the server or ctx closes it
				}
				stop()
				c.Close()
			}
		})
	}
	open.Wait()
}

// every calls act at intervals until ctx ends.
func (a *attacker) every(ctx context.Context, interval time.Duration, act func(n int)) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			act(n)
			a.acts.Add(1)
		}
	}
}

// often sends requests over a few connections, rate of them a second.
func (a *attacker) often(ctx context.Context, rate int, method, path, key string, header http.Header, body func() io.Reader) {
	transport := &http.Transport{DialContext: a.dial, MaxIdleConnsPerHost: 8, DisableCompression: true}
	defer transport.CloseIdleConnections()
	const senders = 8
	var sending sync.WaitGroup
	for range senders {
		sending.Go(func() {
			a.every(ctx, senders*time.Second/time.Duration(rate), func(int) {
				var b io.Reader
				if body != nil {
					b = body()
				}
				r, err := http.NewRequestWithContext(ctx, method, a.load.base+path, b)
				if err != nil {
					a.t.Error(err)
					return
				}
				for name, values := range header {
					r.Header[name] = values
				}
				r.SetBasicAuth(key, "")
				resp, err := transport.RoundTrip(r)
				if err != nil {
					return // the server closed the connection
				}
				if resp.StatusCode < 400 {
					a.t.Errorf("a request of the attack got status %d, want 400 or more", resp.StatusCode)
				}
				_, _ = io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
			})
		})
	}
	sending.Wait()
}

// repeated reads b over and over.
func repeated(b []byte) io.Reader {
	at := 0
	return readerFunc(func(p []byte) (int, error) {
		n := copy(p, b[at:])
		at = (at + n) % len(b)
		return n, nil
	})
}

type readerFunc func(p []byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// reload replaces the configuration file, and tells the server to read it.
func (l *load) reload(destination, more string) {
	if err := os.WriteFile(l.file+".new", []byte(l.config(destination, more)), 0o600); err != nil {
		l.tb.Error(err)
	}
	if err := os.Rename(l.file+".new", l.file); err != nil {
		l.tb.Error(err)
	}
	if err := l.server.Cmd.Process.Signal(syscall.SIGHUP); err != nil {
		l.tb.Error(err)
	}
}
