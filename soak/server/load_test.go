package server_test

import (
	"bufio"
	"bytes"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hookferry/analytics/internal/testkit"
	"github.com/hookferry/analytics/signature"
)

// A load has a server and a receiver, each in a process of its own, and the client that sends calls
// to the server.
type load struct {
	tb       testing.TB
	server   *testkit.Child
	base     string // URL of the server
	admin    string // URL of its page, with a slash at the end
	receiver string
	file     string // its configuration
	sources  string // further ones
	others   string // further destinations, whose URLs begin with RECEIVER
	client   *http.Client
	senders  []*sender
	next     atomic.Int64 // number of the next call
}

// config returns a configuration. destination is added to the settings of the destination, and more
// to the end.
func (l *load) config(destination, more string) string {
	return fmt.Sprintf(`
listen: 127.0.0.1:0
admin: {listen: "127.0.0.1:0"}
data: data
sources:
  - {name: web, keys: [key], destinations: [crm]}
  - {name: other, keys: [other], destinations: [crm]}%s
destinations:
  - {id: crm, secret: s3cret, endpoints: [{url: "%s/hook"}]%s}%s
%s`, l.sources, l.receiver, destination, strings.ReplaceAll(l.others, "RECEIVER", l.receiver), more)
}

// startLoad starts the receiver and the server.
func startLoad(tb testing.TB, destination, more string) *load {
	tb.Helper()
	l := &load{tb: tb}
	l.start(destination, more)
	return l
}

func (l *load) start(destination, more string) {
	tb := l.tb
	tb.Helper()
	receiver := exec.Command(os.Args[0])
	receiver.Env = append(os.Environ(), nullVariable+"=1")
	_, l.receiver = start(tb, receiver, regexp.MustCompile(`listening on (\S+)`))
	l.file = filepath.Join(tb.TempDir(), "hookferry.yaml")
	if err := os.WriteFile(l.file, []byte(l.config(destination, more)), 0o600); err != nil {
		tb.Fatal(err)
	}
	var address string
	l.server, address = start(tb, hookferry(tb, "serve", "--config", l.file), listening)
	l.base = "http://" + address
	var err error
	if l.admin, err = l.server.Await(pageAt); err != nil {
		tb.Fatal(err)
	}
	transport := &http.Transport{MaxIdleConnsPerHost: 128, DisableCompression: true}
	tb.Cleanup(transport.CloseIdleConnections)
	l.client = &http.Client{Transport: transport}
}

// batchSize is the number of calls in a batch.
const batchSize = 100

// A batch is the body of a request, with message ids that each request overwrites.
type batch struct {
	body []byte
	ids  []int // the offsets of the ids in body
}

// idDigits is the length of a message id.
const idDigits = 12

func newBatch() *batch {
	b := &batch{body: []byte(`{"context":{"library":{"name":"load","version":"1"}},"batch":[`)}
	for i := range batchSize {
		if i > 0 {
			b.body = append(b.body, ',')
		}
		b.body = append(b.body, `{"type":"track","messageId":"`...)
		b.ids = append(b.ids, len(b.body))
		b.body = fmt.Appendf(b.body, `%012d","timestamp":"2026-03-01T11:59:50.250Z","userId":"user-%d","event":"Order Completed","properties":{"orderId":"50314b8e9bcf000000000000","total":27.5,"currency":"EUR","coupon":"SUMMER","products":3,"first":false,"category":"Games","referrer":"https://example.com/cart?step=3"}}`, 0, i%17)
	}
	b.body = append(b.body, `]}`...)
	return b
}

// number overwrites the ids with numbers from first on.
func (b *batch) number(first int64) {
	for i, at := range b.ids {
		n := first + int64(i)
		for j := idDigits - 1; j >= 0; j-- {
			b.body[at+j] = byte('0' + n%10)
			n /= 10
		}
	}
}

// post posts n batches, concurrency of them at a time, and returns how long that took. It keeps its
// connections for the next call. It sends on each new connection at once, because the server closes a
// silent one.
func (l *load) post(n, concurrency int) time.Duration {
	l.tb.Helper()
	concurrency = min(n, concurrency)
	for len(l.senders) < concurrency {
		l.senders = append(l.senders, l.dial())
	}
	var left atomic.Int64
	left.Store(int64(n - concurrency))
	begin := time.Now()
	var posting sync.WaitGroup
	for _, s := range l.senders[:concurrency] {
		posting.Go(func() {
			for more := true; more; more = left.Add(-1) >= 0 {
				s.batch.number(l.next.Add(batchSize))
				if status, err := s.send(); err != nil || status != 200 {
					l.tb.Errorf("a batch got status %d, %v, want 200", status, err)
					return
				}
			}
		})
	}
	posting.Wait()
	return time.Since(begin)
}

