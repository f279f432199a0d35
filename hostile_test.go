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
)

// A hostility is one way in which a collector may mistreat a request, and the expected
// effect. If neither retried nor status is set, the batch is delivered.
type hostility struct {
	name string
	step analyticstest.Step

	retried bool          // the attempt fails and is repeated
	status  int           // the status that refuses the batch for good
	took    time.Duration // how long the attempt takes
	wait    time.Duration // the wait that Retry-After asks for; 0: the usual back-off
	costs   bool          // the connection is lost
	large   bool          // the request must be large, so that it exceeds the buffers of a network
	untaken bool          // the client counts the batch as delivered, but the server did not read it
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
	pause := func(value string) analyticstest.Step { return analyticstest.Answer(429).With("Retry-After", value) }
	return []hostility{
		// Collectors that do not answer.
		{name: "hangs", step: analyticstest.Hang(), retried: true, took: DefaultTimeout, costs: true},
		{name: "hangs reading", step: analyticstest.HangReading(), large: true, retried: true, took: DefaultTimeout, costs: true},
		{name: "is unreachable", step: analyticstest.Unreachable(), retried: true, took: DefaultTimeout, costs: true},
		{name: "answers too late", step: analyticstest.Answer(200).After(DefaultTimeout + time.Second), retried: true, took: DefaultTimeout, costs: true},
		{name: "answers in time", step: analyticstest.Answer(200).After(DefaultTimeout - 1), took: DefaultTimeout - 1},
		{name: "200 hangs in the middle", step: analyticstest.Answer(200).Drip(time.Hour), took: DefaultTimeout, costs: true},
		{name: "200 drips", step: analyticstest.Answer(200).WithBody(strings.Repeat("x", 100)).Drip(time.Second), took: DefaultTimeout, costs: true},
		{name: "503 drips", step: analyticstest.Answer(503).WithBody(strings.Repeat("x", 100)).Drip(time.Second), retried: true, took: DefaultTimeout, costs: true},

		// Collectors that break the connection.
		{name: "refuses", step: analyticstest.Refuse(), retried: true, costs: true},
		{name: "resets", step: analyticstest.Reset(), retried: true, costs: true},
		{name: "resets reading", step: analyticstest.ResetReading(), large: true, retried: true, costs: true},
		{name: "closes", step: analyticstest.Close(), retried: true, costs: true},
		{name: "half-closes", step: analyticstest.HalfClose(), retried: true, costs: true},
		{name: "200 resets in the middle", step: analyticstest.Answer(200).Cut(), costs: true},
		{name: "503 resets in the middle", step: analyticstest.Answer(503).Cut(), retried: true, costs: true},
		{name: "200 and hangs up", step: analyticstest.Answer(200).HangUp(), costs: true},
		{name: "503 and hangs up", step: analyticstest.Answer(503).HangUp(), retried: true, costs: true},
		{name: "200 says that it closes", step: analyticstest.Answer(200).With("Connection", "close"), costs: true},

		// Answers that are too large.
		{name: "200 with a gigabyte", step: analyticstest.Stream(1 << 30), costs: true},
		{name: "200 with a bomb of gzip", step: analyticstest.Answer(200).With("Content-Encoding", "gzip").WithBody(bomb), costs: true},
		{name: "503 with a bomb of gzip", step: analyticstest.Answer(503).With("Content-Encoding", "gzip").WithBody(bomb), retried: true, costs: true},
		{name: "503 with two megabytes", step: analyticstest.Answer(503).WithBody(strings.Repeat("x", 2*mb)), retried: true, costs: true},
		{name: "200 with half a megabyte", step: analyticstest.Answer(200).WithBody(strings.Repeat("x", mb/2))},
		{name: "503 with half a megabyte", step: analyticstest.Answer(503).WithBody(strings.Repeat("x", mb/2)), retried: true},
		{name: "400 with two megabytes", step: analyticstest.Answer(400).WithBody(strings.Repeat("x", 2*mb)), status: 400, costs: true},
		{name: "400 with half a megabyte", step: analyticstest.Answer(400).WithBody(strings.Repeat("x", mb/2)), status: 400},
		{name: "an endless header", step: analyticstest.EndlessHeader(), retried: true, costs: true},
		{name: "endless 103s", step: analyticstest.EndlessInformational(), retried: true, costs: true},

		// Malformed answers.
		{name: "garbage", step: analyticstest.Garbage(), retried: true, costs: true},
		{name: "nothing", step: analyticstest.Raw(""), retried: true, costs: true},
		{name: "half a status line", step: analyticstest.Raw("HTTP/1.1 20"), retried: true, costs: true},
		{name: "half a header", step: analyticstest.Raw("HTTP/1.1 200 OK\r\nContent-Le"), retried: true, costs: true},
		{name: "a negative length", step: analyticstest.Raw("HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n"), retried: true, costs: true},
		{name: "two lengths", step: analyticstest.Raw("HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\n"), retried: true, costs: true},
		{name: "a status of two digits", step: analyticstest.Raw("HTTP/1.1 20 OK\r\n\r\n"), retried: true, costs: true},
		{name: "the status 999", step: analyticstest.Raw("HTTP/1.1 999 Odd\r\n\r\n"), status: 999, costs: true},
		{name: "200 as HTTP/1.0", step: analyticstest.Raw("HTTP/1.0 200 OK\r\n\r\n{}"), costs: true, untaken: true},
		{name: "200 in chunks that are none", step: analyticstest.Raw("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"), costs: true, untaken: true},
		{name: "a few 103s before the 200", step: analyticstest.Raw(strings.Repeat("HTTP/1.1 103 Early Hints\r\n\r\n", 20) + "HTTP/1.1 200 OK\r\n\r\n{}"), costs: true, untaken: true},
		{name: "101", step: analyticstest.Raw("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n"), status: 101, costs: true},
		{name: "200 with garbage", step: analyticstest.Answer(200).WithBody("<html>{\"rejected\":\x00[")},
		{name: "200 that rejects what there is not", step: analyticstest.Answer(200).WithBody(`{"rejected":[{"index":-1},{"index":3},{"index":1e300},{"index":"0"},7]}`)},
		{name: "200 that claims too much", step: analyticstest.Answer(200).Misstate(mb), costs: true},
		{name: "503 that claims too much", step: analyticstest.Answer(503).Misstate(mb), retried: true, costs: true},
		{name: "400 that claims too much", step: analyticstest.Answer(400).Misstate(mb), status: 400, costs: true},
		{name: "200 that claims too little", step: analyticstest.Answer(200).Misstate(3), costs: true},

		// Answers that refuse the batch.
		{name: "301 without a Location", step: analyticstest.Answer(301), status: 301},
		{name: "302 to elsewhere", step: analyticstest.Answer(302).With("Location", "http://elsewhere.example/"), status: 302},
		{name: "303 to itself", step: analyticstest.Answer(303).With("Location", "/v1/batch"), status: 303},
		{name: "307 to itself", step: analyticstest.Answer(307).With("Location", "/v1/batch"), status: 307},
		{name: "307 to elsewhere", step: analyticstest.Answer(307).With("Location", "http://elsewhere.example/v1/batch"), status: 307},
		{name: "308 to nowhere", step: analyticstest.Answer(308).With("Location", "http://%zz"), status: 308},
		{name: "400", step: analyticstest.Answer(400), status: 400},
		{name: "401", step: analyticstest.Answer(401).With("WWW-Authenticate", `Basic realm="again"`), status: 401},
		{name: "407", step: analyticstest.Answer(407).With("Proxy-Authenticate", "Basic"), status: 407},
		{name: "413", step: analyticstest.Answer(413), status: 413},
		{name: "417", step: analyticstest.Answer(417), status: 417},
		{name: "421", step: analyticstest.Answer(421), status: 421},

		// Answers that ask for a pause.
		{name: "429", step: analyticstest.Answer(429), retried: true},
		{name: "429 for 7 s", step: pause("7"), retried: true, wait: 7 * time.Second},
		{name: "429 for a negative time", step: pause("-5"), retried: true},
		{name: "429 for a fraction", step: pause("1.5"), retried: true},
		{name: "429 for 1e9", step: pause("1e9"), retried: true},
		{name: "429 for longer than an int64", step: pause(strings.Repeat("9", 400)), retried: true, wait: maxRetryAfter},
		{name: "429 until the past", step: pause("Thu, 01 Jan 1970 00:00:00 GMT"), retried: true},
		{name: "429 until the far future", step: pause(far), retried: true, wait: maxRetryAfter},
		{name: "503 until the far future", step: analyticstest.Answer(503).With("Retry-After", far), retried: true, wait: maxRetryAfter},
		{name: "429 for soon", step: pause("soon"), retried: true},
		{name: "429 for nothing", step: pause(""), retried: true},
		{name: "429 for two times", step: pause("7").With("Retry-After", "9"), retried: true, wait: 7 * time.Second},
		{name: "200 for a while", step: analyticstest.Answer(200).With("Retry-After", "60")},
		{name: "400 for a while", step: analyticstest.Answer(400).With("Retry-After", "60"), status: 400},
	}
}

