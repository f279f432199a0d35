package webhooktest_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hookferry/analytics/signature"
	"github.com/hookferry/analytics/step"
	"github.com/hookferry/analytics/webhook/webhooktest"
)

const secret = signature.Secret("s3cret")

// A client posts to receivers as a forwarder does.
type client struct {
	transport *http.Transport
}

func newClient(n *webhooktest.Network) *client {
	return &client{&http.Transport{
		DialContext:       n.DialContext,
		TLSClientConfig:   n.TLSClientConfig(),
		ForceAttemptHTTP2: true,
	}}
}

// An answer is the result of a post.
type answer struct {
	status int
	header http.Header
	body   string // the first 64 KB
	err    error  // of the request, or of reading the body
	took   time.Duration
	reused bool
}

func (a answer) String() string {
	return fmt.Sprintf("%d %v %.40q, %v after %v", a.status, a.header, a.body, a.err, a.took)
}

func (c *client) post(ctx context.Context, url, body string) (a answer) {
	start := time.Now()
	defer func() { a.took = time.Since(start) }()
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(info httptrace.GotConnInfo) { a.reused = info.Reused },
	})
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		return answer{err: err}
	}
	sum, err := signature.Sign([]byte(body), secret)
	if err != nil {
		return answer{err: err}
	}
	req.Header.Set(signature.Header, sum)
	resp, err := c.transport.RoundTrip(req)
	if err != nil {
		return answer{err: err}
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	a.status, a.header, a.body, a.err = resp.StatusCode, resp.Header, string(b), err
	return a
}

func (c *client) close() { c.transport.CloseIdleConnections() }

// inBubbles runs f for a receiver of each protocol. Each receiver has a network in memory, in a
// bubble of its own.
func inBubbles(t *testing.T, f func(t *testing.T, n *webhooktest.Network, r *webhooktest.Receiver)) {
	for name, url := range map[string]string{
		"http": "http://crm.example/hook", "https": "https://crm.example/hook", "http2": "https://crm.example/hook",
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := webhooktest.NewNetwork()
				defer n.Close()
				r := n.Receiver(url, secret)
				if name == "http2" {
					r.SetTLS(webhooktest.TLS{HTTP2: true})
				}
				f(t, n, r)
			})
		})
	}
}

// onLoopback runs f for receivers on loopback, with and without TLS, once by name and once by
// address.
func onLoopback(t *testing.T, f func(t *testing.T, n *webhooktest.Network, r *webhooktest.Receiver, url string)) {
	for _, url := range []string{"http://crm.example/hook", "https://crm.example/hook"} {
		for _, by := range []string{"name", "address"} {
			t.Run(url[:strings.Index(url, ":")]+"/by "+by, func(t *testing.T) {
				n := webhooktest.NewLoopback()
				defer n.Close()
				r := n.Receiver(url, secret)
				if by == "address" {
					url = r.URL
				}
				f(t, n, r, url)
			})
		}
	}
}

