package server_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hookferry/analytics/internal/soakenv"
)

// greedy is the address of a client that attacks. Other clients have another address.
var greedy = net.IPv4(127, 0, 0, 2)

// dialGreedy connects to address from greedy.
func dialGreedy(address string) (net.Conn, error) {
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: greedy}, Timeout: 5 * time.Second}
	return d.Dial("tcp", address)
}

// request returns the bytes of a request with a body.
func request(path, header string, body []byte) []byte {
	return append(fmt.Appendf(nil, "POST %s HTTP/1.1\r\nHost: a\r\n%sContent-Length: %d\r\n\r\n", path, header, len(body)), body...)
}

// A tally counts answers by their status.
type tally struct {
	mu sync.Mutex
	by map[string]int
}

var statusLine = regexp.MustCompile(`HTTP/1\.1 (\d+) `)

// read counts answers until the connection ends. It misses a status line that is split between two
// reads.
func (t *tally) read(c net.Conn) {
	buf := make([]byte, 64<<10)
	for {
		n, err := c.Read(buf)
		t.mu.Lock()
		if t.by == nil {
			t.by = map[string]int{}
		}
		for _, m := range statusLine.FindAllSubmatch(buf[:n], -1) {
			t.by[string(m[1])]++
		}
		t.mu.Unlock()
		if err != nil {
			return
		}
	}
}

func (t *tally) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.TrimPrefix(fmt.Sprint(t.by), "map")
}

// stored returns the size of the server's data, in bytes.
func (l *load) stored() (size int64) {
	_ = filepath.WalkDir(filepath.Join(filepath.Dir(l.file), "data"), func(_ string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			if info, err := d.Info(); err == nil {
				size += info.Size()
			}
		}
		return nil
	})
	return size
}

// processMemory is the server's setting limits.processMemory in the next two tests, in bytes. Its
// resident memory may be a tenth more.
const processMemory = 512 << 20

// greed starts a server, and measures how long others wait without an attack and during it. All
// requests of others must succeed, and the server must keep to its memory. The attack ends with
// ctx, and counts its answers in answers.
func greed(t *testing.T, length time.Duration, attack func(ctx context.Context, l *load, address string, answers *tally)) {
	l := startLoad(t, "", fmt.Sprintf("log: {access: 0}\nlimits: {processMemory: %dMB}\n", processMemory>>20))
	o := &others{load: l}
	o.run(length / 8) // warm
	without := o.run(length / 4)
	before := l.stored()
	peak := watchMemory(t, l.server.Cmd.Process.Pid)
	ctx, cancel := context.WithCancel(t.Context())
	var answers tally
	var attacking sync.WaitGroup
	attacking.Go(func() { attack(ctx, l, strings.TrimPrefix(l.base, "http://"), &answers) })
	with := o.run(length / 2)
	cancel()
	attacking.Wait()
	resident := peak()
	t.Logf("others waited %v without the attack and %v with it (p99), %d of their requests failed; the attack was answered by %v; %d MB resident, of %d MB; %d MB stored",
		without.Round(time.Microsecond), with.Round(time.Microsecond), o.failed.Load(), &answers, resident>>20, int64(processMemory)>>20, (l.stored()-before)>>20)
	if n := o.failed.Load(); n > 0 {
		t.Errorf("%d requests of others failed, want 0", n)
	}
	if resident > processMemory/10*11 {
		t.Errorf("%d bytes were resident, want at most 1.1 x %d", resident, processMemory)
	}
	if answers.by == nil {
		t.Error("the attack got no answers, want some")
	}
	l.await(int(o.accepted.Load()))
	stop(t, l.server)
}

// TestAmplification sends small compressed requests with a public key. Each becomes 500 calls, and
// each call gets the batch's context of 32 KB.
func TestAmplification(t *testing.T) {
	length, _ := soakenv.Long(t, "amplify")
	var b bytes.Buffer
	z, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(z, `{"writeKey":"other","context":{"a":"%s"},"batch":[%s]}`, strings.Repeat("x", 32_000), strings.Repeat(`,{"type":"page","userId":"u"}`, 500)[1:])
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	greed(t, length, func(ctx context.Context, l *load, address string, answers *tally) {
		r := request("/v1/batch", "Content-Encoding: gzip\r\n", b.Bytes())
		const senders, rate = 16, 400 // 0.15 MB a second
		t.Logf("%d requests of %d bytes a second", rate, len(r))
		var sending sync.WaitGroup
		for range senders {
			sending.Go(func() {
				c, err := dialGreedy(address)
				if err != nil {
					t.Error(err)
					return
				}
				defer context.AfterFunc(ctx, func() { c.Close() })()
				sending.Go(func() { answers.read(c) })
				for tick := time.NewTicker(senders * time.Second / rate); err == nil; <-tick.C {
					_, err = c.Write(r)
				}
			})
		}
		sending.Wait()
	})
}

