package analytics

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/hookferry/analytics/internal/soakenv"
)

// The client does not read a message after the call has returned. Each caller has nested maps
// that all its messages share, and changes them as soon as a call returns. Other goroutines
// call Flush and, at the end, Shutdown and Close. If the client read a map after the call, the
// race detector would report it, and messages would have wrong values.
func TestCallersMayChangeTheirMapsAfterACall(t *testing.T) {
	for _, spooled := range []bool{false, true} {
		t.Run(fmt.Sprintf("spool=%t", spooled), func(t *testing.T) {
			const callers, calls = 8, 120
			c, col := newTestClient(nil)
			c.FlushAt = 10
			if spooled {
				c.SpoolDir = t.TempDir()
			}
			var accepted atomic.Uint64
			var calling, flushing sync.WaitGroup
			stop := make(chan struct{})
			for i := range callers {
				calling.Go(func() {
					inner := map[string]any{}
					list := []any{0, inner}
					strs := []string{""}
					text := map[string]string{}
					props := map[string]any{"inner": inner, "list": list, "strs": strs, "text": text}
					m := &Track{Properties: props, Context: inner, Integrations: map[string]any{"All": false}}
					for n := range calls {
						m.UserId, m.Event = fmt.Sprint("u", n), fmt.Sprint("e", n)
						inner["n"], list[0], strs[0], text["n"] = n, n, fmt.Sprint(n), fmt.Sprint(n)
						m.Integrations["Webhooks"] = n%2 == 0
						var err error
						if i%2 == 0 {
							err = c.Track(m)
						} else {
							err = c.Enqueue(t.Context(), m)
						}
						inner["n"], list[0], strs[0], text["n"] = "changed", "changed", "changed", "changed"
						m.Event, m.Integrations["Webhooks"] = "changed", "changed"
						if err == ErrClosed {
							return
						}
						if err != nil {
							t.Error(err)
						}
						if accepted.Add(1) == callers*calls*3/4 {
							close(stop)
						}
					}
				})
			}
			for range 3 {
				flushing.Go(func() {
					for {
						flush(t, c)
						select {
						case <-stop:
							closeClient(t, c)
							if err := c.Shutdown(t.Context()); err != nil {
								t.Error(err)
							}
							return
						default:
						}
					}
				})
			}
			calling.Wait()
			flushing.Wait()
			n := accepted.Load()
			checkStats(t, c, n, n, 0, 0)
			arrived := uint64(0)
			for _, r := range col.got() {
				for _, m := range r.messages {
					arrived++
					p := m["properties"].(map[string]any)
					e := strings.TrimPrefix(m["event"].(string), "e")
					got := fmt.Sprintln(m["userId"].(string)[1:], p["inner"], p["list"], p["strs"], p["text"], m["context"])
					want := fmt.Sprintf("%[1]s map[n:%[1]s] [%[1]s map[n:%[1]s]] [%[1]s] map[n:%[1]s] map[n:%[1]s]\n", e)
					if got != want || fmt.Sprint(m["integrations"]) == "map[All:false Webhooks:changed]" {
						t.Fatalf("got %v, want the values at the time of the call", m)
					}
				}
			}
			if arrived != n {
				t.Errorf("%d messages arrived, want %d", arrived, n)
			}
		})
	}
}

// The first calls of a client run concurrently with Flush, Shutdown and Close. Whatever their
// order, every accepted message is delivered, every call returns, and the next client can open
// the folder.
func TestFirstCallRacesShutdown(t *testing.T) {
	for _, spooled := range []bool{false, true} {
		t.Run(fmt.Sprintf("spool=%t", spooled), func(t *testing.T) {
			dir := t.TempDir()
			for seed := range soakenv.Seeds(t, 60) {
				random := rand.New(rand.NewPCG(seed, 0))
				c, col := newTestClient(nil)
				if spooled {
					c.SpoolDir = dir
				}
				var accepted atomic.Uint64
				call := func(m Message) error {
					err := c.Enqueue(t.Context(), m)
					if err == nil {
						accepted.Add(1)
					}
					return err
				}
				var all sync.WaitGroup
				begin := make(chan struct{})
				for _, f := range []func() error{
					func() error { return call(&Track{UserId: "u", Event: "e"}) },
					func() error { return call(&Track{UserId: "u", Event: "e"}) },
					func() error { return call(&Page{UserId: "u"}) },
					func() error { return c.Shutdown(t.Context()) },
					func() error { return c.Close() },
					func() error { return c.Flush(t.Context()) },
				} {
					later := random.IntN(6)
					all.Go(func() {
						<-begin
						for range later {
							c.Stats()
						}
						if err := f(); err != nil && err != ErrClosed {
							t.Error(err)
						}
					})
				}
				close(begin)
				all.Wait()
				closeClient(t, c)
				s := c.Stats()
				arrived := 0
				for _, n := range col.sizes() {
					arrived += n
				}
				if !s.sums() || s.Queued != accepted.Load() || s.Delivered != s.Queued || int(s.Queued) != arrived || s.Recovered != 0 {
					t.Fatalf("seed %d: Stats() = %+v, %d messages arrived, want %d queued, delivered and arrived", seed, s, arrived, accepted.Load())
				}
			}
		})
	}
}

const panicky = "ANALYTICS_TEST_PANIC" // environment variable of the child process whose OnDelivery panics

// A panic in OnDelivery ends the program with a stack trace, as in any goroutine.
func TestAPanicInOnDeliveryEndsTheProgram(t *testing.T) {
	if os.Getenv(panicky) != "" {
		c, _ := newTestClient(nil)
		c.OnDelivery = func(Delivery) { panic("the callback's own") }
		track(t, c, 1)
		c.Flush(context.Background())
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestAPanicInOnDeliveryEndsTheProgram$", "-test.timeout=0")
	cmd.Env = append(os.Environ(), panicky+"=1")
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || !strings.Contains(string(out), "panic: the callback's own") {
		t.Errorf("the program ended with %v, want the panic of OnDelivery; it printed: %s", err, out)
	}
}