// steps lists the steps that end by themselves. check checks the answer that a client gets. check2
// takes its place for HTTP/2, if the client gets another answer there.
var steps = []struct {
	name   string
	step   step.Step
	check  func(answer) bool
	check2 func(answer) bool
}{
	{name: "zero", check: func(a answer) bool { return a.status == 200 && a.body == "" && a.err == nil }},
	{
		name: "Answer",
		step: step.Answer(418).With("Retry-After", "7").With("X-A", "1").With("X-A", "2").WithBody("short"),
		check: func(a answer) bool {
			return a.status == 418 && a.body == "short" && a.header.Get("Retry-After") == "7" && len(a.header["X-A"]) == 2 && a.err == nil
		},
	},
	{
		name:  "Answer without content",
		step:  step.Answer(204),
		check: func(a answer) bool { return a.status == 204 && a.err == nil },
	},
	{
		name: "Redirect",
		step: step.Redirect(307, "http://10.0.0.1/"),
		check: func(a answer) bool {
			return a.status == 307 && a.header.Get("Location") == "http://10.0.0.1/" && a.err == nil
		},
	},
	{
		name:  "Stream",
		step:  step.Stream(256 << 20),
		check: func(a answer) bool { return a.status == 200 && len(a.body) == 64<<10 && a.err == nil },
	},
	{
		name:  "Close",
		step:  step.Close(),
		check: func(a answer) bool { return errors.Is(a.err, io.EOF) || errors.Is(a.err, io.ErrUnexpectedEOF) },
	},
	{
		name:  "Reset",
		step:  step.Reset(),
		check: func(a answer) bool { return errors.Is(a.err, syscall.ECONNRESET) },
	},
	{
		name:  "Garbage",
		step:  step.Garbage(),
		check: func(a answer) bool { return a.err != nil && strings.Contains(a.err.Error(), "malformed HTTP") },
		// The frame reader takes the text for a frame that is too large, or
		// that ends early.
		check2: func(a answer) bool { return a.err != nil && a.status == 0 },
	},
	{
		name:   "Raw",
		step:   step.Raw("HTTP/1.1 299 By Hand\r\nConnection: close\r\n\r\nhello"),
		check:  func(a answer) bool { return a.status == 299 && a.body == "hello" && a.err == nil },
		check2: func(a answer) bool { return a.err != nil && a.status == 0 },
	},
	{
		name:   "EndlessHeader",
		step:   step.EndlessHeader(),
		check:  func(a answer) bool { return a.err != nil && strings.Contains(a.err.Error(), "header") },
		check2: func(a answer) bool { return a.err != nil && a.status == 0 },
	},
	{
		name:  "EndlessInformational",
		step:  step.EndlessInformational(),
		check: func(a answer) bool { return a.err != nil && a.status == 0 },
	},
	{
		name: "Misstate too much",
		step: step.Answer(200).WithBody("short").Misstate(100),
		check: func(a answer) bool {
			return a.status == 200 && a.body == "short" && errors.Is(a.err, io.ErrUnexpectedEOF)
		},
		check2: func(a answer) bool { return a.status == 200 && a.err != nil },
	},
	{
		name: "Misstate too little",
		step: step.Answer(200).With("X-A", "b").WithBody("longer").Misstate(4),
		check: func(a answer) bool {
			return a.status == 200 && a.body == "long" && a.header.Get("X-A") == "b" && a.err == nil
		},
		check2: func(a answer) bool { return a.status == 200 && a.err != nil },
	},
	{
		name: "HangUp",
		step: step.Answer(201).WithBody("bye").HangUp(),
		check: func(a answer) bool {
			return a.status == 201 && a.body == "bye" && a.err == nil && a.header.Get("Connection") == ""
		},
	},
	{
		name: "Serve",
		step: step.Serve(&signature.Handler{
			Secrets: []signature.Secret{secret},
			Next: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.WriteHeader(202)
				io.Copy(w, r.Body)
			}),
		}),
		check: func(a answer) bool { return a.status == 202 && a.body == `{"type":"track"}` && a.err == nil },
	},
	{
		name: "Do",
		step: webhooktest.Do(func(q *webhooktest.Request) step.Step {
			return step.Answer(200 + q.Number).WithBody(q.JSON["type"].(string))
		}),
		check: func(a answer) bool { return a.status == 201 && a.body == "track" && a.err == nil },
	},
}

func TestStepsInMemory(t *testing.T) {
	for _, tt := range steps {
		t.Run(tt.name, func(t *testing.T) {
			inBubbles(t, func(t *testing.T, n *webhooktest.Network, r *webhooktest.Receiver) {
				r.SetScript(tt.step)
				c := newClient(n)
				defer c.close()
				a := c.post(t.Context(), r.URL, `{"type":"track"}`)
				check := tt.check
				if tt.check2 != nil && len(r.Requests()) > 0 && r.Requests()[0].Proto == "HTTP/2.0" {
					check = tt.check2
				}
				if !check(a) {
					t.Errorf("post = %v, want the answer of the step", a)
				}
				if a.took != 0 {
					t.Errorf("post took %v; want no time at all", a.took)
				}
				if got := len(r.Requests()); got != 1 {
					t.Errorf("received %d requests; want 1", got)
				}
			})
		})
	}
}

func TestStepsOnLoopback(t *testing.T) {
	for _, tt := range steps {
		t.Run(tt.name, func(t *testing.T) {
			onLoopback(t, func(t *testing.T, n *webhooktest.Network, r *webhooktest.Receiver, url string) {
				r.SetScript(tt.step)
				c := newClient(n)
				defer c.close()
				if a := c.post(t.Context(), url, `{"type":"track"}`); !tt.check(a) {
					t.Errorf("post = %v, want the answer of the step", a)
				}
				if got := len(r.Requests()); got != 1 {
					t.Errorf("received %d requests; want 1", got)
				}
			})
		})
	}
}

