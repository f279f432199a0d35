package webhooktest

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"sync"

	"github.com/hookferry/analytics/internal/faulty"
	"github.com/hookferry/analytics/internal/memnet"
	"github.com/hookferry/analytics/signature"
	"github.com/hookferry/analytics/step"
)

// A Receiver records the requests that it gets, and answers them by its script.
// It may be used concurrently.
type Receiver struct {
	// URL is the URL at which the receiver can be reached: the URL for which it was made. On a
	// loopback network the host and port are those on which the receiver listens.
	URL string

	network  *Network
	host     string
	secret   signature.Secret
	listener net.Listener
	server   faulty.Server
	script   step.Script

	mu          sync.Mutex
	requests    []*Request
	grown       chan struct{} // closed when requests grows
	accepted    int
	idle        []net.Conn // connections that took a connection step; the server does not see them
	tls         TLS
	certificate *tls.Certificate
}

func newReceiver(n *Network, u *url.URL, addr net.Addr, secret signature.Secret, script []step.Step) *Receiver {
	r := &Receiver{
		URL:     u.String(),
		network: n,
		host:    u.Hostname(),
		secret:  secret,
		grown:   make(chan struct{}),
	}
	r.SetScript(script...)
	if n.loopback {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			panic(fmt.Sprintf("webhooktest: %v", err))
		}
		r.listener = &loopbackListener{Listener: l, receiver: r}
		local := *u
		local.Host = l.Addr().String()
		r.URL = local.String()
	} else {
		r.listener = memnet.Listen(addr)
	}
	l := r.listener
	if u.Scheme == "https" {
		r.SetTLS(TLS{})
		l = tls.NewListener(l, &tls.Config{GetConfigForClient: r.tlsConfig})
	}
	r.server.Handler = http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		r.server.Handle("webhooktest", w, req, r.serve)
	})
	r.server.ConnContext = r.accept
	r.server.Start(l)
	return r
}

// SetScript replaces the rest of the script. Without steps, the receiver answers
// every request with 200.
func (r *Receiver) SetScript(script ...step.Step) { r.script.Set(script...) }

// SetTLS changes how the receiver of an https URL uses TLS, for all connections
// that are made from now on.
func (r *Receiver) SetTLS(t TLS) {
	hosts := []string{r.host}
	if r.network.loopback {
		hosts = append(hosts, "127.0.0.1")
	}
	certificate := r.network.authority.issue(t.Certificate, hosts...)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tls = t
	r.certificate = certificate
}

func (r *Receiver) tlsConfig(*tls.ClientHelloInfo) (*tls.Config, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	config := &tls.Config{
		Certificates: []tls.Certificate{*r.certificate},
		ClientAuth:   tls.RequestClientCert,
		MaxVersion:   r.tls.MaxVersion,
		NextProtos:   []string{"http/1.1"},
	}
	if r.tls.MaxVersion != 0 {
		config.MinVersion = tls.VersionTLS10
	}
	if r.tls.HTTP2 {
		config.NextProtos = []string{"h2", "http/1.1"}
	}
	return config, nil
}

// Requests returns the requests received so far, in the order in which their bodies ended.
func (r *Receiver) Requests() []*Request {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.requests)
}

// Wait waits until n requests have been received, and returns all requests
// received by then. They need not have been answered yet. If ctx ends first, Wait
// returns the requests received so far, and an error that wraps ctx.Err().
func (r *Receiver) Wait(ctx context.Context, n int) ([]*Request, error) {
	for {
		r.mu.Lock()
		requests, grown := slices.Clone(r.requests), r.grown
		r.mu.Unlock()
		if len(requests) >= n {
			return requests, nil
		}
		select {
		case <-grown:
		case <-ctx.Done():
			return requests, fmt.Errorf("webhooktest: %d of %d requests received: %w", len(requests), n, ctx.Err())
		}
	}
}

// WaitEvents waits until requests with n events together have been received, as a batch has several,
// and returns the events received by then, in the order of their requests. The error is that of Wait,
// or of [Request.Events].
func (r *Receiver) WaitEvents(ctx context.Context, n int) (events []signature.Event, err error) {
	for read := 0; len(events) < n; {
		requests, err := r.Wait(ctx, read+1)
		if err != nil {
			return events, err
		}
		for ; read < len(requests); read++ {
			more, err := requests[read].Events()
			if err != nil {
				return events, fmt.Errorf("webhooktest: request %d: %w", read+1, err)
			}
			events = append(events, more...)
		}
	}
	return events, nil
}

