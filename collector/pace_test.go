package collector_test

import (
	"bufio"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// TestBodyMustKeepAPace shows that 4 KB of a body, or its end, must arrive within each five
// seconds. The ReadTimeout of the server holds as well.
func TestBodyMustKeepAPace(t *testing.T) {
	body := `{"batch":[],"filler":"` + strings.Repeat("x", 30_000) + `"}`
	for _, tt := range []struct {
		name   string
		path   string
		piece  int           // bytes of one write
		every  time.Duration // time between two writes
		server time.Duration // ReadTimeout of the server; 0 for none
		want   int
		after  time.Duration
	}{
		{"at once", "/v1/batch", len(body), 0, 0, 200, 0},
		{"nothing", "/v1/batch", 0, time.Minute, time.Minute, 408, 5 * time.Second},
		{"a byte a second", "/v1/batch", 1, time.Second, time.Minute, 408, 5 * time.Second},
		{"the slowest pace", "/v1/batch", 4 << 10, 4900 * time.Millisecond, 0, 200, 7 * 4900 * time.Millisecond},
		{"a byte less", "/v1/batch", 4<<10 - 1, 4900 * time.Millisecond, 0, 408, 10 * time.Second},
		{"20 KB, and then nothing", "/v1/batch", 20_000, 11 * time.Second, 0, 408, 10 * time.Second},
		{"the end in time", "/v1/batch", 29_000, 4900 * time.Millisecond, 0, 200, 4900 * time.Millisecond},
		{"longer than the server allows", "/v1/batch", 4 << 10, 4 * time.Second, 12500 * time.Millisecond, 408, 12500 * time.Millisecond},
		{"metrics", "/v1/m", 0, time.Minute, time.Minute, 200, 5 * time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n, address := serve(t, &http.Server{ReadTimeout: tt.server, Handler: newHandler(t, &forwarder{})})
				conn, err := n.DialContext(t.Context(), "tcp", address)
				if err != nil {
					t.Fatal(err)
				}
				answers := bufio.NewReader(conn)
				began := time.Now()
				var writing sync.WaitGroup
				defer writing.Wait()
				defer conn.Close()
				writing.Go(func() {
					fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nAuthorization: %s\r\nContent-Length: %d\r\n\r\n", tt.path, basic, len(body))
					for rest := body; rest != ""; {
						n := min(tt.piece, len(rest))
						if _, err := conn.Write([]byte(rest[:n])); err != nil {
							return
						}
						if rest = rest[n:]; rest != "" {
							time.Sleep(tt.every)
						}
					}
				})
				resp, err := http.ReadResponse(answers, nil)
				if err != nil {
					t.Fatal(err)
				}
				if took := time.Since(began); resp.StatusCode != tt.want || took != tt.after {
					t.Errorf("answered %s after %v, want %d after %v", resp.Status, took, tt.want, tt.after)
				}
				if resp.StatusCode != 200 || tt.piece == 0 {
					return
				}
				// The next request on the connection has all of its time again.
				resp.Body.Close()
				time.Sleep(time.Hour)
				fmt.Fprintf(conn, "POST /v1/batch HTTP/1.1\r\nHost: x\r\nAuthorization: %s\r\nContent-Length: 12\r\n\r\n", basic)
				time.Sleep(4900 * time.Millisecond)
				fmt.Fprint(conn, `{"batch":[]}`)
				if resp, err = http.ReadResponse(answers, nil); err != nil || resp.StatusCode != 200 {
					t.Errorf("the next request: answer %v, error %v, want 200", resp, err)
				}
			})
		})
	}
}