// A stand is a client with a hostile collector.
type stand struct {
	t      *testing.T
	h      hostility
	srv    *analyticstest.Server
	client *Client
	told   fates
	conns  atomic.Int32
	number int
}

// newStand returns a stand whose client has a connection and has sent one message.
func newStand(t *testing.T, h hostility, spooled bool) *stand {
	s := &stand{t: t, h: h, srv: analyticstest.New(t), client: New("secret-key")}
	transport := s.srv.Transport()
	transport.MaxResponseHeaderBytes = maxAnswerHeader // like the client's own transport
	dial := transport.DialContext
	transport.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		if addr != "collector.example:80" {
			t.Errorf("%s: the client connects to %s", h.name, addr)
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
func (s *stand) track(n int) {
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

// attempts checks the times and the headers of the requests after the first message.
func (s *stand) attempts(want int) {
	s.t.Helper()
	list := s.srv.Batches()[1:]
	if len(list) != want {
		s.t.Fatalf("%s: %d attempts, want %d", s.h.name, len(list), want)
	}
	for i, b := range list {
		if b.RetryCount != i || b.WriteKey != "secret-key" || b.Path != "/v1/batch" || b.Err == nil && b.MessageId == "" {
			s.t.Errorf("%s: attempt %d: retry count %d, path %s, message id %q", s.h.name, i+1, b.RetryCount, b.Path, b.MessageId)
		}
		if i == 0 {
			continue
		}
		// A request whose body is not read to the end counts as received at once.
		wait := b.Time.Sub(list[i-1].Time) - s.h.took
		least, most := s.h.wait, max(s.h.wait, backoffLimit(i-1))
		if wait < least || wait > most {
			s.t.Errorf("%s: attempt %d came %v after the end of the one before, want %v to %v", s.h.name, i+1, wait, least, most)
		}
	}
}

// ended checks the *UndeliveredError for three messages.
func (s *stand) ended(err error, reason Reason, spooled bool) {
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
		s.t.Errorf("%s: Flush: %v, which tells too much", s.h.name, err)
	}
	stats := s.client.Stats()
	if !spooled && (stats.ByReason[reason] != 3 || stats.Dropped != 3) || !stats.sums() || stats.Memory != 0 {
		s.t.Errorf("%s: Stats() = %+v, want 3 dropped as %s", s.h.name, stats, reason)
	}
}

// finish closes the client and compares the counters, the calls of OnDelivery and the calls
// at the collector.
func (s *stand) finish(delivered, arrived, attempts, batches int) {
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
		s.t.Errorf("%s: OnDelivery was told of %d delivered and %d dropped, want %d and %d", s.h.name, told[true], told[false], delivered, dropped)
	}
	if n := len(s.srv.Calls()); n != arrived {
		s.t.Errorf("%s: %d calls arrived, want %d", s.h.name, n, arrived)
	}
}

// A collector that misbehaves once costs that attempt and, for some hostilities, the
// connection. No goroutine outlives the bubble.
func TestHostileCollectorsOnce(t *testing.T) {
	for _, h := range hostilities() {
		for _, spooled := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				s := newStand(t, h, spooled)
				s.srv.SetScript(h.step, analyticstest.Answer(200))
				start := time.Now()
				s.track(3)
				err := s.client.Flush(t.Context())
				attempts, delivered, arrived := 1, 5, 5
				switch {
				case h.retried:
					attempts = 2
					s.attempts(2)
				case h.status != 0:
					delivered, arrived = 2, 2
					s.attempts(1)
					s.ended(err, ReasonRefused, false)
					err = nil
				default:
					s.attempts(1)
					if h.untaken {
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
				if h.costs {
					want = 2
				}
				if n := s.conns.Load(); n != want {
					t.Errorf("%s: %d connections, want %d", h.name, n, want)
				}
				s.finish(delivered, arrived, 2+attempts, 3)
			})
		}
	}
}

