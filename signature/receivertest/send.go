package receivertest

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/hookferry/analytics/signature"
)

// A kit is a run of a check.
type kit struct {
	Config
	ctx    context.Context
	faults []string
}

func (k *kit) fault(format string, args ...any) {
	k.faults = append(k.faults, fmt.Sprintf(format, args...))
}

// newID returns the id of a test event.
func newID() string { return "test-" + rand.Text() }

// event returns a request with an event that the receiver applies.
func (k *kit) event() *request {
	id := newID()
	return k.request(id, string(k.Event(id)))
}

func (k *kit) request(id, body string) *request {
	return &request{id: id, body: body, at: time.Now(), by: k.Secrets[:1]}
}

// A request is a signed event or batch.
type request struct {
	id, body string
	at       time.Time
	by       []signature.Secret
	events   []signature.Event             // of a batch
	change   func(*http.Request)           // changes the signed request; nil leaves it
	answered func(status int) (crash bool) // is called before the answer; needs a handler
}

// with returns a copy that a function has changed.
func (r *request) with(change func(*request)) *request {
	c := *r
	change(&c)
	return &c
}

// replaced returns a copy whose body is replaced after it was signed.
func (r *request) replaced(body string) *request {
	return r.with(func(r *request) { r.change = func(h *http.Request) { setBody(h, strings.NewReader(body), len(body)) } })
}

// headed returns a copy with another value of a header; "" removes it.
func (r *request) headed(name, value string) *request {
	return r.with(func(r *request) {
		r.change = func(h *http.Request) {
			h.Header.Set(name, value)
			if value == "" {
				h.Header.Del(name)
			}
		}
	})
}

func setBody(h *http.Request, body io.Reader, size int) {
	h.Body, h.ContentLength, h.GetBody = io.NopCloser(body), int64(size), nil
	if size == 0 {
		h.Body = http.NoBody // net/http sends any other body without a length in chunks
	}
}

// sign adds the headers of the scheme.
func (k *kit) sign(h http.Header, r *request) error {
	if k.Scheme == signature.XSignature {
		if len(r.by) == 0 {
			return signature.ErrNoSecret
		}
		signed, err := signature.Sign([]byte(r.body), r.by[0])
		h.Set(signature.Header, signed)
		return err
	}
	signed, err := signature.SignStandard([]byte(r.body), r.id, r.at, r.by...)
	h.Set(signature.StandardID, r.id)
	h.Set(signature.StandardTimestamp, strconv.FormatInt(r.at.Unix(), 10))
	h.Set(signature.StandardSignature, signed)
	return err
}

// timeout is how long a Forwarder waits for an answer.
const timeout = 5 * time.Second

// An answer is what a sender sees.
type answer struct {
	status int    // 0 without an answer
	text   string // the first line of the body
	err    error
}

func (a answer) accepted() bool { return a.status >= 200 && a.status <= 299 }

// refused reports whether the receiver said that the request is not good. Another status, such as 404,
// comes from what does not know webhooks.
func (a answer) refused() bool {
	return a.status == http.StatusUnauthorized || a.status == http.StatusBadRequest || a.status == http.StatusForbidden
}

// retried reports whether a sender tries again.
func (a answer) retried() bool {
	return a.status == 0 || a.status >= 500 || a.status == http.StatusRequestTimeout || a.status == http.StatusTooEarly || a.status == http.StatusTooManyRequests
}

func (a answer) String() string {
	if a.status == 0 {
		return fmt.Sprintf("no answer within %v (%v): a sender tries again for hours", timeout, a.err)
	}
	said := fmt.Sprintf("answered %d", a.status)
	if a.text != "" {
		said += fmt.Sprintf(" %q", a.text)
	}
	switch {
	case a.accepted():
		return said + ": a sender takes the event for delivered"
	case a.retried():
		return said + ": a sender tries again for hours"
	case a.status >= 300 && a.status < 400:
		return said + ": a sender follows no redirect, and gives the event up"
	}
	return said + ": a sender gives the event up at once"
}

// maxText is how much of the first line of an answer is shown, in bytes.
const maxText = 200

