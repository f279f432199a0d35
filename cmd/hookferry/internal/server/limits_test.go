package server

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// A raw client writes bytes to a connection and collects the bytes that it receives.
type raw struct {
	w     *world
	conn  net.Conn
	ended chan time.Time // when the server ended the connection
	got   strings.Builder
}

func (w *world) raw(address, text string) *raw {
	w.Helper()
	return w.rawFrom(net.IPv4(192, 0, 2, 1), address, text)
}

func (w *world) rawFrom(ip net.IP, address, text string) *raw {
	w.Helper()
	c, err := w.from(w.Context(), ip, address)
	if err != nil {
		w.Fatal(err)
	}
	r := &raw{w: w, conn: c, ended: make(chan time.Time, 1)}
	w.Cleanup(func() { c.Close() })
	go func() { // runs until the connection ends
		io.Copy(&r.got, c)
		r.ended <- time.Now()
	}()
	r.write(text)
	return r
}

func (r *raw) write(text string) {
	if _, err := io.WriteString(r.conn, text); err != nil {
		r.w.Error(err)
	}
}

// wantEnd waits until the server ends the connection, and checks the time of the end.
func (r *raw) wantEnd(at time.Time) {
	r.w.Helper()
	select {
	case ended := <-r.ended:
		if !ended.Equal(at) {
			r.w.Errorf("the connection ended %v later than wanted", ended.Sub(at))
		}
	case <-afterADay():
		r.w.Fatal("the connection did not end within a day")
	}
}

// TestSlowClientsAreCutOff shows that the server cuts off clients that send the handshake, the
// header or the body slowly, and idle clients. It serves other clients all the time.
func TestSlowClientsAreCutOff(t *testing.T) {
	const call = "POST /v1/track HTTP/1.1\r\nHost: a\r\nAuthorization: Basic azE6\r\n"
	limits := NewHTTP(nil, slog.Default())
	for _, tt := range []struct {
		name  string
		text  string
		drip  string // sent every second
		admin bool
		tls   bool
		limit time.Duration
		got   string // beginning of the answer; empty if there is none
	}{
		{"header", call + "X: ", "x", false, false, limits.ReadHeaderTimeout, ""},
		{"header of the admin API", "GET /api/v1/status HTTP/1.1\r\nX: ", "x", true, false, limits.ReadHeaderTimeout, ""},
		{"no header", "", "", false, false, limits.ReadHeaderTimeout, ""},
		{"handshake", "", "", false, true, limits.ReadHeaderTimeout, ""},
		{"body", call + "Content-Length: 30000\r\n\r\n{", "x", false, false, 5 * time.Second, "HTTP/1.1 408 "},
		{"body that keeps its pace", call + "Content-Length: 30000\r\n\r\n{", strings.Repeat("x", 1025), false, false, limits.ReadTimeout, "HTTP/1.1 408 "},
		{"body of the admin API", "POST /api/v1/test HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 4000\r\n\r\n{", "x", true, false, limits.ReadTimeout, "HTTP/1.1 "},
		// Large load balancers keep idle connections for up to 10 min, and must end them first.
		{"idle", "GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n", "", false, false, 11 * time.Minute, "HTTP/1.1 200 "},
		{"idle, with limits.idleTimeout", "GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n", "", false, false, 15 * time.Second, "HTTP/1.1 200 "},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				client, scheme, more := w.client, "http", ""
				if tt.tls {
					client, scheme, more = w.trusting(w.certificate("calls", 1)), "https", "tls: {certificate: calls.pem, key: calls-key.pem}\n"
				}
				if tt.limit == 15*time.Second {
					more = "limits: {idleTimeout: 15s}\n"
				}
				s := w.start(more + "sources: [{name: web, keys: [k1]}]\n")
				address := s.public()
				if tt.admin {
					address = strings.TrimPrefix(s.admin(), "http://")
				}
				slow := w.raw(address, tt.text)
				began := time.Now()
				for n := 0; time.Since(began) < tt.limit-time.Second; n++ {
					time.Sleep(time.Second)
					if tt.drip != "" {
						slow.write(tt.drip)
					}
					if status := s.callBy(client, scheme+"://"+s.public(), "k1", fmt.Sprint(n)); status != 200 {
						t.Errorf("the call of another client got the status %d, want 200", status)
					}
				}
				slow.wantEnd(began.Add(tt.limit))
				if got := slow.got.String(); !strings.HasPrefix(got, tt.got) || tt.got == "" && got != "" {
					t.Errorf("the slow client got %q, want %q", got, tt.got)
				}
			})
		})
	}
}