func TestStepsTakeTheirTime(t *testing.T) {
	gaveUp := func(a answer) bool { return a.err != nil && errors.Is(a.err, context.DeadlineExceeded) }
	tests := []struct {
		name  string
		step  step.Step
		took  time.Duration
		check func(answer) bool
	}{
		{"After", step.Answer(200).After(4900 * time.Millisecond), 4900 * time.Millisecond, func(a answer) bool { return a.status == 200 }},
		{"After too long", step.Answer(200).After(5100 * time.Millisecond), 5 * time.Second, gaveUp},
		{"Hang", step.Hang(), 5 * time.Second, gaveUp},
		{"Reset after a while", step.Reset().After(time.Second), time.Second, func(a answer) bool { return errors.Is(a.err, syscall.ECONNRESET) }},
		{"Drip", step.Answer(200).WithBody("drop").Drip(time.Second), 4 * time.Second, func(a answer) bool { return a.status == 200 && a.body == "drop" && a.err == nil }},
		{"Drip without end", step.Answer(200).Drip(2 * time.Second), 5 * time.Second, func(a answer) bool { return a.status == 200 && a.body == "  " && gaveUp(a) }},
		{"Do", webhooktest.Do(func(*webhooktest.Request) step.Step { return step.Answer(200).After(time.Second) }), time.Second, func(a answer) bool { return a.status == 200 }},
		{"Refuse", step.Refuse(), 0, func(a answer) bool { return errors.Is(a.err, syscall.ECONNREFUSED) }},
		{"Refuse after a while", step.Refuse().After(time.Second), time.Second, func(a answer) bool { return errors.Is(a.err, syscall.ECONNREFUSED) }},
		{"NoSuchHost", step.NoSuchHost(), 0, func(a answer) bool {
			var dns *net.DNSError
			return errors.As(a.err, &dns) && dns.IsNotFound && dns.Name == "crm.example"
		}},
		{"Unreachable", step.Unreachable(), 5 * time.Second, gaveUp},
		{"ResetEarly", step.ResetEarly(), 0, func(a answer) bool { return errors.Is(a.err, syscall.ECONNRESET) }},
		{"ResetEarly after a while", step.ResetEarly().After(time.Second), time.Second, func(a answer) bool { return errors.Is(a.err, syscall.ECONNRESET) }},
		{"Stall", step.Stall(), 5 * time.Second, gaveUp},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			inBubbles(t, func(t *testing.T, n *webhooktest.Network, r *webhooktest.Receiver) {
				r.SetScript(tt.step)
				c := newClient(n)
				defer c.close()
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
				defer cancel()
				a := c.post(ctx, r.URL, `{}`)
				if !tt.check(a) || a.took != tt.took {
					t.Errorf("post = %v; want the answer of the step after %v", a, tt.took)
				}
			})
		})
	}
}

func TestConnectionStepsOnLoopback(t *testing.T) {
	tests := []struct {
		name      string
		step      step.Step
		byName    error // nil: the deadline
		byAddress error
	}{
		{"Refuse", step.Refuse(), syscall.ECONNREFUSED, syscall.ECONNRESET},
		{"NoSuchHost", step.NoSuchHost(), &net.DNSError{}, syscall.ECONNRESET},
		{"Unreachable", step.Unreachable(), context.DeadlineExceeded, context.DeadlineExceeded},
		{"ResetEarly", step.ResetEarly(), syscall.ECONNRESET, syscall.ECONNRESET},
		{"Stall", step.Stall(), context.DeadlineExceeded, context.DeadlineExceeded},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			n := webhooktest.NewLoopback()
			defer n.Close()
			r := n.Receiver("http://crm.example/", "", tt.step)
			for url, want := range map[string]error{"http://crm.example/": tt.byName, r.URL: tt.byAddress} {
				c := newClient(n)
				defer c.close()
				if url == r.URL { // as a client outside of the test network
					c.transport.DialContext = nil
				}
				ctx := t.Context()
				if want == context.DeadlineExceeded {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, 10*time.Millisecond)
					defer cancel()
				}
				a := c.post(ctx, url, `{}`)
				var dns *net.DNSError
				if _, ok := want.(*net.DNSError); ok && errors.As(a.err, &dns) {
					continue
				}
				// If the reset comes before the request is written, the error is a broken pipe.
				late := want == syscall.ECONNRESET && errors.Is(a.err, syscall.EPIPE)
				if !errors.Is(a.err, want) && !late {
					t.Errorf("post to %s: %v; want %v", url, a.err, want)
				}
			}
		})
	}
}

