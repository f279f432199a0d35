package signature_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/hookferry/analytics/internal/memnet"
	"github.com/hookferry/analytics/signature"
)

// unsized hides the type of its reader. So httptest.NewRequest cannot set the Content-Length.
type unsized struct{ io.Reader }

func TestHandlerPassesOnOnlyRequestsWithAValidSignature(t *testing.T) {
	const body = `{"type":"track","userId":"u1"}`
	good := mustSign(t, body, "secret")
	secrets := []signature.Secret{"secret"}
	unread := iotest.ErrReader(errors.New("the body was read")) // the answer would be 400
	for _, tt := range []struct {
		name    string
		method  string
		body    io.Reader
		header  []string
		secrets []signature.Secret
		max     int64
		status  int
		answer  string
	}{
		{"good", "POST", strings.NewReader(body), []string{good}, secrets, 0, 200, "ok"},
		{"good without a length", "POST", unsized{strings.NewReader(body)}, []string{good}, secrets, 0, 200, "ok"},
		{"good, read in single bytes", "POST", unsized{iotest.OneByteReader(strings.NewReader(body))}, []string{good}, secrets, 0, 200, "ok"},
		{"good with the old secret", "POST", strings.NewReader(body), []string{good}, []signature.Secret{"new", "secret"}, 0, 200, "ok"},
		{"good at the limit", "POST", strings.NewReader(body), []string{good}, secrets, int64(len(body)), 200, "ok"},
		{"no signature", "POST", unread, nil, secrets, 0, 401, "the signature is missing\n"},
		{"empty signature", "POST", unread, []string{""}, secrets, 0, 401, "the signature is missing\n"},
		{"malformed signature", "POST", unread, []string{"sha1=" + good}, secrets, 0, 401, "the signature is malformed\n"},
		{"upper-case signature", "POST", unread, []string{strings.ToUpper(good)}, secrets, 0, 401, "the signature is malformed\n"},
		{"two headers", "POST", unread, []string{good, good}, secrets, 0, 401, "the signature is malformed\n"},
		{"signature of another body", "POST", strings.NewReader(body + " "), []string{good}, secrets, 0, 401, "the signature does not match\n"},
		{"no secret", "POST", unread, []string{good}, nil, 0, 500, "no secret is configured\n"},
		{"empty secret", "POST", unread, []string{emptySecretSignature(body)}, []signature.Secret{""}, 0, 500, "no secret is configured\n"},
		{"body over the limit", "POST", strings.NewReader(body), []string{good}, secrets, int64(len(body)) - 1, 413, "the body is too large\n"},
		{"body over the limit without a length", "POST", unsized{strings.NewReader(body)}, []string{good}, secrets, int64(len(body)) - 1, 413, "the body is too large\n"},
		{"body over the default limit", "POST", strings.NewReader(strings.Repeat("x", signature.DefaultMaxBody+1)), []string{good}, secrets, 0, 413, "the body is too large\n"},
		{"body cut off", "POST", unsized{io.MultiReader(strings.NewReader(body), iotest.ErrReader(io.ErrUnexpectedEOF))}, []string{good}, secrets, 0, 400, "the body could not be read\n"},
		{"GET", "GET", http.NoBody, []string{good}, secrets, 0, 405, "the method is not POST\n"},
		{"PUT", "PUT", unread, []string{good}, secrets, 0, 405, "the method is not POST\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var passed *http.Request
			h := &signature.Handler{
				Secrets: tt.secrets,
				MaxBody: tt.max,
				Next: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					passed = r
					got, err := io.ReadAll(r.Body)
					if err != nil || string(got) != body {
						t.Errorf("Next reads %q, %v, want %q", got, err, body)
					}
					if r.ContentLength != int64(len(body)) {
						t.Errorf("ContentLength = %d, want %d", r.ContentLength, len(body))
					}
					fmt.Fprint(w, "ok")
				}),
			}
			r := httptest.NewRequest(tt.method, "/hook", tt.body)
			r.Header[signature.Header] = tt.header
			before := r.Body
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			if w.Code != tt.status || w.Body.String() != tt.answer {
				t.Errorf("answered %d %q, want %d %q", w.Code, w.Body, tt.status, tt.answer)
			}
			if (passed != nil) != (tt.status == 200) {
				t.Errorf("passed on: %v, want %v", passed != nil, tt.status == 200)
			}
			if r.Body != before || passed == r {
				t.Error("the handler changed the request or passed on the same one, want a copy")
			}
			if strings.Contains(w.Body.String(), good) {
				t.Errorf("the answer contains the expected signature: %s", w.Body)
			}
			if allow := w.Header().Get("Allow"); (allow == "POST") != (tt.status == 405) {
				t.Errorf("the Allow header is %q, want POST only with the status 405", allow)
			}
		})
	}
}