// A sender sends batches over a connection of its own. It uses little processor time, because the
// server runs on the same processors.
type sender struct {
	batch
	conn    net.Conn
	request []byte // its end is the body of the batch
	answers *bufio.Reader
}

// dial returns a sender. The end of the test closes it.
func (l *load) dial() *sender {
	l.tb.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(l.base, "http://"))
	if err != nil {
		l.tb.Fatal(err)
	}
	l.tb.Cleanup(func() { conn.Close() })
	s := &sender{batch: *newBatch(), conn: conn, answers: bufio.NewReader(conn)}
	s.request = fmt.Appendf(nil, "POST /v1/batch HTTP/1.1\r\nHost: %s\r\nAuthorization: Basic a2V5Og==\r\nContent-Length: %d\r\n\r\n", conn.RemoteAddr(), len(s.body))
	head := len(s.request)
	s.request = append(s.request, s.body...)
	s.body = s.request[head:]
	return s
}

// send sends the batch, and returns the status of the answer.
func (s *sender) send() (status int, err error) {
	if _, err := s.conn.Write(s.request); err != nil {
		return 0, err
	}
	resp, err := http.ReadResponse(s.answers, nil)
	if err != nil {
		return 0, err
	}
	_, err = io.Copy(io.Discard, resp.Body)
	resp.Body.Close()
	return resp.StatusCode, err
}

// send sends one batch, by an http.Client that makes new connections as needed.
func (l *load) send(body []byte) (status int, err error) {
	r, err := http.NewRequest("POST", l.base+"/v1/batch", bytes.NewReader(body))
	if err != nil {
		return 0, err
	}
	r.SetBasicAuth("key", "")
	resp, err := l.client.Do(r)
	if err != nil {
		return 0, err
	}
	_, err = io.Copy(io.Discard, resp.Body)
	resp.Body.Close()
	return resp.StatusCode, err
}

// received returns how many requests the receiver has answered.
func (l *load) received() (int, error) {
	text, err := l.get(l.receiver + countPath)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(text)
}

// get returns the body of the answer to a GET request.
func (l *load) get(url string) (string, error) {
	resp, err := l.client.Get(url)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return string(text), err
}

// await waits until the receiver has answered n requests.
func (l *load) await(n int) {
	l.tb.Helper()
	until(l.tb, "deliveries that have arrived at the receiver", n, l.received)
}

// cpu returns the processor time that the server has used.
func (l *load) cpu() time.Duration {
	l.tb.Helper()
	seconds, err := l.metric("process_cpu_seconds_total")
	if err != nil {
		l.tb.Fatal(err)
	}
	return time.Duration(seconds * float64(time.Second))
}

// metric returns the value of a metric of the server.
func (l *load) metric(name string) (float64, error) {
	text, err := l.get(l.admin + "metrics")
	if err != nil {
		return 0, err
	}
	m := regexp.MustCompile("(?m)^" + name + " (.*)$").FindStringSubmatch(text)
	if m == nil {
		return 0, fmt.Errorf("no metric %s", name)
	}
	return strconv.ParseFloat(m[1], 64)
}

// bare posts n webhooks to the receiver by an http.Transport alone. They have about the size of the
// server's webhooks.
func (l *load) bare(n, concurrency int) time.Duration {
	l.tb.Helper()
	const head, tail = `{"version":1,"type":"track","userId":"user-1","event":"Order Completed","properties":{"note":"`, `"},"timestamp":"2026-01-02T03:04:05.678Z"}`
	body := []byte(head + strings.Repeat("x", 450-len(head)-len(tail)) + tail)
	sign, err := signature.Sign(body, "s3cret")
	if err != nil {
		l.tb.Fatal(err)
	}
	header := http.Header{"Content-Type": {"application/json"}, "User-Agent": {"Hookferry/1.0"}, signature.Header: {sign}}
	return testkit.Bare(l.tb, l.receiver+"/hook", header, body, n, concurrency)
}