// firstLine returns the first line of a body, shortened.
func firstLine(body []byte) string {
	line, _, _ := bytes.Cut(bytes.TrimSpace(body), []byte("\n"))
	return string(bytes.TrimSpace(line[:min(len(line), maxText)]))
}

// send sends a request.
func (k *kit) send(r *request) answer {
	ctx, cancel := context.WithTimeout(context.WithValue(k.ctx, answeredKey{}, r.answered), timeout)
	defer cancel()
	h, err := http.NewRequestWithContext(ctx, http.MethodPost, k.URL, strings.NewReader(r.body))
	if err != nil {
		return answer{err: err}
	}
	h.Header.Set("Content-Type", "application/json")
	h.Header.Set("User-Agent", "hookferry-probe")
	if err := k.sign(h.Header, r); err != nil {
		return answer{err: err}
	}
	if r.change != nil {
		r.change(h)
	}
	response, err := k.Transport.RoundTrip(h)
	if err != nil {
		return answer{err: err}
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, 64<<10))
	if err != nil {
		return answer{err: err}
	}
	return answer{status: response.StatusCode, text: firstLine(body)}
}

// accept sends a request that has to be accepted.
func (k *kit) accept(what string, r *request) {
	if a := k.send(r); !a.accepted() {
		k.fault("%s: %v; want 2xx", what, a)
	}
}

// refuse sends a request that has to be refused for good.
func (k *kit) refuse(what string, r *request) {
	switch a := k.send(r); {
	case a.accepted():
		k.fault("%s: answered %d, as if it were good: anybody could send it; want 401", what, a.status)
	case !a.refused():
		k.fault("%s: %v; want 401", what, a)
	case k.Applied != nil:
		k.applied(what+", which was refused", r, 0)
	}
}

// applied checks how often the events of a request were applied.
func (k *kit) applied(what string, r *request, want int) {
	events := r.events
	if events == nil {
		events = []signature.Event{{ID: r.id, Body: []byte(r.body)}}
	}
	for _, e := range events {
		n, err := k.count(e)
		if err != nil {
			k.fault("%s: counting: %v", what, err)
		} else if n != want {
			k.fault("%s: applied %d times; want %d", what, n, want)
		}
	}
}

func (k *kit) count(e signature.Event) (int, error) {
	ctx, cancel := context.WithTimeout(k.ctx, timeout)
	defer cancel()
	return k.Applied(ctx, e)
}

// answeredKey is the key of a context for request.answered.
type answeredKey struct{}

// A handlerTransport calls a handler in place of sending requests.
type handlerTransport struct {
	handler http.Handler
}

func (t *handlerTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	answered, _ := r.Context().Value(answeredKey{}).(func(int) bool)
	w := &writer{header: http.Header{}, answered: answered}
	served := r.Clone(r.Context())
	served.RequestURI, served.Host, served.RemoteAddr = r.URL.RequestURI(), r.URL.Host, "192.0.2.1:1234"
	ended := make(chan error, 1)
	go func() { // ends with the handler; a handler that hangs outlives the request, as it does in a server
		defer func() {
			if p := recover(); p != nil {
				ended <- fmt.Errorf("the handler ended with %v", p)
			}
		}()
		t.handler.ServeHTTP(w, served)
		w.WriteHeader(http.StatusOK)
		ended <- nil
	}()
	select {
	case err := <-ended:
		if err != nil {
			return nil, err
		}
		return &http.Response{StatusCode: int(w.status.Load()), Header: w.header, Body: io.NopCloser(bytes.NewReader(w.body))}, nil
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
}

// A writer is an http.ResponseWriter that keeps the status and the beginning of the body. At the first
// write it may crash.
type writer struct {
	header   http.Header
	status   atomic.Int32
	body     []byte
	answered func(int) bool
}

func (w *writer) Header() http.Header { return w.header }
func (w *writer) Flush()              { w.WriteHeader(http.StatusOK) }

func (w *writer) WriteHeader(status int) {
	if status >= 200 && w.status.CompareAndSwap(0, int32(status)) && w.answered != nil && w.answered(status) {
		panic(http.ErrAbortHandler)
	}
}

func (w *writer) Write(b []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	w.body = append(w.body, b[:min(len(b), maxText-len(w.body))]...)
	return len(b), nil
}