// If the body of a request ends before its Content-Length, the request is not passed on.
func TestHandlerRefusesABodyThatEndsEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		addr := &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 80}
		listener := memnet.Listen(addr)
		srv := &http.Server{Handler: &signature.Handler{
			Secrets: []signature.Secret{"secret"},
			Next: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
				t.Error("the request was passed on, want it refused")
			}),
		}}
		go srv.Serve(listener) // ends when srv is closed
		defer srv.Close()
		conn, err := listener.Dial(t.Context(), addr)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: x\r\nX-Signature: %s\r\nContent-Length: 100\r\n\r\n{}", mustSign(t, "{}", "secret"))
		if err := conn.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusBadRequest {
			t.Errorf("status %d, want 400", resp.StatusCode)
		}
	})
}

func FuzzHandler(f *testing.F) {
	f.Add([]byte(`{}`), "b617318655057264e28bc0b6fb378c8ef146be00", true)
	f.Add([]byte(``), "", false)
	f.Fuzz(func(t *testing.T, body []byte, header string, sized bool) {
		passed := false
		h := &signature.Handler{
			Secrets: []signature.Secret{"secret"},
			MaxBody: 1 << 10,
			Next: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				passed = true
				got, err := io.ReadAll(r.Body)
				if err != nil || !bytes.Equal(got, body) {
					t.Fatalf("Next reads %q, %v, want %q", got, err, body)
				}
			}),
		}
		var rd io.Reader = bytes.NewReader(body)
		if !sized {
			rd = unsized{rd}
		}
		r := httptest.NewRequest("POST", "/", rd)
		r.Header[signature.Header] = []string{header}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		want := 401
		switch err := signature.Verify(body, header, "secret"); {
		case errors.Is(err, signature.ErrMissing) || errors.Is(err, signature.ErrMalformed):
		case len(body) > 1<<10:
			want = 413
		case err == nil:
			want = 200
		case !errors.Is(err, signature.ErrMismatch):
			t.Fatalf("Verify: %v", err)
		}
		if w.Code != want || passed != (want == 200) {
			t.Fatalf("status %d, passed on %v, want %d", w.Code, passed, want)
		}
	})
}

// The log has a line for refused requests each ten seconds, with neither a secret nor a body.
func TestHandlerLogsWhatItRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		h := &signature.Handler{Secrets: []signature.Secret{"hunter2"}, Logger: slog.New(slog.NewTextHandler(&log, nil))}
		send := func(id string) {
			r := httptest.NewRequest("POST", "/hook", strings.NewReader("the body"))
			r.Header.Set(signature.StandardID, id)
			r.Header.Set(signature.Header, mustSign(t, "the body", "another"))
			h.ServeHTTP(httptest.NewRecorder(), r)
		}
		lines := func(want int, last string) {
			t.Helper()
			got := strings.Split(strings.TrimSpace(log.String()), "\n")
			if len(got) != want || !strings.HasSuffix(got[len(got)-1], last) {
				t.Errorf("logged\n%s\nwant %d lines, the last with %s", log.String(), want, last)
			}
		}
		send("m-1")
		lines(1, `status=401 reason="the signature does not match" id=m-1 requests=1`)
		for range 1000 {
			send("m-2")
		}
		time.Sleep(10*time.Second - 1)
		send("m-2")
		lines(1, "requests=1")
		time.Sleep(1 * time.Nanosecond)
		send("an id\nof somebody")
		lines(2, `id="" requests=1002`)
		h.Secrets = []signature.Secret{"whsec_hunter2"}
		time.Sleep(time.Minute)
		send("m-3")
		lines(3, `status=500 reason="a secret begins with whsec_, whpk_ or whsk_: set Scheme to StandardWebhooks" id=m-3 requests=1`)
		if strings.Contains(log.String(), "hunter2") || strings.Contains(log.String(), "the body") {
			t.Errorf("the log has a secret or a body:\n%s", log.String())
		}
	})
}

func TestHandlerCheck(t *testing.T) {
	standard := signature.NewStandardSecret()
	for _, tt := range []struct {
		name    string
		scheme  signature.Scheme
		secrets []signature.Secret
		want    string // part of the error; "" means none
	}{
		{"good", signature.XSignature, []signature.Secret{"a", "b"}, ""},
		{"good", signature.StandardWebhooks, []signature.Secret{standard}, ""},
		{"none", signature.XSignature, nil, "no secret"},
		{"one is empty", signature.XSignature, []signature.Secret{"a", ""}, "no secret"},
		{"of the other scheme", signature.XSignature, []signature.Secret{"a", standard}, "set Scheme to StandardWebhooks"},
		{"a public key of the other scheme", signature.XSignature, []signature.Secret{"whpk_a"}, "set Scheme to StandardWebhooks"},
		{"a private key of the other scheme", signature.XSignature, []signature.Secret{"whsk_a"}, "set Scheme to StandardWebhooks"},
		{"no secret of Standard Webhooks", signature.StandardWebhooks, []signature.Secret{"a"}, "the secret is not whsec_"},
		{"unknown scheme", 7, []signature.Secret{"a"}, "unknown scheme"},
	} {
		h := &signature.Handler{Scheme: tt.scheme, Secrets: tt.secrets}
		if err := h.Check(); (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: Check() = %v, want an error with %q", tt.name, err, tt.want)
		}
	}
}
