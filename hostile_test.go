package analytics

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hookferry/analytics/analyticstest"
	"github.com/hookferry/analytics/step"
)

// A hostility is one way in which a collector may misbehave, with the expected effect. If
// neither retried nor status is set, the client counts the batch as delivered.
type hostility struct {
	name string
	step step.Step

	retried   bool          // the attempt fails and is repeated
	status    int           // the status that refuses the batch for good
	took      time.Duration // how long the attempt takes
	wait      time.Duration // the wait that Retry-After asks for; 0: the usual back-off
	losesConn bool          // the connection cannot be used again
	large     bool          // the request must exceed the buffers of the network
	unread    bool          // the client counts the batch as delivered, but the server did not read it
}

func hostilities() []hostility {
	const mb = 1 << 20
	var member bytes.Buffer
	z, _ := gzip.NewWriterLevel(&member, gzip.BestSpeed)
	z.Write(make([]byte, 16*mb))
	z.Close()
	// The body is so large that net/http does not read all of it. From Go 1.27 on, net/http
	// reads up to 256 KB after the body is closed, to keep the connection.
	bomb := strings.Repeat(member.String(), 32)
	far := "Fri, 31 Dec 9999 23:59:59 GMT"
	pause := func(value string) step.Step { return step.Answer(429).With("Retry-After", value) }
	return []hostility{
		// Collectors that do not answer.
		{name: "hangs", step: step.Hang(), retried: true, took: DefaultTimeout, losesConn: true},
		{name: "hangs reading", step: step.HangReading(), large: true, retried: true, took: DefaultTimeout, losesConn: true},
		{name: "is unreachable", step: step.Unreachable(), retried: true, took: DefaultTimeout, losesConn: true},
		{name: "answers too late", step: step.Answer(200).After(DefaultTimeout + time.Second), retried: true, took: DefaultTimeout, losesConn: true},
		{name: "answers in time", step: step.Answer(200).After(DefaultTimeout - 1), took: DefaultTimeout - 1},
		{name: "200 hangs in the middle", step: step.Answer(200).Drip(time.Hour), took: DefaultTimeout, losesConn: true},
		{name: "200 drips", step: step.Answer(200).WithBody(strings.Repeat("x", 100)).Drip(time.Second), took: DefaultTimeout, losesConn: true},
		{name: "503 drips", step: step.Answer(503).WithBody(strings.Repeat("x", 100)).Drip(time.Second), retried: true, took: DefaultTimeout, losesConn: true},

		// Collectors that break the connection.
		{name: "refuses", step: step.Refuse(), retried: true, losesConn: true},
		{name: "resets", step: step.Reset(), retried: true, losesConn: true},
		{name: "resets reading", step: step.ResetReading(), large: true, retried: true, losesConn: true},
		{name: "closes", step: step.Close(), retried: true, losesConn: true},
		{name: "half-closes", step: step.HalfClose(), retried: true, losesConn: true},
		{name: "200 resets in the middle", step: step.Answer(200).Cut(), losesConn: true},
		{name: "503 resets in the middle", step: step.Answer(503).Cut(), retried: true, losesConn: true},
		{name: "200 and hangs up", step: step.Answer(200).HangUp(), losesConn: true},
		{name: "503 and hangs up", step: step.Answer(503).HangUp(), retried: true, losesConn: true},
		{name: "200 says that it closes", step: step.Answer(200).With("Connection", "close"), losesConn: true},

		// Answers that are too large.
		{name: "200 with a gigabyte", step: step.Stream(1 << 30), losesConn: true},
		{name: "200 with a bomb of gzip", step: step.Answer(200).With("Content-Encoding", "gzip").WithBody(bomb), losesConn: true},
		{name: "503 with a bomb of gzip", step: step.Answer(503).With("Content-Encoding", "gzip").WithBody(bomb), retried: true, losesConn: true},
		{name: "503 with two megabytes", step: step.Answer(503).WithBody(strings.Repeat("x", 2*mb)), retried: true, losesConn: true},
		{name: "200 with half a megabyte", step: step.Answer(200).WithBody(strings.Repeat("x", mb/2))},
		{name: "503 with half a megabyte", step: step.Answer(503).WithBody(strings.Repeat("x", mb/2)), retried: true},
		{name: "400 with two megabytes", step: step.Answer(400).WithBody(strings.Repeat("x", 2*mb)), status: 400, losesConn: true},
		{name: "400 with half a megabyte", step: step.Answer(400).WithBody(strings.Repeat("x", mb/2)), status: 400},
		{name: "an endless header", step: step.EndlessHeader(), retried: true, losesConn: true},
		{name: "endless 103s", step: step.EndlessInformational(), retried: true, losesConn: true},

		// Malformed answers.
		{name: "garbage", step: step.Garbage(), retried: true, losesConn: true},
		{name: "nothing", step: step.Raw(""), retried: true, losesConn: true},
		{name: "half a status line", step: step.Raw("HTTP/1.1 20"), retried: true, losesConn: true},
		{name: "half a header", step: step.Raw("HTTP/1.1 200 OK\r\nContent-Le"), retried: true, losesConn: true},
		{name: "a negative length", step: step.Raw("HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n"), retried: true, losesConn: true},
		{name: "two lengths", step: step.Raw("HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\n"), retried: true, losesConn: true},
		{name: "a status of two digits", step: step.Raw("HTTP/1.1 20 OK\r\n\r\n"), retried: true, losesConn: true},
		{name: "the status 999", step: step.Raw("HTTP/1.1 999 Odd\r\n\r\n"), status: 999, losesConn: true},
		{name: "200 as HTTP/1.0", step: step.Raw("HTTP/1.0 200 OK\r\n\r\n{}"), losesConn: true, unread: true},
		{name: "200 with a malformed chunk", step: step.Raw("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"), losesConn: true, unread: true},
		{name: "a few 103s before the 200", step: step.Raw(strings.Repeat("HTTP/1.1 103 Early Hints\r\n\r\n", 20) + "HTTP/1.1 200 OK\r\n\r\n{}"), losesConn: true, unread: true},
		{name: "101", step: step.Raw("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n"), status: 101, losesConn: true},
		{name: "200 with garbage", step: step.Answer(200).WithBody("<html>{\"rejected\":\x00[")},
		{name: "200 that rejects calls that do not exist", step: step.Answer(200).WithBody(`{"rejected":[{"index":-1},{"index":3},{"index":1e300},{"index":"0"},7]}`)},
		{name: "200 with too large a Content-Length", step: step.Answer(200).Misstate(mb), losesConn: true},
		{name: "503 with too large a Content-Length", step: step.Answer(503).Misstate(mb), retried: true, losesConn: true},
		{name: "400 with too large a Content-Length", step: step.Answer(400).Misstate(mb), status: 400, losesConn: true},
		{name: "200 with too small a Content-Length", step: step.Answer(200).Misstate(3), losesConn: true},

		// Answers that refuse the batch.
		{name: "301 without a Location", step: step.Answer(301), status: 301},
		{name: "302 to elsewhere", step: step.Answer(302).With("Location", "http://elsewhere.example/"), status: 302},
		{name: "303 to itself", step: step.Answer(303).With("Location", "/v1/batch"), status: 303},
		{name: "307 to itself", step: step.Answer(307).With("Location", "/v1/batch"), status: 307},
		{name: "307 to elsewhere", step: step.Answer(307).With("Location", "http://elsewhere.example/v1/batch"), status: 307},
		{name: "308 to nowhere", step: step.Answer(308).With("Location", "http://%zz"), status: 308},
		{name: "400", step: step.Answer(400), status: 400},
		{name: "401", step: step.Answer(401).With("WWW-Authenticate", `Basic realm="again"`), status: 401},
		{name: "407", step: step.Answer(407).With("Proxy-Authenticate", "Basic"), status: 407},
		{name: "417", step: step.Answer(417), status: 417},
		{name: "421", step: step.Answer(421), status: 421},

		// Answers that ask for a pause.
		{name: "429", step: step.Answer(429), retried: true},
		{name: "429 for 7 s", step: pause("7"), retried: true, wait: 7 * time.Second},
		{name: "429 with a negative Retry-After", step: pause("-5"), retried: true},
		{name: "429 with Retry-After 1.5", step: pause("1.5"), retried: true},
		{name: "429 with Retry-After 1e9", step: pause("1e9"), retried: true},
		{name: "429 for more seconds than an int64 holds", step: pause(strings.Repeat("9", 400)), retried: true, wait: maxRetryAfter},
		{name: "429 until the past", step: pause("Thu, 01 Jan 1970 00:00:00 GMT"), retried: true},
		{name: "429 until the far future", step: pause(far), retried: true, wait: maxRetryAfter},
		{name: "503 until the far future", step: step.Answer(503).With("Retry-After", far), retried: true, wait: maxRetryAfter},
		{name: "429 with Retry-After soon", step: pause("soon"), retried: true},
		{name: "429 with an empty Retry-After", step: pause(""), retried: true},
		{name: "429 with two values of Retry-After", step: pause("7").With("Retry-After", "9"), retried: true, wait: 7 * time.Second},
		{name: "200 with Retry-After", step: step.Answer(200).With("Retry-After", "60")},
		{name: "400 with Retry-After", step: step.Answer(400).With("Retry-After", "60"), status: 400},
	}
}