// TestIdleConnectionsMakeRoom shows that idle connections of one address do not keep other clients
// out. If the server has no room, it closes a connection of the address with the most idle
// connections: the one that is idle longest. One address also has a bound of its own.
func TestIdleConnectionsMakeRoom(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		s := w.start("limits: {connections: 20, connectionsPerAddress: 15}\nsources: [{name: web, keys: [k1]}]\n")
		open := func(from byte, n int) (all []*raw) {
			for range n {
				all = append(all, w.rawFrom(net.IPv4(192, 0, 2, from), s.public(), ""))
				synctest.Wait()
			}
			return all
		}
		first := open(1, 16)
		open(2, 9)
		if status := s.call("k1", "Other"); status != 200 {
			t.Errorf("the call of another client got the status %d, want 200", status)
		}
		synctest.Wait() // each client has seen whether its connection ended
		for n, c := range first {
			// The server made room for four connections and the call, so it closed five. The last
			// connection was over the bound of its address.
			if ended, want := len(c.ended) == 1, n < 5 || n == 15; ended != want {
				t.Errorf("connection %d of the first address: closed %v, want %v", n, ended, want)
			}
		}
	})
}

// TestServerRefusesLargeHeader shows that the server refuses a header over its limit.
func TestServerRefusesLargeHeader(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		s := w.start("sources: [{name: web, keys: [k1]}]\n")
		limit := NewHTTP(nil, slog.Default()).MaxHeaderBytes
		for size, want := range map[int]int{limit / 2: 200, 2 * limit: http.StatusRequestHeaderFieldsTooLarge} {
			r, err := http.NewRequest("GET", "http://"+s.public()+"/healthz", nil)
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("X", strings.Repeat("x", size))
			if status, _ := w.do(w.client, r); status != want {
				t.Errorf("a header of %d bytes got the status %d, want %d", size, status, want)
			}
		}
	})
}

// TestRequestsOfHTTP2AreBounded shows that a client cannot have more requests by HTTP/2 than it may
// have connections. The server resets the others at once, and serves other clients.
func TestRequestsOfHTTP2AreBounded(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		certificate := w.certificate("calls", 1)
		s := w.start("tls: {certificate: calls.pem, key: calls-key.pem}\nlimits: {connectionsPerAddress: 3}\nsources: [{name: web, keys: [k1]}]\n")
		base := "https://" + s.public()
		clientFrom := func(ip net.IP) *http.Client {
			client := w.trusting(certificate)
			client.Transport.(*http.Transport).DialContext = func(ctx context.Context, _, address string) (net.Conn, error) {
				return w.from(ctx, ip, address)
			}
			return client
		}
		greedy, other := clientFrom(net.IPv4(192, 0, 2, 1)), clientFrom(net.IPv4(192, 0, 2, 2))
		s.callBy(greedy, base, "k1", "First") // opens the only connection of this client
		var reset, answered atomic.Int64
		var requests sync.WaitGroup
		for range 8 {
			requests.Go(func() {
				body, end := io.Pipe() // without any bytes
				defer end.Close()
				resp, err := greedy.Post(base+"/v1/m", "text/plain", body)
				if err != nil {
					reset.Add(1)
					return
				}
				resp.Body.Close()
				answered.Add(1)
			})
		}
		synctest.Wait()
		if n := reset.Load(); n != 5 {
			t.Errorf("the server reset %d of 8 requests of a client at once, want 5", n)
		}
		if status := s.callBy(other, base, "k1", "One"); status != 200 {
			t.Errorf("a call of another client got the status %d, want 200", status)
		}
		requests.Wait()
		if n := answered.Load(); n != 3 {
			t.Errorf("the server answered %d requests, want 3", n)
		}
		if status := s.callBy(greedy, base, "k1", "Two"); status != 200 {
			t.Errorf("after that, a call of the client got the status %d, want 200", status)
		}
	})
}