// A collector that misbehaves at every request gets eleven attempts. Then the client drops
// the messages or, with SpoolDir, keeps them until the collector behaves.
func TestHostileCollectorsForever(t *testing.T) {
	for _, h := range hostilities() {
		if !h.retried {
			continue
		}
		// These steps affect requests on an open connection only.
		refuses := h.name == "refuses" || h.name == "is unreachable"
		for _, spooled := range []bool{false, true} {
			if refuses && spooled {
				continue // see TestEndingWhileTheCollectorIsAway
			}
			synctest.Test(t, func(t *testing.T) {
				s := newStand(t, h, spooled)
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
					s.attempts(all)
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
				s.ended(err, ReasonExhausted, spooled)
				s.srv.SetScript()
				time.Sleep(h.wait) // the last answer has asked for a pause, too
				if spooled {
					s.finish(4, 4, 1+all+1, 2)
				} else {
					s.finish(1, 1, 1+all, 2)
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
			srv := analyticstest.New(t, analyticstest.Raw(string(text)))
			c := New("k")
			c.Transport = srv.Transport()
			track(t, c, 2)
			start := time.Now()
			err := c.Flush(t.Context())
			s := c.Stats()
			if !s.sums() || s.Delivered+s.Dropped != 2 || (err == nil) != (s.Delivered == 2) || s.Memory != 0 {
				t.Errorf("Flush: %v; Stats() = %+v", err, s)
			}
			if n := uint64(len(srv.Batches())); n != s.Attempts || n > 1+maxRetries {
				t.Errorf("%d requests, %d attempts", n, s.Attempts)
			}
			if took, most := time.Since(start), maxRetries*maxRetryAfter+(1+maxRetries)*DefaultTimeout; took > most {
				t.Errorf("settled after %v, want at most %v", took, most)
			}
			closeClient(t, c)
		})
	})
}

// A server may close an idle connection while the next request is on its way. This costs at
// most one attempt.
func TestIdleConnectionsThatTheServerCloses(t *testing.T) {
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
		c.Transport = &closeRacer{http: transport, conn: &idle}
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
		srv := analyticstest.New(t, analyticstest.EndlessHeader(), analyticstest.Answer(200))
		var read atomic.Int64
		own := newTransport()
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

// A closeRacer closes the latest connection while a request that may use it is being made.
type closeRacer struct {
	http http.RoundTripper
	conn *net.Conn
	used bool
}

func (r *closeRacer) RoundTrip(req *http.Request) (*http.Response, error) {
	if c := *r.conn; c != nil && !r.used {
		go c.Close()
	}
	r.used = !r.used
	return r.http.RoundTrip(req)
}
