package filestore_test

import (
	"encoding/json"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hookferry/analytics/signature"
	"github.com/hookferry/analytics/webhook"
)

// chaosMix names the destinations. Each name occurs as often as its share of the calls.
var chaosMix = func() (mix []string) {
	for _, d := range []struct {
		name  string
		share int
	}{
		{"fine", 11},
		{"flaky", 8},    // now and then misbehaves in one of many ways
		{"moody", 4},    // hangs on all requests, in every second period
		{"refusing", 2}, // refuses half of the requests for good
		{"pair", 2},     // has two endpoints, which both fail at times
		{"secure", 2},   // speaks HTTP/2, and now and then ends connections and streams
		{"down", 1},     // fails until the end
		{"part", 1},     // is disabled in every second launch of the process that is killed
		{"off", 1},      // is disabled
	} {
		for range d.share {
			mix = append(mix, d.name)
		}
	}
	return mix
}()

// chaosReceivers are the receivers of all destinations.
type chaosReceivers struct {
	t      *testing.T
	ledger *chaosLedger
	dice   *dice
	plain  *httptest.Server
	secure *httptest.Server
	period time.Duration // how long moody hangs, and then answers
	began  time.Time
	kind   atomic.Bool // set at the end: all destinations accept everything
}

func newChaosReceivers(t *testing.T, ledger *chaosLedger, dice *dice, period time.Duration) *chaosReceivers {
	r := &chaosReceivers{t: t, ledger: ledger, dice: dice, period: period, began: time.Now()}
	quiet := log.New(io.Discard, "", 0)
	r.plain = httptest.NewUnstartedServer(http.HandlerFunc(r.serve))
	r.plain.Config.ErrorLog = quiet
	r.plain.Start()
	r.secure = httptest.NewUnstartedServer(http.HandlerFunc(r.serve))
	r.secure.Config.ErrorLog = quiet
	r.secure.EnableHTTP2 = true
	r.secure.StartTLS()
	return r
}

func (r *chaosReceivers) close() {
	r.plain.CloseClientConnections()
	r.plain.Close()
	r.secure.CloseClientConnections()
	r.secure.Close()
}

// destinations returns the settings of the destinations for one launch of a process.
func (r *chaosReceivers) destinations(launch int, part bool) []chaosDestination {
	endpoint := func(url string) webhook.Endpoint {
		return webhook.Endpoint{URL: url, Headers: map[string]string{chaosLaunch: strconv.Itoa(launch)}}
	}
	var ds []chaosDestination
	for i, name := range chaosMix {
		if i > 0 && name == chaosMix[i-1] {
			continue
		}
		d := chaosDestination{ID: name, Endpoints: []webhook.Endpoint{endpoint(r.plain.URL + "/" + name)}}
		switch name {
		case "pair":
			d.Endpoints = append(d.Endpoints, endpoint(r.plain.URL+"/pair?second"))
		case "secure":
			d.Endpoints[0] = endpoint(r.secure.URL + "/secure")
		case "part":
			d.Disabled = !part
		case "off":
			d.Disabled = true
		}
		ds = append(ds, d)
	}
	return ds
}

func (r *chaosReceivers) serve(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return // the sender was killed, or gave up
	}
	var m struct{ MessageID string }
	launch, lerr := strconv.Atoi(req.Header.Get(chaosLaunch))
	if err := json.Unmarshal(body, &m); err != nil || lerr != nil {
		r.t.Errorf("got a webhook of launch %q with the body %.200q, want a number and JSON", req.Header.Get(chaosLaunch), body)
	}
	if err := signature.Verify(body, req.Header.Get(signature.Header), chaosSecret); err != nil {
		r.t.Errorf("signature of webhook %s: %v, want a valid one", m.MessageID, err)
	}
	id, err := strconv.ParseUint(m.MessageID, 10, 32)
	if err != nil {
		r.t.Errorf("got a webhook with the messageId %q, want a number", m.MessageID)
		return
	}
	h := &chaosAnswer{ResponseWriter: w, req: req, ledger: r.ledger, dice: r.dice, id: uint32(id), launch: launch}
	name := strings.TrimPrefix(req.URL.Path, "/")
	if name == "off" {
		r.t.Errorf("got webhook %d for a disabled destination, want none", id)
	}
	roll := r.dice.IntN(100)
	switch {
	case r.kind.Load():
		h.take(200)
	case name == "flaky":
		h.flaky(roll)
	case name == "moody":
		if time.Since(r.began)/r.period%2 == 1 {
			h.hang()
		} else {
			h.take(200)
		}
	case name == "refusing":
		if roll < 50 {
			h.WriteHeader([]int{400, 401, 404, 410, 413, 422}[roll%6])
		} else {
			h.take(200)
		}
	case name == "pair":
		switch {
		case roll < 25:
			h.WriteHeader(500)
		case roll < 30:
			h.hang()
		case roll < 40:
			h.WriteHeader(410)
		default:
			h.take(200)
		}
	case name == "secure":
		switch {
		case roll < 5:
			h.WriteHeader(503)
		case roll < 10:
			w.Header().Set("Connection", "close") // GOAWAY
			h.take(200)
		case roll < 13:
			h.lose()
			panic(http.ErrAbortHandler) // RST_STREAM
		case roll < 15 && r.dice.IntN(20) == 0:
			h.lose()
			r.secure.CloseClientConnections()
		default:
			h.take(204)
		}
	case name == "down":
		switch {
		case roll < 60:
			h.WriteHeader(500 + roll%5)
		case roll < 80:
			h.reset()
		default:
			h.hang()
		}
	default:
		h.take(200)
	}
}