// Conns returns how many connections were accepted, and how many of them are open. The connections
// that take a connection step never count as open.
func (r *Receiver) Conns() (accepted, open int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.accepted, len(r.server.Open())
}

// Disconnect resets all connections. The receiver continues, and accepts new
// connections if its script does.
func (r *Receiver) Disconnect() {
	r.mu.Lock()
	conns := append(r.idle, r.server.Open()...)
	r.idle = nil
	r.mu.Unlock()
	for _, c := range conns {
		memnet.Reset(c)
	}
}

// dial connects a client.
func (r *Receiver) dial(ctx context.Context) (net.Conn, error) {
	// On loopback, dial takes only the steps that refuse a connection. The listener takes those
	// about accepted connections: it could not tell which connection belongs to a step that dial
	// took.
	next, taken := r.script.NextIf(func(s step.Step) bool { return s.Refuses() || s.Connects() && !r.network.loopback })
	if taken && next.Refuses() {
		return nil, next.Dial(ctx, r.host)
	}
	if r.network.loopback {
		return new(net.Dialer).DialContext(ctx, "tcp", r.listener.Addr().String())
	}
	if taken {
		client, server := memnet.Pipe(r.network.clientAddr(), r.listener.Addr())
		if !r.afflict(next, server) {
			return nil, memnet.DialError(memnet.ErrRefused)
		}
		return client, nil
	}
	client, err := r.listener.(*memnet.Listener).Dial(ctx, r.network.clientAddr())
	if err != nil {
		return nil, memnet.DialError(err)
	}
	return client, nil
}

// A loopbackListener returns only the connections that the receiver's script accepts. On any other
// connection it does the connection step; see step.Refuse.
type loopbackListener struct {
	net.Listener
	receiver *Receiver
}

func (l *loopbackListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		next, taken := l.receiver.script.NextIf(step.Step.Connects)
		if !taken {
			return c, nil
		}
		l.receiver.afflict(next, c)
	}
}

// afflict does a connection step on an accepted connection that the server must not see. It returns
// false once the receiver is closed.
func (r *Receiver) afflict(s step.Step, c net.Conn) bool {
	r.mu.Lock()
	r.accepted++
	r.idle = append(r.idle, c)
	r.mu.Unlock()
	open := r.server.Go(func(ctx context.Context) { s.Accept(ctx, c) })
	if !open {
		_ = c.Close()
	}
	return open
}

// Keys of a context: numberKey of the number of a connection, and requestKey of the *Request.
type (
	numberKey  struct{}
	requestKey struct{}
)

// accept is the ConnContext of the server.
func (r *Receiver) accept(ctx context.Context, _ net.Conn) context.Context {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.accepted++
	return context.WithValue(ctx, numberKey{}, r.accepted)
}

// serve is the handler of the server.
func (r *Receiver) serve(w http.ResponseWriter, req *http.Request) {
	next, early := r.script.NextIf(step.Step.Early)
	if early {
		_, _ = io.CopyN(io.Discard, req.Body, max(1, req.ContentLength/2))
		next.ServeHTTP(w, req)
		return
	}
	body, err := io.ReadAll(req.Body)
	if err != nil {
		faulty.Abort()
	}
	request := newRequest(req, body, r.secret)
	request.Conn = req.Context().Value(numberKey{}).(int)

	r.mu.Lock()
	r.requests = append(r.requests, request)
	request.Number = len(r.requests)
	close(r.grown)
	r.grown = make(chan struct{})
	next = r.script.Next()
	r.mu.Unlock()

	req = req.WithContext(context.WithValue(req.Context(), requestKey{}, request))
	req.Body = io.NopCloser(bytes.NewReader(body))
	next.ServeHTTP(w, req)
}

// Do calls choose with each request that takes the step, and does the Step that choose returns,
// ignoring its Times. choose may be called concurrently. If choose returns a connection step, the
// connection is already open, so the step acts on the request instead; see [step.Refuse].
func Do(choose func(*Request) step.Step) step.Step {
	return step.Serve(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		choose(r.Context().Value(requestKey{}).(*Request)).ServeHTTP(w, r)
	}))
}
