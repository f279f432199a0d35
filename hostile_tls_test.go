package analytics

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hookferry/analytics/analyticstest"
	"github.com/hookferry/analytics/internal/memnet"
)

var tlsAddr = &net.TCPAddr{IP: net.IPv4(203, 0, 113, 1), Port: 443}

// certificate returns a self-signed certificate, and a pool that trusts it.
func certificate(t *testing.T, host string, until time.Time) (tls.Certificate, *x509.CertPool) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), DNSNames: []string{host},
		NotBefore: until.Add(-24 * time.Hour), NotAfter: until,
		IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(leaf)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pool
}

// transportTo returns a transport like the client's own, whose connections all lead to the
// listener.
func transportTo(listener *memnet.Listener) *http.Transport {
	own := newTransport(DefaultTimeout)
	own.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
		return listener.Dial(ctx, &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 50000})
	}
	return own
}

// serveEach calls serve for each connection, in a goroutine of its own. It returns once the
// listener is closed and all these calls have returned.
func serveEach(listener net.Listener, serve func(net.Conn)) {
	var serving sync.WaitGroup
	defer serving.Wait()
	for {
		c, err := listener.Accept()
		if err != nil {
			return
		}
		serving.Go(func() { serve(c) })
	}
}

// If the TLS handshake fails, the client sends no request and so no write key. The cause may
// disappear, so the client retries.
func TestNoRequestIsSentIfTheTLSHandshakeFails(t *testing.T) {
	for _, test := range []struct {
		name   string
		scheme string
		host   string           // host name in the certificate
		until  time.Duration    // how long the certificate is valid, from now
		trust  bool             // the client trusts the certificate
		serve  func(c net.Conn) // serves the connection instead of TLS, if not nil
		check  func(error) bool
		took   time.Duration
	}{
		{name: "unknown authority", scheme: "https", host: "collector.example", until: time.Hour,
			check: func(err error) bool { return errors.As(err, new(x509.UnknownAuthorityError)) }},
		{name: "other host", scheme: "https", host: "elsewhere.example", until: time.Hour, trust: true,
			check: func(err error) bool { return errors.As(err, new(x509.HostnameError)) }},
		{name: "expired", scheme: "https", host: "collector.example", until: -time.Second, trust: true,
			check: func(err error) bool { return errors.As(err, new(x509.CertificateInvalidError)) }},
		{name: "not TLS", scheme: "https", check: func(err error) bool { return err != nil }, // net/http has no type for this error
			serve: func(c net.Conn) { io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\n"); c.Close() }},
		{name: "closed in the handshake", scheme: "https", check: func(err error) bool { return errors.Is(err, io.EOF) },
			serve: func(c net.Conn) {
				io.ReadFull(c, make([]byte, 10))
				c.(*memnet.Conn).CloseWrite()
				io.Copy(io.Discard, c)
				c.Close()
			}},
		{name: "hangs in the handshake", scheme: "https", took: 5 * time.Second, check: func(err error) bool {
			var timeout net.Error
			return errors.As(err, &timeout) && timeout.Timeout()
		}, serve: func(c net.Conn) { io.Copy(io.Discard, c); c.Close() }},
	} {
		synctest.Test(t, func(t *testing.T) {
			srv := analyticstest.New(t)
			listener := memnet.Listen(tlsAddr)
			own := transportTo(listener)
			var serving sync.WaitGroup
			web := http.Server{Handler: srv, ErrorLog: log.New(io.Discard, "", 0)}
			if test.serve == nil {
				cert, pool := certificate(t, test.host, time.Now().Add(test.until))
				own.TLSClientConfig = &tls.Config{RootCAs: x509.NewCertPool()}
				if test.trust {
					own.TLSClientConfig.RootCAs = pool
				}
				serving.Go(func() { web.Serve(tls.NewListener(listener, &tls.Config{Certificates: []tls.Certificate{cert}})) })
			} else {
				serving.Go(func() { serveEach(listener, test.serve) })
			}
			c := New("secret-key")
			c.Endpoint, c.Transport = "https://collector.example", own
			var got deliveryRecorder
			c.OnDelivery = got.add
			track(t, c, 2)
			start := time.Now()
			if err := c.Flush(t.Context()); !test.check(err) {
				t.Errorf("%s: Flush returned an unexpected error: %v (%T)", test.name, err, errors.Unwrap(err))
			}
			least, most := time.Duration(1+maxRetries)*test.took, time.Duration(1+maxRetries)*test.took
			for i := range maxRetries {
				most += backoffLimit(i)
			}
			if took := time.Since(start); took < least || took > most {
				t.Errorf("%s: given up after %v, want %v to %v", test.name, took, least, most)
			}
			if d := got.got(); len(d) != 1 || d[0].Reason != ReasonExhausted || d[0].Attempts != 1+maxRetries {
				t.Errorf("%s: OnDelivery got %+v, want one of %d attempts", test.name, d, 1+maxRetries)
			}
			checkStats(t, c, 2, 0, 2, 0)
			closeClient(t, c)
			if n := len(srv.Batches()); n != 0 {
				t.Errorf("%s: %d requests got through, want none", test.name, n)
			}
			web.Close()
			listener.Close()
			own.CloseIdleConnections()
			serving.Wait()
		})
	}
}

// Types and flags of HTTP/2 frames (RFC 9113, section 6).
const (
	frameData      = 0
	frameHeaders   = 1
	frameReset     = 3
	frameSettings  = 4
	framePing      = 6
	frameGoAway    = 7
	flagEndStream  = 1
	flagAck        = 1
	flagEndHeaders = 4
)

// What an http2Server does after it has misbehaved.
const (
	answerRequest = iota // answers the same request
	ignoreRequest        // answers other requests, but not this one
	closeConn            // closes the connection once the client does
)

// An http2Server implements as much of HTTP/2 as the tests need.
type http2Server struct {
	misbehave func(c net.Conn, stream uint32) int // called at the header of the first request

	mu         sync.Mutex
	conns      int
	misbehaved bool
}

func writeFrame(c net.Conn, kind, flags byte, stream uint32, payload ...byte) {
	b := binary.BigEndian.AppendUint32(nil, uint32(len(payload))<<8|uint32(kind))
	b = append(b, flags)
	b = binary.BigEndian.AppendUint32(b, stream)
	c.Write(append(b, payload...))
}

func goAway(c net.Conn, last, code uint32) {
	writeFrame(c, frameGoAway, 0, 0, binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, last), code)...)
}