// A chaosAnswer answers one request.
type chaosAnswer struct {
	http.ResponseWriter
	req    *http.Request
	ledger *chaosLedger
	dice   *dice
	id     uint32
	launch int
}

// take accepts the webhook, and answers with status.
func (h *chaosAnswer) take(status int) {
	h.ledger.arrived(h.id, h.launch, true)
	h.WriteHeader(status)
}

// lose accepts the webhook. The caller then spoils the answer, so that the sender does not learn of
// it.
func (h *chaosAnswer) lose() { h.ledger.arrived(h.id, h.launch, false) }

// hang waits until the sender gives up.
func (h *chaosAnswer) hang() { <-h.req.Context().Done() }

func (h *chaosAnswer) hijack() *net.TCPConn {
	c, _, err := http.NewResponseController(h.ResponseWriter).Hijack()
	if err != nil {
		panic(err)
	}
	return c.(*net.TCPConn)
}

func (h *chaosAnswer) reset() {
	c := h.hijack()
	c.SetLinger(0)
	c.Close()
}

// say writes raw bytes, and closes the connection.
func (h *chaosAnswer) say(text string) {
	c := h.hijack()
	io.WriteString(c, text)
	c.Close()
}

func (h *chaosAnswer) flaky(roll int) {
	switch {
	case roll < 55:
		h.take(200)
	case roll < 60:
		h.Header().Set("Connection", "close")
		h.take(202)
	case roll < 63:
		time.Sleep(h.dice.below(chaosTimeout / 3))
		h.take(200)
	case roll < 70:
		h.WriteHeader(500 + roll%5)
	case roll < 74:
		h.Header().Set("Retry-After", "1")
		h.WriteHeader(429)
	case roll < 76:
		h.hang()
	case roll < 79:
		h.reset()
	case roll < 81: // on a kept connection the sender resends the request at once
		h.hijack().Close()
	case roll < 83:
		h.say("\x00\x01\x02garbage\r\n\r\n")
	case roll < 84:
		h.say("HTTP/1.1 200 OK\r\n" + strings.Repeat("X-Endless: header\r\n", 10_000))
	case roll < 86: // the close may meet the next request
		h.ledger.arrived(h.id, h.launch, true)
		h.say("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
	case roll < 89:
		h.lose()
		h.reset()
	case roll < 91:
		h.lose()
		h.say("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{\"suc")
	case roll < 92:
		h.lose()
		c := h.hijack()
		defer c.Close()
		io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n")
		for range 100 {
			if _, err := c.Write([]byte{'x'}); err != nil {
				return
			}
			time.Sleep(chaosTimeout / 10)
		}
	case roll < 94:
		h.lose()
		h.hang()
	case roll < 96:
		for range 5 {
			h.WriteHeader(102)
		}
		h.take(200)
	case roll < 97:
		h.WriteHeader(410)
	case roll < 98:
		h.Header().Set("Location", "http://169.254.169.254/latest/meta-data/")
		h.WriteHeader(307)
	case roll < 99: // the sender reads only the beginning of these 256 MB
		h.Header().Set("Content-Length", strconv.Itoa(256<<20))
		h.take(200)
		for chunk := make([]byte, 64<<10); ; {
			if _, err := h.Write(chunk); err != nil {
				return
			}
		}
	default:
		h.take(299)
	}
}