// A hostileTest has a client and the hostile collector that it sends to.
type hostileTest struct {
	t      *testing.T
	h      hostility
	srv    *analyticstest.Server
	client *Client
	told   deliveryRecorder
	conns  atomic.Int32
	number int
}

// newHostileTest returns a hostileTest whose client has sent one message and so has an open
// connection.
func newHostileTest(t *testing.T, h hostility, spooled bool) *hostileTest {
	s := &hostileTest{t: t, h: h, srv: analyticstest.New(t), client: New("secret-key")}
	transport := s.srv.Transport()
	transport.MaxResponseHeaderBytes = maxAnswerHeader // like the client's own transport
	dial := transport.DialContext
	transport.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		if addr != "collector.example:80" {
			t.Errorf("%s: the client connects to %s, want collector.example:80", h.name, addr)
		}
		s.conns.Add(1)
		return dial(ctx, network, addr)
	}
	s.client.Endpoint, s.client.Transport = "http://collector.example", transport
	if spooled {
		s.client.SpoolDir = t.TempDir()
	}
	s.client.OnDelivery = s.told.add
	s.track(1)
	if err := s.client.Flush(t.Context()); err != nil {
		t.Fatalf("%s: %v", h.name, err)
	}
	return s
}

// track queues n messages.
func (s *hostileTest) track(n int) {
	size := 10
	if s.h.large {
		size = 30_000 // three such messages exceed 64 KB
	}
	for range n {
		s.number++
		err := s.client.Track(&Track{UserId: "u", Event: "e", MessageId: fmt.Sprint(s.number), Properties: map[string]any{"text": strings.Repeat("x", size)}})
		if err != nil {
			s.t.Fatalf("%s: %v", s.h.name, err)
		}
	}
}