func TestConnectionStepOnOpenConnection(t *testing.T) {
	inBubbles(t, func(t *testing.T, n *webhooktest.Network, r *webhooktest.Receiver) {
		r.SetScript(step.Answer(200), step.Refuse().Times(2), step.Answer(200))
		c := newClient(n)
		defer c.close()
		var got []string
		for range 4 {
			a := c.post(t.Context(), r.URL, `{}`)
			switch {
			case errors.Is(a.err, syscall.ECONNRESET):
				got = append(got, "reset")
			case errors.Is(a.err, syscall.ECONNREFUSED):
				got = append(got, "refused")
			default:
				got = append(got, fmt.Sprint(a.status))
			}
		}
		if d := cmp.Diff([]string{"200", "reset", "refused", "200"}, got); d != "" {
			t.Errorf("outcomes (-want +got):\n%s", d)
		}
		synctest.Wait()
		// With HTTP/2 the transport may dial a connection that it does not use.
		accepted, open := r.Conns()
		if spare := accepted - 2; spare < 0 || spare > 0 && !strings.HasSuffix(t.Name(), "/http2") || open < 1 || open > 1+spare {
			t.Errorf("Conns = %d accepted, %d open; want 2, 1", accepted, open)
		}
	})
}

func TestHangUpBreaksKeepAlive(t *testing.T) {
	inBubbles(t, func(t *testing.T, n *webhooktest.Network, r *webhooktest.Receiver) {
		r.SetScript(step.Answer(200).Times(2), step.Answer(200).HangUp(), step.Answer(200))
		c := newClient(n)
		defer c.close()
		var reused []bool
		for range 4 {
			a := c.post(t.Context(), r.URL, `{}`)
			if a.err != nil {
				t.Fatalf("post = %v, want nil", a.err)
			}
			reused = append(reused, a.reused)
			synctest.Wait()
		}
		if d := cmp.Diff([]bool{false, true, true, false}, reused); d != "" {
			t.Errorf("connection reused (-want +got):\n%s", d)
		}
		var conns []int
		for _, q := range r.Requests() {
			conns = append(conns, q.Conn)
		}
		if d := cmp.Diff([]int{1, 1, 1, 2}, conns); d != "" {
			t.Errorf("Request.Conn (-want +got):\n%s", d)
		}
	})
}

func TestScriptStepsComeInOrder(t *testing.T) {
	answers := func(codes ...int) (script []step.Step) {
		for _, c := range codes {
			script = append(script, step.Answer(c))
		}
		return script
	}
	tests := []struct {
		name   string
		script []step.Step
		want   []int
	}{
		{"none", nil, []int{200, 200}},
		{"last repeats", answers(500, 503, 204), []int{500, 503, 204, 204, 204}},
		{"times", []step.Step{step.Answer(503).Times(3), step.Answer(200)}, []int{503, 503, 503, 200, 200}},
		{"times of the last", []step.Step{step.Answer(503), step.Answer(200).Times(2)}, []int{503, 200, 200, 200}},
		{"times below one", []step.Step{step.Answer(503).Times(-1), step.Answer(200)}, []int{503, 200}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := webhooktest.NewNetwork()
				defer n.Close()
				r := n.Receiver("http://crm.example/", "", tt.script...)
				c := newClient(n)
				defer c.close()
				var got []int
				for range tt.want {
					got = append(got, c.post(t.Context(), r.URL, "{}").status)
				}
				if d := cmp.Diff(tt.want, got); d != "" {
					t.Errorf("answers (-want +got):\n%s", d)
				}
			})
		})
	}
}

