package analytics

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// A collector is an http.RoundTripper that answers as a test tells it to. It works in a
// synctest bubble.
type collector struct {
	// answer returns the answer to the n-th request, counted from 0. If it is nil, every
	// answer is 200.
	answer func(n int, req request) (*http.Response, error)

	mu       sync.Mutex
	requests []request
}

// A request is one attempt as the collector received it.
type request struct {
	at       time.Time
	ctx      context.Context
	method   string
	url      string
	header   http.Header
	length   int64 // Content-Length
	body     []byte
	messages []map[string]any
	batch    struct {
		Batch   []json.RawMessage
		Context struct {
			Library struct{ Name, Version string }
		}
		MessageID string `json:"messageId"`
		SentAt    string `json:"sentAt"`
	}
}

func (c *collector) RoundTrip(req *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return nil, err
	}
	if err := req.Body.Close(); err != nil {
		return nil, err
	}
	r := request{
		at:     time.Now(),
		ctx:    req.Context(),
		method: req.Method,
		url:    req.URL.String(),
		header: req.Header.Clone(),
		length: req.ContentLength,
		body:   body,
	}
	if err := json.Unmarshal(body, &r.batch); err != nil {
		return nil, errors.New("the collector got a body that is not JSON")
	}
	for _, raw := range r.batch.Batch {
		var m map[string]any
		if err := json.Unmarshal(raw, &m); err != nil {
			return nil, err
		}
		r.messages = append(r.messages, m)
	}
	c.mu.Lock()
	n := len(c.requests)
	c.requests = append(c.requests, r)
	answer := c.answer
	c.mu.Unlock()
	if answer == nil {
		return status(200), nil
	}
	return answer(n, r)
}

// recover makes the collector answer 200 from now on.
func (c *collector) recover() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.answer = nil
}

// got returns the requests received so far.
func (c *collector) got() []request {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]request(nil), c.requests...)
}

// sizes returns the number of messages in each request so far.
func (c *collector) sizes() []int {
	sizes := []int{}
	for _, r := range c.got() {
		sizes = append(sizes, len(r.messages))
	}
	return sizes
}

// distinct returns how many different messages have arrived.
func (c *collector) distinct() int {
	ids := map[any]bool{}
	for _, r := range c.got() {
		for _, m := range r.messages {
			ids[m["messageId"]] = true
		}
	}
	return len(ids)
}

// status returns an answer. header alternates names and values.
func status(code int, header ...string) *http.Response {
	resp := &http.Response{StatusCode: code, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(`{"success":true}`))}
	for i := 0; i+1 < len(header); i += 2 {
		resp.Header.Set(header[i], header[i+1])
	}
	return resp
}

func always(code int, header ...string) func(int, request) (*http.Response, error) {
	return func(int, request) (*http.Response, error) { return status(code, header...), nil }
}

// hang waits until the attempt is cancelled, and returns the error of its context.
func hang(_ int, r request) (*http.Response, error) {
	<-r.ctx.Done()
	return nil, r.ctx.Err()
}

// newTestClient returns a client and the collector that it uses.
func newTestClient(answer func(int, request) (*http.Response, error)) (*Client, *collector) {
	col := &collector{answer: answer}
	c := New("test-key")
	c.Transport = col
	return c, col
}

// everyCall returns a function for each kind of call, by the name of the method.
func everyCall(c *Client) map[string]func() error {
	return map[string]func() error{
		"Identify": func() error { return c.Identify(&Identify{UserId: "u"}) },
		"Track":    func() error { return c.Track(&Track{UserId: "u", Event: "e"}) },
		"Page":     func() error { return c.Page(&Page{UserId: "u"}) },
		"Screen":   func() error { return c.Screen(&Screen{UserId: "u"}) },
		"Group":    func() error { return c.Group(&Group{UserId: "u", GroupId: "g"}) },
		"Alias":    func() error { return c.Alias(&Alias{UserId: "u", PreviousId: "p"}) },
	}
}

// track queues n events.
func track(t *testing.T, c *Client, n int) {
	t.Helper()
	for range n {
		if err := c.Track(&Track{UserId: "u-1", Event: "E"}); err != nil {
			t.Fatalf("Track: %v", err)
		}
	}
}

// closeClient closes the client. Close must deliver all messages.
func closeClient(t *testing.T, c *Client) {
	t.Helper()
	if err := c.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
}

// flush flushes the client. Flush must deliver all messages.
func flush(t *testing.T, c *Client) {
	t.Helper()
	if err := c.Flush(t.Context()); err != nil {
		t.Errorf("Flush: %v", err)
	}
}

// bubble runs a subtest in a synctest bubble.
func bubble(t *testing.T, name string, test func(t *testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { synctest.Test(t, test) })
}

// checkSizes checks the number of messages in each request so far.
func checkSizes(t *testing.T, col *collector, want ...int) {
	t.Helper()
	if d := cmp.Diff(want, col.sizes()); d != "" {
		t.Errorf("messages per request (-want +got):\n%s", d)
	}
}

// checkUndelivered checks the counts of an *UndeliveredError.
func checkUndelivered(t *testing.T, err error, want UndeliveredError) {
	t.Helper()
	var got *UndeliveredError
	if !errors.As(err, &got) || got.Delivered != want.Delivered || got.Dropped != want.Dropped || got.Spooled != want.Spooled || got.Pending != want.Pending {
		t.Errorf("the error is %v (%+v), want the counts of %+v", err, got, want)
	}
}

// statusThenOK returns an answer function. It answers the given status to the first n requests,
// and 200 to the others.
func statusThenOK(n, code int, header ...string) func(int, request) (*http.Response, error) {
	return func(i int, _ request) (*http.Response, error) {
		if i < n {
			return status(code, header...), nil
		}
		return status(200), nil
	}
}

// A deliveryRecorder records the calls of OnDelivery. messages has the messages of all
// deliveries, and errs the error of each message.
type deliveryRecorder struct {
	mu       sync.Mutex
	list     []Delivery
	messages []string
	errs     []error
}

func (f *deliveryRecorder) add(d Delivery) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for raw, err := range d.Messages() {
		f.messages = append(f.messages, string(bytes.Clone(raw)))
		f.errs = append(f.errs, err)
	}
	d.batch = nil
	f.list = append(f.list, d)
}

func (f *deliveryRecorder) got() []Delivery {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]Delivery(nil), f.list...)
}

// checkStats checks that Stats accounts for every message, and checks the totals.
func checkStats(t *testing.T, c *Client, queued, delivered, dropped uint64, pending int) {
	t.Helper()
	s := c.Stats()
	if !s.sums() {
		t.Errorf("Stats() = %+v: the counters do not add up", s)
	}
	if s.Queued != queued || s.Delivered != delivered || s.Dropped != dropped || s.Pending != pending {
		t.Errorf("Stats(): queued, delivered, dropped, pending = %d, %d, %d, %d, want %d, %d, %d, %d",
			s.Queued, s.Delivered, s.Dropped, s.Pending, queued, delivered, dropped, pending)
	}
	if pending == 0 && s.Memory != 0 {
		t.Errorf("Stats().Memory = %d with nothing pending, want 0", s.Memory)
	}
}
