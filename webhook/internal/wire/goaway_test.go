package wire

import (
	"crypto/tls"
	"encoding/binary"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// Frames of HTTP/2 (RFC 9113, section 6), with the flags of a complete message.
const (
	frameHeaders  = 1
	frameReset    = 3
	frameSettings = 4
	frameGoAway   = 7

	// Ways to end the connection after a request has come, in place of a frame.
	ends       = 100
	leavesEnds = 101 // after GOAWAY, by which the request may have been processed
)

func writeFrame(w io.Writer, kind, flags byte, stream uint32, payload ...byte) {
	head := []byte{0, 0, byte(len(payload)), kind, flags, 0, 0, 0, 0}
	binary.BigEndian.PutUint32(head[5:], stream)
	w.Write(append(head, payload...))
}

// serveFrames answers the requests of a connection by HTTP/2: the first ones with 200, and all
// others with a frame of the type refusal, which says that they were not processed, or by ending
// the connection.
func serveFrames(c net.Conn, good int, refusal byte, requests *atomic.Int32) {
	preface := make([]byte, 24)
	if _, err := io.ReadFull(c, preface); err != nil {
		return
	}
	writeFrame(c, frameSettings, 0, 0)
	for last, head := uint32(0), make([]byte, 9); ; {
		if _, err := io.ReadFull(c, head); err != nil {
			return
		}
		if _, err := io.CopyN(io.Discard, c, int64(head[1])<<8|int64(head[2])); err != nil {
			return
		}
		stream := binary.BigEndian.Uint32(head[5:])
		if head[3] != frameHeaders {
			continue
		}
		requests.Add(1)
		switch {
		case good > 0:
			good, last = good-1, stream
			writeFrame(c, frameHeaders, 5, stream, 0x88) // :status 200
		case refusal == frameReset:
			writeFrame(c, frameReset, 0, stream, 0, 0, 0, refusedStream)
		case refusal == ends:
			return
		case refusal == leavesEnds:
			writeFrame(c, frameGoAway, 0, 0, 0, 0, byte(stream>>8), byte(stream), 0, 0, 0, 0)
			return
		default:
			writeFrame(c, frameGoAway, 0, 0, 0, 0, byte(last>>8), byte(last), 0, 0, 0, 0)
		}
	}
}

// A receiver that does not process a request by HTTP/2 gets it once more, on another connection,
// and never more often. If the receiver may have processed the request, it does not get the request
// again.
func TestHTTP2RefusalsAreResentOnce(t *testing.T) {
	cert := httptest.NewUnstartedServer(nil)
	cert.StartTLS()
	defer cert.Close()
	for _, tt := range []struct {
		name     string
		good     func(conn int) int // requests that connection n, from 1 on, answers with 200
		refusal  byte
		fails    bool // the last one of two requests
		requests int32
		dials    int32
		resent   int64
	}{
		{"GOAWAY to the first request of each connection", func(int) int { return 0 }, frameGoAway, true, 2, 2, 0},
		{"GOAWAY to the second", func(int) int { return 1 }, frameGoAway, false, 3, 2, 1},
		{"GOAWAY to all requests but one", func(n int) int { return 2 - n }, frameGoAway, true, 3, 2, 1},
		{"refused streams", func(int) int { return 0 }, frameReset, true, 4, 1, 2},
		{"refused streams after one", func(n int) int { return 2 - n }, frameReset, true, 3, 1, 1},
		{"the end of the connection", func(int) int { return 1 }, ends, true, 2, 1, 0},
		{"the end of the connection after GOAWAY", func(int) int { return 1 }, leavesEnds, true, 2, 1, 0},
	} {
		for _, netHTTP := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				var requests atomic.Int32
				p := &peer{serve: func(c net.Conn, n int) {
					serveFrames(tls.Server(c, &tls.Config{Certificates: cert.TLS.Certificates, NextProtos: []string{"h2"}}), max(tt.good(n), 0), tt.refusal, &requests)
				}}
				c, _ := p.client(t)
				c.config.TLS = cert.Client().Transport.(*http.Transport).TLSClientConfig.Clone()
				c.config.TLS.Time = func() time.Time { return cert.Certificate().NotBefore.Add(time.Hour) }
				c.config.TLS.ServerName = "example.com"
				to := target(t, "https://crm.example/")
				to.NetHTTP = netHTTP
				var err error
				for range 2 {
					_, err = post(c, to, []byte("{}"))
					synctest.Wait()
				}
				if (err != nil) != tt.fails || requests.Load() != tt.requests || p.dials.Load() != tt.dials || c.Resent() != tt.resent {
					t.Errorf("%s, NetHTTP %t: Post = %v with %d requests on %d connections, %d resent; want an error %t, %d, %d and %d",
						tt.name, netHTTP, err, requests.Load(), p.dials.Load(), c.Resent(), tt.fails, tt.requests, tt.dials, tt.resent)
				}
			})
		}
	}
}
