package server

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

const (
	callBody   = `{"userId":"u","event":"e"}`
	callHeader = "POST /v1/track HTTP/1.1\r\nHost: a\r\nAuthorization: Basic azE6\r\n"
)

var wholeCall = fmt.Sprintf("%sContent-Length: %d\r\n\r\n%s", callHeader, len(callBody), callBody)

// TestStopCutsOffNoRequest stops a server while clients by HTTP/1 keep connections. All answers from
// the beginning of the drain on end their connections, idle connections end in its middle, and no
// request that has begun is cut off.
func TestStopCutsOffNoRequest(t *testing.T) {
	for _, drain := range []time.Duration{0, 4 * time.Second} {
		bubble(t, func(t *testing.T, w *world) {
			s := w.start(fmt.Sprintf("drain: %v\nsources: [{name: web, keys: [k1]}]\n", drain))
			open := func(text string) *raw {
				r := w.raw(s.public(), text)
				synctest.Wait()
				return r
			}
			idle, kept := open(wholeCall), open(wholeCall)
			half, unused := open(wholeCall), open("")
			half.write(wholeCall[:30])
			inside := open(wholeCall[:len(wholeCall)-3])
			synctest.Wait()

			began := time.Now()
			s.cancel()
			synctest.Wait()
			var late *raw
			if drain > 0 {
				kept.write(wholeCall)
				synctest.Wait()
				kept.wantAnswers(2, 1)
				kept.wantEnd(began)
				time.Sleep(drain/2 + time.Second)
				late = open(wholeCall)
				late.wantAnswers(1, 1)
				late.wantEnd(time.Now())
				time.Sleep(drain/2 - 500*time.Millisecond)
			} else {
				time.Sleep(500 * time.Millisecond)
				kept.wantEnd(began.Add(lastLook))
			}
			idle.wantEnd(began.Add(drain/2 + lastLook))
			idle.wantAnswers(1, 0)
			unused.wantEnd(began.Add(drain + lastLook))

			half.write(wholeCall[30:])
			inside.write(wholeCall[len(wholeCall)-3:])
			synctest.Wait()
			half.wantAnswers(2, 1)
			inside.wantAnswers(1, 1)
			if err := s.stop(); err != nil {
				t.Errorf("Run: %v", err)
			}
			if took := time.Since(began); took > drain+time.Second {
				t.Errorf("the stop took %v, want no wait after the last answer", took)
			}
		})
	}
}

// wantAnswers checks how many answers with the status 200 have come, and how many end the connection.
func (r *raw) wantAnswers(n, last int) {
	r.w.Helper()
	text := r.got.String()
	if ok, ends := strings.Count(text, "HTTP/1.1 200 OK\r\n"), strings.Count(text, "Connection: close\r\n"); ok != n || ends != last {
		r.w.Errorf("%d answers 200, of which %d end the connection, want %d and %d:\n%s", ok, ends, n, last, text)
	}
}

// TestStopCutsOffNoRequestOfHTTP2 stops a server while a client uses HTTP/2. The first answer of the
// drain is followed by GOAWAY, so the next request opens a connection. A request that has begun is
// answered.
func TestStopCutsOffNoRequestOfHTTP2(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		certificate := w.certificate("calls", 1)
		s := w.start("drain: 4s\ntls: {certificate: calls.pem, key: calls-key.pem}\nsources: [{name: web, keys: [k1]}]\n")
		client := w.trusting(certificate)
		begin := func() (connected chan bool, body *io.PipeWriter, answered chan int) {
			connected, answered = make(chan bool, 1), make(chan int, 1)
			ctx := httptrace.WithClientTrace(context.Background(), &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) { connected <- i.Reused }})
			source, body := io.Pipe()
			r, err := http.NewRequestWithContext(ctx, "POST", "https://"+s.public()+"/v1/track", source)
			if err != nil {
				t.Fatal(err)
			}
			r.SetBasicAuth("k1", "")
			go func() {
				resp, err := client.Do(r)
				if err != nil {
					t.Error(err)
					answered <- 0
					return
				}
				defer resp.Body.Close()
				if resp.ProtoMajor != 2 {
					t.Errorf("the answer uses %s, want HTTP/2", resp.Proto)
				}
				answered <- resp.StatusCode
			}()
			return connected, body, answered
		}
		end := func(body *io.PipeWriter, answered chan int) {
			t.Helper()
			io.WriteString(body, callBody)
			body.Close()
			if status := <-answered; status != 200 {
				t.Errorf("status %d, want 200", status)
			}
			synctest.Wait()
		}
		_, body, answered := begin()
		end(body, answered)
		_, slow, slowAnswered := begin()
		synctest.Wait()

		s.cancel()
		synctest.Wait()
		for i, want := range []bool{true, false, false} {
			reused, body, answered := begin()
			end(body, answered)
			if got := <-reused; got != want {
				t.Errorf("request %d of the drain uses a kept connection: %v, want %v", i, got, want)
			}
		}
		time.Sleep(4500 * time.Millisecond)
		end(slow, slowAnswered)
		if err := s.stop(); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}

// A lateListener is closed once, as those of the system are, and Accept finds out a second later.
type lateListener struct {
	net.Listener
	closed atomic.Bool
}

func (l *lateListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		time.Sleep(time.Second)
	}
	return c, err
}

func (l *lateListener) Close() error {
	if l.closed.Swap(true) {
		return net.ErrClosed
	}
	return l.Listener.Close()
}

// On a busy machine, the server stops before it knows that its listener is closed. Then it does not
// say that it has cut off requests.
func TestStopBeforeTheListenerEnds(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		s := w.prepare("sources: [{name: web, keys: [k1]}]\n", nil)
		listen := s.listen
		s.listen = func(ctx context.Context, network, address string) (net.Listener, error) {
			l, err := listen(ctx, network, address)
			return &lateListener{Listener: l}, err
		}
		s.begin()
		s.call("k1", "E")
		if err := s.stop(); err != nil || strings.Contains(s.text(), "cut off") {
			t.Errorf("Run = %v, want nil, and nothing cut off:\n%s", err, s.text())
		}
	})
}
