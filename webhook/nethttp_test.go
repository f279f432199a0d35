package webhook

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"
)

// If the header or the framing of an answer is wrong, the status decides, with both clients: the
// receiver has had the event. The attempt says what was wrong. With NetHTTP, timeouts, redirects and
// the address guard work as without it.
func TestStatusOfAFlawedAnswerDecides(t *testing.T) {
	const flawed200 = "HTTP/1.1 200 OK\r\nContent-Length: 0, 0\r\n\r\n"
	const flawed404 = "HTTP/1.1 404 No\r\nTransfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n"
	for _, tt := range []struct {
		name    string
		netHTTP bool
		guarded bool
		answer  string
		reason  Reason // "" if the event is delivered
		flaw    string
	}{
		{name: "own client", answer: flawed200, flaw: "malformed answer: its length is not one number"},
		{name: "own client, 404", answer: flawed404, reason: ReasonRefused, flaw: "malformed answer: unknown transfer coding"},
		{name: "net/http", netHTTP: true, answer: flawed200, flaw: "malformed answer: its length is not one number"},
		{name: "net/http, 404", netHTTP: true, answer: flawed404, reason: ReasonRefused, flaw: "malformed answer: unknown transfer coding"},
		{name: "no answer", netHTTP: true, reason: ReasonTimeout},
		{name: "redirect", netHTTP: true, answer: "HTTP/1.1 307 Go\r\nLocation: /x\r\nContent-Length: 0\r\n\r\n", reason: ReasonRedirect},
		{name: "address guard", netHTTP: true, guarded: true, reason: ReasonAddress},
	} {
		synctest.Test(t, func(t *testing.T) {
			requests := 0
			config := &Config{ServiceName: "Test", Timeout: 5 * time.Second, MaxInFlight: 1, MaxConcurrent: 1}
			if !tt.guarded {
				config.DialContext = func(context.Context, string, string) (net.Conn, error) {
					near, far := net.Pipe()
					go func() { // ends when the client closes
						defer far.Close()
						for r := bufio.NewReader(far); ; requests++ {
							req, err := http.ReadRequest(r)
							if err != nil {
								return
							}
							io.Copy(io.Discard, req.Body)
							io.WriteString(far, tt.answer)
						}
					}()
					return near, nil
				}
			}
			to, err := compile(&Destination{ID: "crm", Endpoints: []Endpoint{{URL: "http://127.0.0.1:9/hook"}}, NetHTTP: tt.netHTTP}, config, nil)
			must(t, err)
			c := newClient(config, new(guard), t.Context())
			defer c.Close()
			s := &sender{clients: &clients{c, c}}
			res := s.send(t.Context(), &Delivery{ID: "m1", Body: []byte("{}")}, to.endpoints[0])
			if res.attempt.Reason != tt.reason || time.Duration(res.attempt.Took) > config.Timeout {
				t.Errorf("%s: send = %+v, want the reason %q", tt.name, res.attempt, tt.reason)
			}
			if tt.flaw != "" && res.attempt.Error != tt.flaw {
				t.Errorf("%s: the attempt has the error %q, want %q", tt.name, res.attempt.Error, tt.flaw)
			}
			synctest.Wait()
			want := 1
			if tt.guarded {
				want = 0
			}
			if requests != want {
				t.Errorf("%s: got %d requests, want %d", tt.name, requests, want)
			}
		})
	}
}