// TestSlowBodies begins as many requests without a key as one address may. Each sends the part of
// its body for which the server holds the most memory.
func TestSlowBodies(t *testing.T) {
	length, _ := soakenv.Long(t, "slow-bodies")
	greed(t, length, func(ctx context.Context, l *load, address string, answers *tally) {
		begun := fmt.Appendf(nil, "POST /v1/batch HTTP/1.1\r\nHost: a\r\nContent-Length: 500000\r\n\r\n{%s", bytes.Repeat([]byte(" "), 64<<10))
		var sending sync.WaitGroup
		for range 900 {
			sending.Go(func() {
				for ctx.Err() == nil {
					c, err := dialGreedy(address)
					if err != nil {
						time.Sleep(100 * time.Millisecond)
						continue
					}
					done := context.AfterFunc(ctx, func() { c.Close() })
					if _, err = c.Write(begun); err == nil {
						answers.read(c)
					}
					done()
					c.Close()
				}
			})
		}
		sending.Wait()
	})
}

// mostFlooded bounds how much slower the requests of others may become during a flood: the ratio of
// their 99th percentiles with and without it.
const mostFlooded = 4

// TestFlood sends requests from one address as fast as the server takes them. The process that
// sends them has the lowest priority, so that others wait for the server and not for that process.
func TestFlood(t *testing.T) {
	length, _ := soakenv.Long(t, "flood")
	batch := newBatch()
	for _, tt := range []struct {
		name, path, key       string
		connections, pipeline int
		body                  string
	}{
		{"calls", "/v1/track", "other", 64, 64, `{"event":"Flood","userId":"u"}`},
		{"calls on many connections", "/v1/track", "other", 900, 16, `{"event":"Flood","userId":"u"}`},
		{"batches", "/v1/batch", "other", 64, 8, string(batch.body)},
		{"batches on many connections", "/v1/batch", "other", 900, 2, string(batch.body)},
		{"unknown keys", "/v1/track", "unknown", 64, 64, `{"event":"Flood","userId":"u"}`},
		{"unknown keys on many connections", "/v1/track", "unknown", 900, 16, `{"event":"Flood","userId":"u"}`},
		{"nothing on many connections", "/v1/nothing", "other", 900, 16, ""},
		{"metrics on many connections", "/v1/m", "other", 900, 16, `{}`},
		{"health on many connections", "/healthz", "other", 900, 16, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := startLoad(t, "", "log: {access: 0}\n")
			o := &others{load: l}
			o.run(length / 16) // warm
			without := o.run(length / 16)
			file := filepath.Join(t.TempDir(), "requests")
			if err := os.WriteFile(file, bytes.Repeat(request(tt.path, "Authorization: Basic "+base64.StdEncoding.EncodeToString([]byte(tt.key+":"))+"\r\n", []byte(tt.body)), tt.pipeline), 0o600); err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command("nice", "-n", "19", os.Args[0])
			cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s %d %s", floodVariable, strings.TrimPrefix(l.base, "http://"), tt.connections, file))
			flood, _ := start(t, cmd, regexp.MustCompile("flooding"))
			with := o.run(length / 16)
			if status, err := flood.Stop(os.Interrupt); err != nil || status != 0 {
				t.Errorf("the flood ended with status %d, %v, want 0", status, err)
			}
			t.Logf("others waited %v without the flood and %v with it (p99): %.1f x; it was %s", without.Round(time.Microsecond), with.Round(time.Microsecond),
				float64(with)/float64(without), strings.TrimSpace(flood.Output()))
			if n := o.failed.Load(); n > 0 {
				t.Errorf("%d requests of others failed, want 0", n)
			}
			if with > mostFlooded*without+time.Millisecond {
				t.Errorf("others wait %v with the flood and %v without, want at most %d times as long", with, without, mostFlooded)
			}
		})
	}
}

const floodVariable = "HOOKFERRY_SOAK_FLOOD"

func init() {
	if how := os.Getenv(floodVariable); how != "" {
		flood(how)
	}
}

// flood runs in a process of its own. It floods a server until the process is interrupted.
func flood(how string) {
	var address, file string
	var connections int
	if _, err := fmt.Sscan(how, &address, &connections, &file); err != nil {
		panic(err)
	}
	requests, err := os.ReadFile(file)
	if err != nil {
		panic(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	var answers tally
	for range connections {
		go func() { // ends with the process
			for {
				c, err := dialGreedy(address)
				if err != nil {
					time.Sleep(100 * time.Millisecond)
					continue
				}
				go answers.read(c)
				_, _ = io.Copy(c, repeated(requests))
				c.Close()
			}
		}()
	}
	fmt.Println("flooding:")
	<-ctx.Done()
	fmt.Println(&answers)
	os.Exit(0)
}