// serve serves one connection. The server misbehaves at the first request of all connections,
// and answers the others with 200.
func (s *http2Server) serve(c net.Conn) {
	defer c.Close()
	s.mu.Lock()
	s.conns++
	s.mu.Unlock()
	if _, err := io.ReadFull(c, make([]byte, len("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"))); err != nil {
		return
	}
	writeFrame(c, frameSettings, 0, 0)
	silent := uint32(0)
	for {
		head := make([]byte, 9)
		if _, err := io.ReadFull(c, head); err != nil {
			return
		}
		size, kind, flags, stream := binary.BigEndian.Uint32(head)>>8, head[3], head[4], binary.BigEndian.Uint32(head[5:])
		if _, err := io.CopyN(io.Discard, c, int64(size)); err != nil {
			return
		}
		switch {
		case kind == frameSettings && flags&flagAck == 0:
			writeFrame(c, frameSettings, flagAck, 0)
		case kind == framePing && flags&flagAck == 0:
			writeFrame(c, framePing, flagAck, 0, make([]byte, 8)...)
		case kind == frameHeaders:
			s.mu.Lock()
			first := !s.misbehaved
			s.misbehaved = true
			s.mu.Unlock()
			if !first {
				break
			}
			switch s.misbehave(c, stream) {
			case ignoreRequest:
				silent = stream
			case closeConn:
				// Wait until the client has closed its end. Closing with unread data would
				// reset the connection.
				io.Copy(io.Discard, c)
				return
			}
		case kind == frameData && flags&flagEndStream != 0 && stream != silent:
			const status200 = 0x88 // RFC 7541, appendix A
			writeFrame(c, frameHeaders, flagEndHeaders|flagEndStream, stream, status200)
		}
	}
}

// An HTTP/2 server may close connections, and refuse and reset streams, at any moment. If it
// says that it has not processed a request, net/http repeats the request at once, and the
// client counts one attempt for both. Otherwise the attempt fails, and the client retries.
func TestHTTP2ServersThatMisbehaveFailAtMostOneAttempt(t *testing.T) {
	for _, test := range []struct {
		name      string
		misbehave func(c net.Conn, stream uint32) int
		attempts  uint64 // total number; the last attempt succeeds
		conns     int
	}{
		{"GOAWAY without processing the request", func(c net.Conn, stream uint32) int { goAway(c, 0, 0); return closeConn }, 1, 2},
		{"GOAWAY with an error", func(c net.Conn, stream uint32) int {
			goAway(c, stream, 2)
			c.(*memnet.Conn).CloseWrite()
			return closeConn
		}, 2, 2},
		{"GOAWAY, then the answer", func(c net.Conn, stream uint32) int { goAway(c, stream, 0); return answerRequest }, 1, 2},
		{"the stream refused", func(c net.Conn, stream uint32) int {
			writeFrame(c, frameReset, 0, stream, 0, 0, 0, 7)
			return ignoreRequest
		}, 1, 1},
		{"the stream reset", func(c net.Conn, stream uint32) int {
			writeFrame(c, frameReset, 0, stream, 0, 0, 0, 2)
			return ignoreRequest
		}, 2, 1},
		{"connection closed", func(c net.Conn, stream uint32) int { c.(*memnet.Conn).CloseWrite(); return closeConn }, 2, 2},
		{"bytes that are not HTTP/2", func(c net.Conn, stream uint32) int { c.Write(make([]byte, 100)); return closeConn }, 2, 2},
		{"header that cannot be read", func(c net.Conn, stream uint32) int {
			writeFrame(c, frameHeaders, flagEndHeaders, stream, 0xff, 0xff, 0xff, 0xff)
			return closeConn
		}, 2, 2},
	} {
		synctest.Test(t, func(t *testing.T) {
			listener := memnet.Listen(tlsAddr)
			s := &http2Server{misbehave: test.misbehave}
			var serving sync.WaitGroup
			serving.Go(func() { serveEach(listener, s.serve) })
			own := transportTo(listener)
			own.Protocols = new(http.Protocols)
			own.Protocols.SetUnencryptedHTTP2(true)
			c := New("k")
			c.Transport = own
			for range 2 {
				track(t, c, 3)
				if err := c.Flush(t.Context()); err != nil {
					t.Errorf("%s: Flush: %v", test.name, err)
				}
			}
			closeClient(t, c)
			own.CloseIdleConnections()
			listener.Close()
			serving.Wait()
			checkStats(t, c, 6, 6, 0, 0)
			if got := c.Stats(); got.Attempts != test.attempts+1 || s.conns < test.conns || s.conns > test.conns+1 {
				// net/http may dial one connection more than it needs.
				t.Errorf("%s: %d attempts over %d connections, want %d over %d or one more", test.name, got.Attempts, s.conns, test.attempts+1, test.conns)
			}
		})
	}
}
