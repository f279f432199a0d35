//go:build !race && unix

// The race detector allocates, and so do sockets on systems other than Unix.

package webhook

import (
	"bytes"
	"context"
	"net"
	"net/netip"
	"sync"
	"testing"

	"github.com/hookferry/analytics/event"
	"github.com/hookferry/analytics/signature"
	"github.com/hookferry/analytics/webhook/internal/nullreceiver"
)

// Sending a request allocates nothing, from the signature to the outcome. A request with many
// events allocates its id, which the attempts of all events keep, and the goroutine that writes a
// long body.
func TestARequestDoesNotAllocate(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			serving.Go(func() { nullreceiver.Serve(c) })
		}
	})
	ctx, cancel := context.WithCancel(context.Background())
	config := &Config{ServiceName: DefaultServiceName, Timeout: Never, MaxInFlight: 1, MaxConcurrent: 1}
	client := newClient(config, &guard{allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}}, ctx)
	defer serving.Wait()
	defer ln.Close()
	defer client.Close()
	defer cancel()

	target, err := compile(&Destination{
		ID:              "crm",
		Endpoints:       []Endpoint{{URL: "http://" + ln.Addr().String() + "/hook", Headers: map[string]string{"X-Token": "t"}}},
		Secret:          "shh",
		StandardSecrets: []signature.Secret{signature.NewStandardSecret()},
	}, config, nil)
	must(t, err)
	e := target.endpoints[0]
	s := &sender{clients: &clients{client, client}}
	ss := &senders{pool: sync.Pool{New: func() any { return s }}}
	trace, _ := event.ParseTrace("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "")
	var ds []*Delivery
	for range 100 {
		ds = append(ds, &Delivery{ID: "f81d4fae-7dec-11d0-a765-00a0c91e6bf6", Body: bytes.Repeat([]byte("x"), 450), Trace: trace})
	}
	for _, tt := range []struct {
		name string
		send func() result
		want float64
	}{
		{"a request", func() result { return s.send(ctx, ds[0], e) }, 0},
		{"a batch of 100", func() result { return ss.sendBatch(ctx, ds, e) }, 4},
	} {
		send := func() {
			if r := tt.send(); r.outcome != OutcomeDelivered {
				t.Fatalf("%s: %+v, want it delivered", tt.name, r)
			}
		}
		send()
		if n := testing.AllocsPerRun(200, send); n > tt.want {
			t.Errorf("%s allocates %v times, want at most %v", tt.name, n, tt.want)
		}
	}
}
