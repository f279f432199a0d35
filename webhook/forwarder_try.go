package webhook

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptrace"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hookferry/analytics/event"
	"github.com/hookferry/analytics/webhook/internal/wire"
)

// A TryResult is one request of Try, and its answer.
type TryResult struct {
	Attempt          // has the Answer even if the endpoint took the event
	Filtered bool    // Forward would not store the event: the filter or Transform leaves it out
	Outcome  Outcome // that the request would have in an attempt
	// Header is that of the request, without Host and Content-Length. The values of static headers, of
	// headers that Authorize has set, and of credentials in the URL are redacted.
	Header       http.Header
	Body         []byte
	AnswerHeader http.Header // nil if there was no answer
	// These are the times from At until the name was resolved, the connection was open, the TLS
	// handshake was done, and the first byte of the answer arrived; zero if that is not known.
	Resolved, Connected, Secured, FirstByte Millis
}

// Try sends one request with an event to each endpoint of a destination, all at the same time, and
// returns a TryResult for each, in their order. The Forwarder need not know the destination, which may
// be disabled. The requests have the same body, headers, signatures, TLS, guard and timeout as those
// of an attempt, but connections of their own. Try stores, counts and logs nothing, and tells the
// Observers nothing. The limits of the destination do not apply.
//
// The errors are *ConfigErrors for a destination that is missing or not valid, ErrClosed after
// Shutdown, or that of Transform; an event without a body is an error, too. A request that the end
// of ctx cuts off has OutcomeCutOff. Try may be called concurrently.
func (f *Forwarder) Try(ctx context.Context, to *Destination, e event.Event) ([]TryResult, error) {
	if f.open.Err() != nil {
		return nil, ErrClosed
	}
	if to == nil {
		return nil, &ConfigError{"Destination", "is required"}
	}
	if e.Body == nil {
		return nil, errors.New("webhook: the event has no body")
	}
	target, wrong := makeTarget(to, &f.config, nil)
	if wrong != nil {
		return nil, configError(wrong.Under("Destination"))
	}
	// Use separate clients, because their connections may use the destination's client certificate.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	clients := newClients(&f.config, ctx)
	defer clients.close()
	body, left, err := to.transform(ctx, &e)
	if err != nil {
		return nil, fmt.Errorf("webhook: the event was not sent: %w", err)
	}
	d := Delivery{ID: deliveryID(&e), Body: body, Trace: event.TraceOf(ctx)}
	exchanges := make([]TryResult, len(target.endpoints))
	var requests sync.WaitGroup
	for i, e := range target.endpoints {
		requests.Go(func() {
			exchanges[i] = exchange(ctx, clients, &d, e)
			exchanges[i].Filtered = left
		})
	}
	requests.Wait()
	return exchanges, nil
}

func exchange(ctx context.Context, cs *clients, d *Delivery, to *endpoint) TryResult {
	var start time.Time
	var resolved, connected, secured atomic.Int64 // a dial may outlast the request
	since := func(took *atomic.Int64, err error) {
		if err == nil {
			took.Store(int64(time.Since(start)))
		}
	}
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		DNSDone: func(i httptrace.DNSDoneInfo) {
			since(&resolved, i.Err)
			connected.Store(0) // until now, all connections were to name servers
		},
		ConnectDone:      func(_, _ string, err error) { since(&connected, err) },
		TLSHandshakeDone: func(_ tls.ConnectionState, err error) { since(&secured, err) },
	})
	s := &sender{clients: cs, keepAll: true}
	var notes wire.Notes
	s.buffer.Note(&notes)
	start = time.Now()
	res := s.send(ctx, d, to)

	x := TryResult{
		Attempt: res.attempt, Outcome: res.outcome, Header: s.shownHeader(to), Body: bytes.Clone(d.Body),
		Resolved: Millis(resolved.Load()), Connected: Millis(connected.Load()), Secured: Millis(secured.Load()),
	}
	if !notes.FirstByte.IsZero() {
		x.FirstByte = Millis(notes.FirstByte.Sub(x.At))
	}
	if notes.Header != nil {
		x.AnswerHeader = make(http.Header, len(notes.Header))
		for name, values := range notes.Header {
			for _, v := range values {
				x.AnswerHeader.Add(s.clean(name), s.clean(v))
			}
		}
	}
	return x
}