// checkAttempts checks the number, the times and the headers of the attempts after the first
// message.
func (s *hostileTest) checkAttempts(want int) {
	s.t.Helper()
	list := s.srv.Batches()[1:]
	if len(list) != want {
		s.t.Fatalf("%s: %d attempts, want %d", s.h.name, len(list), want)
	}
	for i, b := range list {
		if b.RetryCount != i || b.WriteKey != "secret-key" || b.Path != "/v1/batch" || b.Err == nil && b.MessageId == "" {
			s.t.Errorf("%s: attempt %d has retry count %d, path %s and message id %q, want %d, /v1/batch and an id", s.h.name, i+1, b.RetryCount, b.Path, b.MessageId, i)
		}
		if i == 0 {
			continue
		}
		// The server records when an attempt arrives, even if it does not read the body. So the
		// time between two attempts includes h.took.
		wait := b.Time.Sub(list[i-1].Time) - s.h.took
		least, most := s.h.wait, max(s.h.wait, backoffLimit(i-1))
		if wait < least || wait > most {
			s.t.Errorf("%s: attempt %d came %v after the end of the one before, want %v to %v", s.h.name, i+1, wait, least, most)
		}
	}
}

// checkError checks the error of Flush and the counters after three messages were not
// delivered. err must count them as dropped or, with SpoolDir, as spooled.
func (s *hostileTest) checkError(err error, reason Reason, spooled bool) {
	s.t.Helper()
	var u *UndeliveredError
	want := UndeliveredError{Dropped: 3}
	if spooled {
		want = UndeliveredError{Spooled: 3}
	}
	if !errors.As(err, &u) || u.Dropped != want.Dropped || u.Spooled != want.Spooled || u.Delivered+u.Pending != 0 {
		s.t.Fatalf("%s: Flush: %v, want %+v", s.h.name, err, want)
	}
	var status *StatusError
	if got := errors.As(err, &status); s.h.status != 0 && (!got || status.Code != s.h.status) {
		s.t.Errorf("%s: Flush: %v, want the status %d", s.h.name, err, s.h.status)
	}
	if strings.Contains(err.Error(), "secret") || strings.Contains(err.Error(), "elsewhere") {
		s.t.Errorf("%s: Flush: %v, want an error without the write key and the Location", s.h.name, err)
	}
	stats := s.client.Stats()
	if !spooled && (stats.ByReason[reason] != 3 || stats.Dropped != 3) || !stats.sums() || stats.Memory != 0 {
		s.t.Errorf("%s: Stats() = %+v, want 3 dropped as %s", s.h.name, stats, reason)
	}
}