// BenchmarkFailing reports how long a call takes to be answered, at up to 200 calls a second. alone is
// before 9,999 other destinations have got a call each, beside for the 20 seconds after it: they all
// answer 503.
func BenchmarkFailing(b *testing.B) {
	const others, each = 9_999, 1_000 // a source has at most 1,000 destinations
	l := &load{tb: b}
	var sources, destinations strings.Builder
	for i := range others {
		if i%each == 0 {
			fmt.Fprintf(&sources, "\n  - {name: failing-%d, keys: [failing-%[1]d], destinations: [f%[2]d", i/each, i)
		} else {
			fmt.Fprintf(&sources, ", f%d", i)
		}
		if i%each == each-1 || i == others-1 {
			sources.WriteString("]}")
		}
		fmt.Fprintf(&destinations, "\n  - {id: f%d, endpoints: [{url: \"RECEIVER%s%[1]d\"}]}", i, failing)
	}
	l.sources, l.others = sources.String(), destinations.String()
	l.start("", "")
	call := func(key string) time.Duration {
		r, err := http.NewRequest("POST", l.base+"/v1/track", strings.NewReader(`{"userId":"u","event":"E"}`))
		if err != nil {
			b.Fatal(err)
		}
		r.SetBasicAuth(key, "")
		sent := time.Now()
		resp, err := l.client.Do(r)
		if err != nil {
			b.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		if resp.StatusCode != 200 {
			b.Fatalf("a call got status %d, want 200", resp.StatusCode)
		}
		return time.Since(sent)
	}
	measure := func(name string, span time.Duration) {
		var took []time.Duration
		for begin := time.Now(); time.Since(begin) < span; pause(b, 5*time.Millisecond) {
			took = append(took, call("key"))
		}
		slices.Sort(took)
		b.ReportMetric(float64(took[len(took)/2].Microseconds())/1e3, "ms_p50_"+name)
		b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1e3, "ms_p99_"+name)
	}
	for b.Loop() {
		call("key")
		measure("alone", 10*time.Second)
		for i := range (others + each - 1) / each {
			call(fmt.Sprintf("failing-%d", i))
		}
		measure("beside", 20*time.Second)
	}
	retried, err := l.metric(`hookferry_deliveries_retried_total\{destination="other"\}`)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(retried, "retries") // without those of the destinations that the metrics name
	b.ReportMetric(0, "ns/op")
}

var batches = flag.Int("batches", 10, "how many batches of 100 calls each round of BenchmarkServer sends")

// BenchmarkServer reports how many calls a second the whole server accepts and delivers. Sender,
// server and receiver are three processes. The store is on disk and synced, and logs and metrics
// are on. x_bare is the ratio to a bare http.Transport that posts bodies of the same size to the
// same receiver, in turn with the server. us/call is the processor time of the server.
func BenchmarkServer(b *testing.B) {
	round := *batches
	b.Run("deliver", func(b *testing.B) {
		l := startLoad(b, "", "")
		warm := max(round/10, 1)
		l.bare(warm*batchSize, 64)
		l.post(warm, 16)
		want := 2 * warm * batchSize
		l.await(want)
		var bare, ours time.Duration
		n, cpu := 0, l.cpu()
		for b.Loop() {
			bare += l.bare(round*batchSize, 64)
			begin := time.Now()
			l.post(round, 16)
			want += 2 * round * batchSize
			l.await(want)
			ours += time.Since(begin)
			n += round * batchSize
		}
		b.ReportMetric(float64(n)/bare.Seconds(), "bare/s")
		b.ReportMetric(float64(n)/ours.Seconds(), "calls/s")
		b.ReportMetric(bare.Seconds()/ours.Seconds(), "x_bare")
		b.ReportMetric(float64((l.cpu()-cpu).Microseconds())/float64(n), "us/call")
		b.ReportMetric(0, "ns/op")
	})
	b.Run("accept", func(b *testing.B) {
		l := startLoad(b, ", disabled: true", "")
		l.post(max(round/10, 1), 16)
		var took time.Duration
		n, cpu := 0, l.cpu()
		for b.Loop() {
			took += l.post(round, 16)
			n += round * batchSize
		}
		b.ReportMetric(float64(n)/took.Seconds(), "calls/s")
		b.ReportMetric(float64((l.cpu()-cpu).Microseconds())/float64(n), "us/call")
		b.ReportMetric(0, "ns/op")
	})
}
