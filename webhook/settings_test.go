package webhook

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hookferry/analytics/check"
	"github.com/hookferry/analytics/signature"
	"github.com/hookferry/analytics/webhook/internal/wire"
)

// FuzzSettings checks that an endpoint with accepted settings gets exactly one request, with the
// expected URL, body and headers and no others.
func FuzzSettings(f *testing.F) {
	f.Add("http://crm.example/hook", "X-Api-Key", "k", "m1")
	f.Add("http://user:p%40ss@crm.example:8080/a%0d%0ab?q=%0a&r=ä", "x-a", "b\tc", "a\r\nX: y")
	f.Add("http://[fe80::1%25eth0]:80//x/../y;z", "webhook-id", "", "1.2")
	f.Add("http://münchen.example/?", "Host", "x", "\x00")
	f.Add("http://crm.example/ HTTP/1.1\r\nX: y", "A\r\nB", "c\r\nX: y", "ä%")
	f.Add("http://crm.example?\"<>", "a", "\xff\x80", "")
	signer, err := signature.NewSigner("secret")
	must(f, err)
	standard, err := signature.NewStandardSigner("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
	must(f, err)
	f.Fuzz(func(t *testing.T, rawURL, name, value, id string) {
		var wrong check.Faults
		e := compileEndpoint("", &Endpoint{URL: rawURL, Headers: map[string]string{name: value}}, "Test", &wrong)
		if wrong != nil {
			return
		}
		if e.url.Scheme != "http" {
			return // https sends the same bytes over TLS
		}
		u, err := url.Parse(rawURL)
		if err != nil {
			t.Fatalf("%q is accepted, but url.Parse() = %v, want nil", rawURL, err)
		}
		e.target = &target{source: new(Destination), signer: signer, standard: standard, timeout: Never}
		e.wire = wire.NewTarget(e.url, e.header, nil)

		client, server := net.Pipe()
		requests := make(chan []byte, 1)
		go func() { // ends when the client closes
			defer close(requests)
			defer server.Close()
			var all bytes.Buffer
			r, err := http.ReadRequest(bufio.NewReader(io.TeeReader(server, &all)))
			if err == nil {
				_, err = io.Copy(io.Discard, r.Body)
			}
			if err != nil {
				requests <- []byte("unreadable: " + err.Error() + "\n" + all.String())
				return
			}
			io.WriteString(server, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
			io.Copy(&all, server)
			requests <- all.Bytes()
		}()
		c := newClient(&Config{
			Timeout: Never, MaxInFlight: 1,
			DialContext: func(context.Context, string, string) (net.Conn, error) { return client, nil },
		}, nil, t.Context())
		const body = `{"a":1}`
		s := &sender{clients: &clients{c, c}}
		res := s.send(t.Context(), &Delivery{ID: id, Body: []byte(body)}, e)
		c.Close()
		client.Close()
		sent := <-requests
		if res.outcome != OutcomeDelivered {
			// net/http refuses some hosts that are not ASCII.
			if e.url.Host != "" && strings.Trim(e.url.Host, ascii) != "" {
				return
			}
			t.Fatalf("%q: attempt failed with %s: %s, want it delivered", rawURL, res.attempt.Reason, res.attempt.Error)
		}

		in := bufio.NewReader(bytes.NewReader(sent))
		r, err := http.ReadRequest(in)
		if err != nil {
			t.Fatalf("ReadRequest() = %v of %q, want nil", err, sent)
		}
		got, err := io.ReadAll(r.Body)
		if err != nil || string(got) != body || r.Method != "POST" || in.Buffered() > 0 {
			t.Fatalf("got the body %q, %v, with %d bytes after it, in %q; want one POST of the body alone", got, err, in.Buffered(), sent)
		}
		if r.URL.Path != u.Path && !(u.Path == "" && r.URL.Path == "/") || r.URL.RawQuery != u.RawQuery {
			t.Fatalf("%q: the request is for %q, want the path and query of the URL", rawURL, r.RequestURI)
		}
		want := http.Header{
			"User-Agent": {"Test/1.0"}, "Content-Type": {"application/json"}, "Content-Length": {"7"},
			http.CanonicalHeaderKey(name): {value},
		}
		for _, h := range []string{"X-Signature", "Webhook-Id", "Webhook-Timestamp", "Webhook-Signature"} {
			want[h] = r.Header[h]
			if len(want[h]) != 1 {
				t.Errorf("got %d headers %s, want 1", len(want[h]), h)
			}
		}
		if e.url.User != nil && http.CanonicalHeaderKey(name) != "Authorization" {
			want["Authorization"] = r.Header["Authorization"]
			if user, pass, _ := r.BasicAuth(); user != u.User.Username() && !strings.Contains(u.User.Username(), ":") {
				t.Errorf("got the basic authentication %q, %q, want the user of the URL", user, pass)
			}
		}
		if diff := cmp.Diff(want, r.Header); diff != "" {
			t.Errorf("headers of %q (-want +got):\n%s", sent, diff)
		}
		if err := signature.Verify(got, r.Header.Get("X-Signature"), "secret"); err != nil {
			t.Error(err)
		}
		if id == "" {
			return // every delivery has an id
		}
		if err := signature.VerifyStandard(got, r.Header, time.Hour, "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"); err != nil && len(id) <= 255 {
			t.Errorf("webhook-id %q: VerifyStandard() = %v, want nil", r.Header.Get("webhook-id"), err)
		}
	})
}

// ascii are the characters of hosts that net/http always accepts.
const ascii = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._:[]"