// closeAndCheck closes the client and compares the counters, the calls of OnDelivery and the calls
// at the collector.
func (s *hostileTest) closeAndCheck(delivered, arrived, attempts, batches int) {
	s.t.Helper()
	if err := s.client.Close(); err != nil {
		s.t.Errorf("%s: Close: %v", s.h.name, err)
	}
	stats := s.client.Stats()
	dropped := s.number - delivered
	if stats.Queued != uint64(s.number) || stats.Delivered != uint64(delivered) || stats.Dropped != uint64(dropped) || !stats.sums() ||
		stats.Pending+stats.Spooled+stats.Memory != 0 || stats.Attempts != uint64(attempts) || stats.Batches != uint64(batches) {
		s.t.Errorf("%s: Stats() = %+v, want %d of %d delivered, %d batches and %d attempts", s.h.name, stats, delivered, s.number, batches, attempts)
	}
	told := map[bool]int{}
	for _, d := range s.told.got() {
		told[d.Reason == ""] += d.Count
	}
	if told[true] != delivered || told[false] != dropped {
		s.t.Errorf("%s: OnDelivery counted %d delivered and %d dropped, want %d and %d", s.h.name, told[true], told[false], delivered, dropped)
	}
	if n := len(s.srv.Calls()); n != arrived {
		s.t.Errorf("%s: %d calls arrived, want %d", s.h.name, n, arrived)
	}
}

// If a collector misbehaves once, the client loses at most that attempt and the connection.
// No goroutine outlives the bubble.
func TestACollectorThatMisbehavesOnceFailsAtMostOneAttempt(t *testing.T) {
	for _, h := range hostilities() {
		for _, spooled := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				s := newHostileTest(t, h, spooled)
				s.srv.SetScript(h.step, step.Answer(200))
				start := time.Now()
				s.track(3)
				err := s.client.Flush(t.Context())
				attempts, delivered, arrived := 1, 5, 5
				switch {
				case h.retried:
					attempts = 2
					s.checkAttempts(2)
				case spooled && misdirected(h.status):
					attempts = 2 // the second one below, with the next message
					s.checkAttempts(1)
					s.checkError(err, ReasonRefused, true)
					err = nil
				case h.status != 0:
					delivered, arrived = 2, 2
					s.checkAttempts(1)
					s.checkError(err, ReasonRefused, false)
					err = nil
				default:
					s.checkAttempts(1)
					if h.unread {
						arrived = 2
					}
				}
				if err != nil {
					t.Errorf("%s: Flush: %v", h.name, err)
				}
				if took := time.Since(start); took < h.took+h.wait || took > h.took+max(h.wait, backoffLimit(0)) {
					t.Errorf("%s: Flush took %v, want %v to %v more", h.name, took, h.took+h.wait, max(h.wait, backoffLimit(0)))
				}
				synctest.Wait() // wait until the client has noticed how the connection ended
				s.track(1)
				if err := s.client.Flush(t.Context()); err != nil {
					t.Errorf("%s: the next message: %v", h.name, err)
				}
				want := int32(1)
				if h.losesConn {
					want = 2
				}
				if n := s.conns.Load(); n != want {
					t.Errorf("%s: %d connections, want %d", h.name, n, want)
				}
				s.closeAndCheck(delivered, arrived, 2+attempts, 3)
			})
		}
	}
}

// If a collector misbehaves at every request, the client makes eleven attempts. Then it drops
// the messages or, with SpoolDir, keeps them until the collector behaves.
func TestTheClientGivesUpAfterElevenHostileAttempts(t *testing.T) {
	for _, h := range hostilities() {
		if !h.retried {
			continue
		}
		// After one of these two steps the client cannot connect again. So the server sees only
		// the first attempt, which the client makes on its open connection.
		refuses := h.name == "refuses" || h.name == "is unreachable"
		for _, spooled := range []bool{false, true} {
			if refuses && spooled {
				continue // see TestEndingWhileTheCollectorIsAway
			}
			synctest.Test(t, func(t *testing.T) {
				s := newHostileTest(t, h, spooled)
				s.srv.SetScript(h.step)
				s.track(3)
				start := time.Now()
				err := s.client.Flush(t.Context())
				const all = 1 + maxRetries
				if refuses {
					if n := s.conns.Load(); n != all {
						t.Errorf("%s: %d attempts to connect, want %d", h.name, n, all)
					}
				} else {
					s.checkAttempts(all)
				}
				most := time.Duration(0)
				for i := range all {
					most += h.took
					if i < maxRetries {
						most += max(h.wait, backoffLimit(i))
					}
				}
				if took := time.Since(start); took < all*h.took+maxRetries*h.wait || took > most {
					t.Errorf("%s: given up after %v, want %v to %v", h.name, took, all*h.took+maxRetries*h.wait, most)
				}
				s.checkError(err, ReasonExhausted, spooled)
				s.srv.SetScript()
				time.Sleep(h.wait) // the last answer, too, asked for a pause
				if spooled {
					s.closeAndCheck(4, 4, 1+all+1, 2)
				} else {
					s.closeAndCheck(1, 1, 1+all, 2)
				}
			})
		}
	}
}