func TestPickRepeatsItselfWithTheSameSeed(t *testing.T) {
	run := func(seed uint64) (codes []int) {
		n := webhooktest.NewNetwork()
		defer n.Close()
		r := n.Receiver("http://crm.example/", "",
			step.Pick(seed, step.Answer(200), step.Answer(500), step.Close()))
		c := newClient(n)
		defer c.close()
		for range 60 {
			codes = append(codes, c.post(t.Context(), r.URL, "{}").status)
		}
		return codes
	}
	first := run(7)
	count := make(map[int]int)
	for _, c := range first {
		count[c]++
	}
	if count[200] < 5 || count[500] < 5 || count[0] < 5 {
		t.Errorf("60 picks of three = %v; want at least 5 of each", count)
	}
	if d := cmp.Diff(first, run(7)); d != "" {
		t.Errorf("second run (-first +second):\n%s", d)
	}
	if cmp.Equal(first, run(8)) {
		t.Errorf("seeds 7 and 8 gave the same picks, want different ones")
	}
}

func TestUntilHoldsRequests(t *testing.T) {
	inBubbles(t, func(t *testing.T, n *webhooktest.Network, r *webhooktest.Receiver) {
		release := make(chan struct{})
		r.SetScript(step.Answer(200).Until(release).After(time.Second))
		c := newClient(n)
		defer c.close()
		start := time.Now()
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				if a := c.post(t.Context(), r.URL, "{}"); a.status != 200 {
					t.Errorf("post = %v; want 200", a)
				}
			})
		}
		if _, err := r.Wait(t.Context(), 3); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour) // of the bubble
		close(release)
		wg.Wait()
		if got := time.Since(start); got != time.Hour+time.Second {
			t.Errorf("answered after %v; want 1h0m1s", got)
		}
	})
}

func TestReceiverRecordsRequests(t *testing.T) {
	inBubbles(t, func(t *testing.T, n *webhooktest.Network, r *webhooktest.Receiver) {
		other := n.Receiver("http://unsigned.example:8080/", "")
		wrong := n.Receiver("http://wrong.example/", "another")
		c := newClient(n)
		defer c.close()
		start := time.Now()
		time.Sleep(90 * time.Minute) // of the bubble
		c.post(t.Context(), r.URL+"?a=b", `{"type":"track","n":1.5}`)
		c.post(t.Context(), other.URL, `["no object"]`)
		c.post(t.Context(), wrong.URL, `{`)

		q := r.Requests()[0]
		if q.Number != 1 || q.Conn != 1 || q.Method != "POST" || q.URL.String() == "" || q.URL.RawQuery != "a=b" ||
			q.URL.Path != "/hook" || q.Host != "crm.example" || q.Header.Get(signature.Header) == "" {
			t.Errorf("request = %+v, want the first one, as it was sent", q)
		}
		if got := q.Time.Sub(start); got != 90*time.Minute {
			t.Errorf("Time is %v after the start; want 1h30m", got)
		}
		if (q.TLS != nil) != strings.HasPrefix(r.URL, "https:") {
			t.Errorf("TLS = %v of %s, want it set for https only", q.TLS, r.URL)
		}
		if d := cmp.Diff(map[string]any{"type": "track", "n": 1.5}, q.JSON); d != "" {
			t.Errorf("JSON (-want +got):\n%s", d)
		}
		if string(q.Body) != `{"type":"track","n":1.5}` || q.Signature != nil {
			t.Errorf("Body = %s, Signature = %v; want the body that was sent, nil", q.Body, q.Signature)
		}
		if q := other.Requests()[0]; q.JSON != nil || !errors.Is(q.Signature, signature.ErrNoSecret) || q.Host != "unsigned.example:8080" {
			t.Errorf("JSON = %v, Signature = %v, Host = %s; want nil, ErrNoSecret, unsigned.example:8080", q.JSON, q.Signature, q.Host)
		}
		if q := wrong.Requests()[0]; q.JSON != nil || !errors.Is(q.Signature, signature.ErrMismatch) {
			t.Errorf("JSON = %v, Signature = %v; want nil, ErrMismatch", q.JSON, q.Signature)
		}
	})
}

