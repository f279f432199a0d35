package boltqueue_test

import (
	"encoding/json"
	"io"
	"log"
	"math/rand/v2"
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

// soakMix is how the calls are shared out among the destinations.
var soakMix = func() (mix []string) {
	for _, d := range []struct {
		name  string
		share int
	}{
		{"fine", 11},
		{"flaky", 8},    // each thing that can go wrong, now and then
		{"moody", 4},    // hangs half of the time, for all
		{"refusing", 2}, // half are refused for good
		{"pair", 2},     // has two endpoints, which both fail at times
		{"secure", 2},   // speaks HTTP/2, and says goodbye
		{"down", 1},     // fails until the end
		{"part", 1},     // is switched off in every other launch of the process that is killed
		{"off", 1},      // is switched off
	} {
		for range d.share {
			mix = append(mix, d.name)
		}
	}
	return mix
}()

// soakReceivers are the receivers of all destinations.
type soakReceivers struct {
	t      *testing.T
	ledger *soakLedger
	plain  *httptest.Server
	secure *httptest.Server
	period time.Duration // of the moods
	began  time.Time
	kind   atomic.Bool // set at the end: everything is taken
}

func newSoakReceivers(t *testing.T, ledger *soakLedger, period time.Duration) *soakReceivers {
	r := &soakReceivers{t: t, ledger: ledger, period: period, began: time.Now()}
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

func (r *soakReceivers) close() {
	r.plain.CloseClientConnections()
	r.plain.Close()
	r.secure.CloseClientConnections()
	r.secure.Close()
}

// destinations are the settings for one launch of a process.
func (r *soakReceivers) destinations(launch int, part bool) []webhook.Destination {
	endpoint := func(url string) webhook.Endpoint {
		return webhook.Endpoint{URL: url, Headers: map[string]string{soakLaunch: strconv.Itoa(launch)}}
	}
	var ds []webhook.Destination
	for i, name := range soakMix {
		if i > 0 && name == soakMix[i-1] {
			continue
		}
		d := webhook.Destination{ID: name, Endpoints: []webhook.Endpoint{endpoint(r.plain.URL + "/" + name)}}
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

func (r *soakReceivers) serve(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return // its process was killed, or gave up
	}
	var m struct{ MessageID string }
	launch, lerr := strconv.Atoi(req.Header.Get(soakLaunch))
	if err := json.Unmarshal(body, &m); err != nil || lerr != nil {
		r.t.Errorf("a webhook of launch %q is %.200q", req.Header.Get(soakLaunch), body)
	}
	if err := signature.Verify(body, req.Header.Get(signature.Header), soakSecret); err != nil {
		r.t.Errorf("webhook %s: %v", m.MessageID, err)
	}
	id, err := strconv.ParseUint(m.MessageID, 10, 32)
	if err != nil {
		r.t.Errorf("webhook of message %q", m.MessageID)
		return
	}
	h := &soakAnswer{ResponseWriter: w, req: req, ledger: r.ledger, id: uint32(id), launch: launch}
	name := strings.TrimPrefix(req.URL.Path, "/")
	if name == "off" {
		r.t.Errorf("webhook %d for a destination that is switched off", id)
	}
	roll := rand.IntN(100)
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
		case roll < 15 && rand.IntN(20) == 0:
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

// A soakAnswer is a request that is being answered.
type soakAnswer struct {
	http.ResponseWriter
	req    *http.Request
	ledger *soakLedger
	id     uint32
	launch int
}

// take takes the webhook and says so.
func (h *soakAnswer) take(status int) {
	h.ledger.arrived(h.id, h.launch, true)
	h.WriteHeader(status)
}

// lose takes the webhook; what is said then is not to reach the sender.
func (h *soakAnswer) lose() { h.ledger.arrived(h.id, h.launch, false) }

// hang waits until the sender gives up.
func (h *soakAnswer) hang() { <-h.req.Context().Done() }

func (h *soakAnswer) hijack() *net.TCPConn {
	c, _, err := http.NewResponseController(h.ResponseWriter).Hijack()
	if err != nil {
		panic(err)
	}
	return c.(*net.TCPConn)
}

func (h *soakAnswer) reset() {
	c := h.hijack()
	c.SetLinger(0)
	c.Close()
}

// say writes raw bytes and closes the connection.
func (h *soakAnswer) say(text string) {
	c := h.hijack()
	io.WriteString(c, text)
	c.Close()
}

func (h *soakAnswer) flaky(roll int) {
	switch {
	case roll < 55:
		h.take(200)
	case roll < 60:
		h.Header().Set("Connection", "close")
		h.take(202)
	case roll < 63:
		time.Sleep(rand.N(soakTimeout / 3))
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
	case roll < 81: // on a kept connection, it is asked again at once
		h.hijack().Close()
	case roll < 83:
		h.say("\x00\x01\x02garbage\r\n\r\n")
	case roll < 84:
		h.say("HTTP/1.1 200 OK\r\n" + strings.Repeat("X-Endless: header\r\n", 10_000))
	case roll < 86: // closed while the next request may be on its way
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
			time.Sleep(soakTimeout / 10)
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
	case roll < 99: // of 256 MB, the beginning is enough
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
