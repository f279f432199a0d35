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

// A receiver may answer in a form that the forwarder's own client refuses, such as a folded header.
// A destination can then set NetHTTP. Timeouts, redirects and the address guard work as without it.
func TestNetHTTPTakesAnswersThatTheOwnClientRefuses(t *testing.T) {
	for _, tt := range []struct {
		name    string
		netHTTP bool
		guarded bool
		answer  string
		reason  Reason // "" if the event is delivered
	}{
		{name: "own client", answer: "HTTP/1.1 200 OK\r\nRetry-After:\r\n 7\r\nContent-Length: 0\r\n\r\n", reason: ReasonProtocol},
		{name: "net/http", netHTTP: true, answer: "HTTP/1.1 200 OK\r\nRetry-After:\r\n 7\r\nContent-Length: 0\r\n\r\n"},
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
			s := &sender{client: c}
			res := s.send(t.Context(), &Delivery{ID: "m1", Body: []byte("{}")}, to.endpoints[0])
			if res.attempt.Reason != tt.reason || res.attempt.Took > config.Timeout {
				t.Errorf("%s: send = %+v, want the reason %q", tt.name, res.attempt, tt.reason)
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