// Whatever bytes the collector answers, the batch is settled within a bounded time.
func FuzzAnswer(f *testing.F) {
	for _, text := range []string{
		"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
		"HTTP/1.1 200 OK\r\n\r\n{\"rejected\":[{\"index\":0,\"code\":\"c\"}]}",
		"HTTP/1.1 429 \r\nRetry-After: 99999999999999999999\r\nContent-Length: 0\r\n\r\n",
		"HTTP/1.1 307 \r\nLocation: //x:y@[::\r\n\r\n",
		"HTTP/1.1 101 \r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n",
		"HTTP/1.1 103 \r\n\r\nHTTP/1.1 100 \r\n\r\nHTTP/1.1 503 \r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n",
		"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n\x1f\x8b",
		"\x16\x03\x01",
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		synctest.Test(t, func(t *testing.T) {
			srv := analyticstest.New(t, step.Raw(string(text)))
			c := New("k")
			c.Transport = srv.Transport()
			track(t, c, 2)
			start := time.Now()
			err := c.Flush(t.Context())
			s := c.Stats()
			if !s.sums() || s.Delivered+s.Dropped != 2 || (err == nil) != (s.Delivered == 2) || s.Memory != 0 {
				t.Errorf("Flush: %v; Stats() = %+v, want 2 messages delivered or dropped, as the error says", err, s)
			}
			if n := uint64(len(srv.Batches())); n != s.Attempts || n > 1+maxRetries {
				t.Errorf("%d requests, want the %d attempts of Stats, and at most %d", n, s.Attempts, 1+maxRetries)
			}
			if took, most := time.Since(start), maxRetries*maxRetryAfter+(1+maxRetries)*DefaultTimeout; took > most {
				t.Errorf("settled after %v, want at most %v", took, most)
			}
			closeClient(t, c)
		})
	})
}

// A server may close an idle connection while the client sends the next request on it. The
// client loses at most that one attempt.
func TestAClosedIdleConnectionFailsAtMostOneAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := analyticstest.New(t)
		var idle net.Conn
		transport := srv.Transport()
		dial := transport.DialContext
		transport.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
			c, err := dial(ctx, network, addr)
			idle = c
			return c, err
		}
		c := New("k")
		c.Transport = &connCloser{http: transport, conn: &idle}
		for range 3 {
			track(t, c, 1)
			flush(t, c)
		}
		closeClient(t, c)
		checkStats(t, c, 3, 3, 0, 0)
		if s, n := c.Stats(), len(srv.Calls()); s.Attempts < 3 || s.Attempts > 5 || n != 3 {
			t.Errorf("Stats() = %+v, %d calls arrived, want 3 and 3 to 5 attempts", s, n)
		}
	})
}

// The client's own transport limits the size of an answer's header.
func TestAnEndlessHeaderIsCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := analyticstest.New(t, step.EndlessHeader(), step.Answer(200))
		var read atomic.Int64
		own := newTransport(DefaultTimeout)
		own.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
			c, err := srv.Transport().DialContext(ctx, network, addr)
			return &countedConn{c, &read}, err
		}
		c := New("k")
		c.Transport = own
		track(t, c, 1)
		closeClient(t, c)
		own.CloseIdleConnections()
		checkStats(t, c, 1, 1, 0, 0)
		if n := read.Load(); n > 128<<10 {
			t.Errorf("%d bytes read of a header, want at most 128 KB", n)
		}
	})
}

// A countedConn counts the bytes read from it.
type countedConn struct {
	net.Conn
	read *atomic.Int64
}

func (c *countedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.read.Add(int64(n))
	return n, err
}

// A connCloser closes the latest connection at every other request, at the same time as it
// makes the request. The request may use that connection.
type connCloser struct {
	http http.RoundTripper
	conn *net.Conn
	used bool
}

func (r *connCloser) RoundTrip(req *http.Request) (*http.Response, error) {
	if c := *r.conn; c != nil && !r.used {
		go c.Close()
	}
	r.used = !r.used
	return r.http.RoundTrip(req)
}