func TestClientsCheckReceiverCertificates(t *testing.T) {
	tests := []struct {
		name  string
		tls   webhooktest.TLS
		check func(error) bool
	}{
		{"trusted", webhooktest.TLS{}, func(err error) bool { return err == nil }},
		{"self-signed", webhooktest.TLS{Certificate: webhooktest.SelfSigned}, func(err error) bool {
			var e x509.UnknownAuthorityError
			return errors.As(err, &e)
		}},
		{"expired", webhooktest.TLS{Certificate: webhooktest.Expired}, func(err error) bool {
			var e x509.CertificateInvalidError
			return errors.As(err, &e) && e.Reason == x509.Expired
		}},
		{"wrong host", webhooktest.TLS{Certificate: webhooktest.WrongHost}, func(err error) bool {
			var e x509.HostnameError
			return errors.As(err, &e)
		}},
		{"old version", webhooktest.TLS{MaxVersion: tls.VersionTLS11}, func(err error) bool {
			return err != nil && strings.Contains(err.Error(), "protocol version")
		}},
		{"limited version", webhooktest.TLS{MaxVersion: tls.VersionTLS12}, func(err error) bool { return err == nil }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			check := func(t *testing.T, n *webhooktest.Network, r *webhooktest.Receiver, url string) {
				r.SetTLS(tt.tls)
				c := newClient(n)
				defer c.close()
				a := c.post(t.Context(), url, "{}")
				if !tt.check(a.err) {
					t.Errorf("post = %v, want the result for such a certificate", a.err)
				}
				if got := len(r.Requests()); (got == 1) != (a.err == nil) {
					t.Errorf("received %d requests, post = %v; want 1 if post succeeds, else 0", got, a.err)
				}
			}
			synctest.Test(t, func(t *testing.T) {
				n := webhooktest.NewNetwork()
				defer n.Close()
				r := n.Receiver("https://crm.example/", "")
				check(t, n, r, r.URL)
				ip := n.Receiver("https://[2001:db8::7]:8443/", "")
				check(t, n, ip, ip.URL)
			})
			n := webhooktest.NewLoopback()
			defer n.Close()
			r := n.Receiver("https://crm.example/", "")
			check(t, n, r, r.URL)
		})
	}
}

func TestClientCertificateIsRecorded(t *testing.T) {
	n := webhooktest.NewNetwork()
	defer n.Close()
	r := n.Receiver("https://crm.example/", "")
	c := newClient(n)
	defer c.close()
	c.transport.TLSClientConfig.Certificates = []tls.Certificate{{
		Certificate: [][]byte{clientCertificate.cert.Raw}, PrivateKey: clientCertificate.key,
	}}
	if a := c.post(t.Context(), r.URL, "{}"); a.err != nil {
		t.Fatal(a.err)
	}
	got := r.Requests()[0].TLS.PeerCertificates
	if len(got) != 1 || !bytes.Equal(got[0].Raw, clientCertificate.cert.Raw) {
		t.Errorf("PeerCertificates = %d certificates; want the client's", len(got))
	}
}

func TestDialContextReachesOnlyReceivers(t *testing.T) {
	for name, open := range map[string]func() *webhooktest.Network{"memory": webhooktest.NewNetwork, "loopback": webhooktest.NewLoopback} {
		t.Run(name, func(t *testing.T) {
			n := open()
			r := n.Receiver("http://CRM.example/", "")
			n.Receiver("http://10.1.2.3:99/", "")
			ctx := t.Context()
			for _, addr := range []string{"crm.example:80", "Crm.Example:80", "10.1.2.3:99"} {
				c, err := n.DialContext(ctx, "tcp", addr)
				if err != nil {
					t.Fatalf("DialContext(%s) = %v; want nil", addr, err)
				}
				if _, ok := c.RemoteAddr().(*net.TCPAddr); !ok {
					t.Errorf("RemoteAddr of %s is %T; want a *net.TCPAddr", addr, c.RemoteAddr())
				}
				c.Close()
			}
			var dns *net.DNSError
			if _, err := n.DialContext(ctx, "tcp", "nobody.example:80"); !errors.As(err, &dns) || !dns.IsNotFound {
				t.Errorf("DialContext of an unknown host = %v; want a *net.DNSError", err)
			}
			for _, addr := range []string{"crm.example:81", "10.1.2.3:98", "10.9.9.9:80"} {
				if _, err := n.DialContext(ctx, "tcp", addr); !errors.Is(err, syscall.ECONNREFUSED) {
					t.Errorf("DialContext(%s) = %v; want ECONNREFUSED", addr, err)
				}
			}
			if _, err := n.DialContext(ctx, "tcp", "crm.example"); err == nil {
				t.Errorf("DialContext without a port = nil, want an error")
			}
			done, cancel := context.WithCancel(ctx)
			cancel()
			if _, err := n.DialContext(done, "tcp", "crm.example:80"); !errors.Is(err, context.Canceled) {
				t.Errorf("DialContext with an ended context = %v; want context.Canceled", err)
			}
			n.Close()
			n.Close()
			if _, err := n.DialContext(ctx, "tcp", "crm.example:80"); !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("DialContext after Close = %v; want ECONNREFUSED", err)
			}
			if got := r.Requests(); len(got) != 0 {
				t.Errorf("received %d requests; want none", len(got))
			}
		})
	}
}

// If a receiver is added while the network closes, either Receiver panics, or the receiver is
// closed too. TestMain finds goroutines that do not end.
func TestReceiverAddedDuringCloseIsClosed(t *testing.T) {
	host := strings.Repeat("X", 1<<18) + ".example" // takes long to parse, so that Receiver and Close overlap
	for i := range 50 {
		n := webhooktest.NewNetwork()
		begin := make(chan struct{})
		var added *webhooktest.Receiver
		var both sync.WaitGroup
		both.Go(func() {
			defer func() { recover() }() // Receiver panics on a closed network
			<-begin
			added = n.Receiver("http://"+host+"/", "")
		})
		both.Go(func() {
			<-begin
			for start := time.Now(); time.Since(start) < time.Duration(i)*50*time.Microsecond; {
			}
			n.Close()
		})
		close(begin)
		both.Wait()
		if _, err := n.DialContext(t.Context(), "tcp", host+":80"); added != nil && !errors.Is(err, syscall.ECONNREFUSED) {
			n.Close()
			t.Fatalf("DialContext after Close = %v; want ECONNREFUSED", err)
		}
	}
}

func TestReceiverPanicsOnMisuse(t *testing.T) {
	closed := webhooktest.NewNetwork()
	closed.Close()
	tests := []struct {
		name string
		do   func(n *webhooktest.Network)
	}{
		{"relative", func(n *webhooktest.Network) { n.Receiver("/hook", "") }},
		{"other scheme", func(n *webhooktest.Network) { n.Receiver("ftp://crm.example/", "") }},
		{"no host", func(n *webhooktest.Network) { n.Receiver("http:///hook", "") }},
		{"unparsable", func(n *webhooktest.Network) { n.Receiver("http://crm.example:port/", "") }},
		{"host and port in use", func(n *webhooktest.Network) {
			n.Receiver("http://crm.example/a", "")
			n.Receiver("http://crm.example:80/b", "")
		}},
		{"closed network", func(*webhooktest.Network) { closed.Receiver("http://crm.example/", "") }},
		{"empty pick", func(*webhooktest.Network) { step.Pick(1) }},
		{"status of an interim answer", func(*webhooktest.Network) { step.Answer(103) }},
		{"status above 599", func(*webhooktest.Network) { step.Answer(600) }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			n := webhooktest.NewNetwork()
			defer n.Close()
			defer func() {
				if recover() == nil {
					t.Errorf("no panic, want one")
				}
			}()
			tt.do(n)
		})
	}
}

func TestWaitReturnsOnceRequestsArrived(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := webhooktest.NewNetwork()
		defer n.Close()
		r := n.Receiver("http://crm.example/", "")
		c := newClient(n)
		defer c.close()
		start := time.Now()
		go func() {
			for i := range 3 {
				time.Sleep(time.Hour) // of the bubble
				c.post(t.Context(), r.URL, fmt.Sprint(i))
			}
		}()
		requests, err := r.Wait(t.Context(), 2)
		if len(requests) != 2 || err != nil || time.Since(start) != 2*time.Hour {
			t.Errorf("Wait(2) = %d requests, %v after %v; want 2, nil after 2h", len(requests), err, time.Since(start))
		}
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Hour)
		defer cancel()
		requests, err = r.Wait(ctx, 4)
		if len(requests) != 3 || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Wait(4) = %d requests, %v; want 3 and the context's error", len(requests), err)
		}
		if requests, err := r.Wait(ctx, 1); len(requests) != 3 || err != nil {
			t.Errorf("Wait(1) = %d requests, %v; want all 3 at once", len(requests), err)
		}
	})
}

func TestDisconnectResetsConnections(t *testing.T) {
	inBubbles(t, func(t *testing.T, n *webhooktest.Network, r *webhooktest.Receiver) {
		r.SetScript(step.Hang())
		c := newClient(n)
		defer c.close()
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				if a := c.post(t.Context(), r.URL, "{}"); !errors.Is(a.err, syscall.ECONNRESET) {
					t.Errorf("post = %v; want ECONNRESET", a.err)
				}
			})
		}
		if _, err := r.Wait(t.Context(), 3); err != nil {
			t.Fatal(err)
		}
		r.SetScript(step.Stall(), step.Answer(200))
		addr := "crm.example:80"
		if strings.HasPrefix(r.URL, "https:") {
			addr = "crm.example:443"
		}
		stalled, err := n.DialContext(t.Context(), "tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait() // the HTTP/2 transport may still dial connections that it will not use
		r.Disconnect()
		wg.Wait()
		if _, err := stalled.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("Read of a stalled connection = %v; want ECONNRESET", err)
		}
		synctest.Wait()
		if _, open := r.Conns(); open != 0 {
			t.Errorf("%d connections are open; want none", open)
		}
		if a := c.post(t.Context(), r.URL, "{}"); a.status != 200 {
			t.Errorf("post after Disconnect = %v; want 200", a)
		}
	})
}

// Close ends the requests in the middle of each kind of step. TestMain finds goroutines that do not
// end.
func TestCloseEndsEverything(t *testing.T) {
	for name, open := range map[string]func() *webhooktest.Network{"memory": webhooktest.NewNetwork, "loopback": webhooktest.NewLoopback} {
		t.Run(name, func(t *testing.T) {
			n := open()
			hour := step.Answer(200).After(time.Hour)
			receivers := []*webhooktest.Receiver{
				n.Receiver("http://a.example/", "", step.Hang()),
				n.Receiver("https://b.example/", "", hour),
				n.Receiver("http://c.example/", "", step.Answer(200).Drip(time.Hour)),
				n.Receiver("http://d.example/", "", step.Answer(200).Until(t.Context().Done())),
				n.Receiver("https://e.example/", "", hour),
			}
			receivers[4].SetTLS(webhooktest.TLS{HTTP2: true})
			n.Receiver("http://f.example/", "", step.Stall())
			n.Receiver("http://g.example/", "", step.ResetEarly().After(time.Hour))
			c := newClient(n)
			defer c.close()
			var wg sync.WaitGroup
			for _, host := range []string{"http://a", "https://b", "http://c", "http://d", "https://e", "http://f", "http://g"} {
				wg.Go(func() {
					if a := c.post(context.Background(), host+".example/", "{}"); a.err == nil {
						t.Errorf("post to %s.example = %v; want an error", host, a)
					}
				})
			}
			for _, r := range receivers {
				if _, err := r.Wait(t.Context(), 1); err != nil {
					t.Fatal(err)
				}
			}
			n.Close()
			wg.Wait()
		})
	}
}

func TestPanicInStepEndsTheConnection(t *testing.T) {
	inBubbles(t, func(t *testing.T, n *webhooktest.Network, r *webhooktest.Receiver) {
		r.SetScript(webhooktest.Do(func(*webhooktest.Request) step.Step { panic("mistake") }), step.Answer(200))
		c := newClient(n)
		defer c.close()
		var logged bytes.Buffer
		log.SetOutput(&logged)
		defer log.SetOutput(io.Discard)
		if a := c.post(t.Context(), r.URL, "{}"); a.err == nil {
			t.Errorf("post = %v; want an error", a)
		}
		if !strings.Contains(logged.String(), "mistake") {
			t.Errorf("logged %q; want the panic's value", logged.String())
		}
		if a := c.post(t.Context(), r.URL, "{}"); a.status != 200 {
			t.Errorf("post after the panic = %v; want 200", a)
		}
	})
}

func BenchmarkRequest(b *testing.B) {
	for name, open := range map[string]func() *webhooktest.Network{"memory": webhooktest.NewNetwork, "loopback": webhooktest.NewLoopback} {
		b.Run("network="+name, func(b *testing.B) {
			n := open()
			defer n.Close()
			r := n.Receiver("http://crm.example/", secret)
			c := newClient(n)
			defer c.close()
			body := fmt.Sprintf(`{"type":"track","pad":%q}`, strings.Repeat("x", 400))
			b.ReportAllocs()
			for b.Loop() {
				if a := c.post(b.Context(), r.URL, body); a.status != 200 {
					b.Fatal(a)
				}
			}
		})
	}
}
