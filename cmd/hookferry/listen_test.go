package main

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hookferry/analytics/signature"
)

// printTo returns a command that prints to w.
func printTo(w io.Writer) *command { return &command{flags: flags{process: process{stdout: w}}} }

// TestListenChecksSignatures posts webhooks with every kind of right and wrong signature.
func TestListenChecksSignatures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const body, secret = `{"type":"track","event":"Signed Up","userId":"u1"}`, signature.Secret("s3cret")
		standard, other := signature.NewStandardSecret(), signature.NewStandardSecret()
		plain, err := signature.Sign([]byte(body), secret)
		if err != nil {
			t.Fatal(err)
		}
		// signed returns the headers of Standard Webhooks for a signature that is ago old.
		signed := func(with signature.Secret, ago time.Duration) http.Header {
			at := time.Now().Add(-ago)
			value, err := signature.SignStandard([]byte(body), "m1", at, with)
			if err != nil {
				t.Fatal(err)
			}
			h := http.Header{}
			h.Set(signature.StandardID, "m1")
			h.Set(signature.StandardTimestamp, strconv.FormatInt(at.Unix(), 10))
			h.Set(signature.StandardSignature, value)
			return h
		}
		with := func(h http.Header, name, value string) http.Header {
			h.Set(name, value)
			return h
		}
		known := []signature.Secret{standard}
		private := signature.NewStandardPrivateKey()
		key, err := signature.StandardPublicKey(private)
		if err != nil {
			t.Fatal(err)
		}
		public := signature.Secret(key)
		without := func(h http.Header, name string) http.Header {
			h.Del(name)
			return h
		}
		for _, tt := range []struct {
			name    string
			secrets []signature.Secret // --standard-secret
			header  http.Header
			want    string
		}{
			{"unsigned", known, http.Header{}, "unsigned"},
			{"X-Signature", known, with(http.Header{}, signature.Header, plain), "signature ok"},
			{"Standard Webhooks", known, signed(standard, 0), "Standard Webhooks signature ok"},
			{"both", known, with(signed(standard, 0), signature.Header, plain), "signature ok, Standard Webhooks signature ok"},
			{"Standard Webhooks without a secret", nil, signed(standard, 0),
				"signed by Standard Webhooks, but not checked: listen has no --standard-secret"},
			{"another secret", known, signed(other, 0), "webhook-signature wrong: made with another secret, or of another body"},
			{"another secret, and a good X-Signature", known, with(signed(other, 0), signature.Header, plain),
				"signature ok, webhook-signature wrong: made with another secret; the other signature shows that the body is as it was signed"},
			{"another secret for X-Signature, and a good Standard Webhooks signature", known, with(signed(standard, 0), signature.Header, strings.Repeat("0", 40)),
				"X-Signature wrong: made with another secret; the other signature shows that the body is as it was signed, Standard Webhooks signature ok"},
			{"one of two secrets", []signature.Secret{other, standard}, signed(standard, 0), "Standard Webhooks signature ok"},
			{"at the maximum age", known, signed(standard, 5*time.Minute), "Standard Webhooks signature ok"},
			{"too old", known, signed(standard, 5*time.Minute+time.Second),
				"webhook-timestamp wrong: 5m1s ago, more than 5m0s; it was sent again late, or a clock is wrong"},
			{"from the future", known, signed(standard, -6*time.Minute), "webhook-timestamp wrong: 6m0s from now, more than 5m0s; a clock is wrong"},
			{"no id", known, with(signed(standard, 0), signature.StandardID, ""), "webhook-id is missing"},
			{"no time", known, without(signed(standard, 0), signature.StandardTimestamp), "webhook-timestamp is missing"},
			{"two ids", known, http.Header{"Webhook-Id": {"m1", "m2"}, "Webhook-Timestamp": {"1"}, "Webhook-Signature": {"v1,x"}}, "webhook-id is there 2 times"},
			{"a time in words", known, with(signed(standard, 0), signature.StandardTimestamp, "today"), "webhook-timestamp wrong: not a time in seconds since 1970"},
			{"malformed", known, with(signed(standard, 0), signature.StandardSignature, "v1,x"),
				"webhook-signature wrong: not v1, and the base64 of 32 bytes, nor v1a, and that of 64; or webhook-id holds a full stop or a space"},
			{"other versions", known, with(signed(standard, 0), signature.StandardSignature, "v2,x v3,y"),
				"webhook-signature wrong: neither v1 nor v1a, but v2, v3"},
			{"a public key", []signature.Secret{public}, signed(private, 0), "Standard Webhooks signature ok"},
			{"another public key", []signature.Secret{public}, signed(signature.NewStandardPrivateKey(), 0),
				"webhook-signature wrong: made with another secret, or of another body"},
			{"a private key, and no public one", known, signed(private, 0),
				"webhook-signature wrong: of version v1a, but v1 is checked with a shared secret, whsec_, and v1a with a public key, whpk_"},
			{"a shared secret, and a public key", []signature.Secret{public}, signed(standard, 0),
				"webhook-signature wrong: of version v1, but v1 is checked with a shared secret, whsec_, and v1a with a public key, whpk_"},
		} {
			var out bytes.Buffer
			p := printer{command: printTo(&out), secrets: []signature.Secret{secret}, standard: tt.secrets, status: http.StatusOK}
			r := httptest.NewRequest(http.MethodPost, "/hook", strings.NewReader(body))
			r.Header = tt.header
			p.ServeHTTP(httptest.NewRecorder(), r)
			if line, _, _ := strings.Cut(strings.TrimSpace(out.String()), "\n"); !strings.HasSuffix(line, "user u1  "+tt.want) {
				t.Errorf("%s: listen prints %q, want %q at the end", tt.name, line, tt.want)
			}
		}
	})
}

// TestListenAnswersWithStatusAndDelay shows that the first --times webhooks get --status after
// --delay. The others get 200 at once.
func TestListenAnswersWithStatusAndDelay(t *testing.T) {
	for _, tt := range []struct {
		name   string
		p      *printer
		status []int // of the webhooks, in order
		took   time.Duration
	}{
		{"always", &printer{status: 503, delay: 2 * time.Second}, []int{503, 503}, 4 * time.Second},
		{"some", &printer{status: 500, times: 2, delay: time.Minute}, []int{500, 500, 200, 200}, 2 * time.Minute},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tt.p.command = printTo(io.Discard)
				start := time.Now()
				for i, want := range tt.status {
					w := httptest.NewRecorder()
					tt.p.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/", strings.NewReader("{}")))
					if w.Code != want {
						t.Errorf("webhook %d: status %d, want %d", i, w.Code, want)
					}
				}
				if took := time.Since(start); took != tt.took {
					t.Errorf("%d webhooks took %v, want %v", len(tt.status), took, tt.took)
				}
			})
		})
	}
}

// FuzzListen posts any body with any headers. Listen says that a signature is good exactly if
// it is, and prints no control characters.
func FuzzListen(f *testing.F) {
	const secret, standard = signature.Secret("s3cret"), signature.Secret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
	plain, err := signature.Sign([]byte("{}"), secret)
	if err != nil {
		f.Fatal(err)
	}
	f.Add([]byte("{}"), plain, "m1", "1700000000", "v1,x v1a,y")
	f.Add([]byte("\x1b[2J"), "\x1b", "\x1b", "-9223372036854775808", "\x1b[2J,")
	f.Fuzz(func(t *testing.T, body []byte, x, id, at, list string) {
		r := httptest.NewRequest(http.MethodPost, "/", bytes.NewReader(body))
		r.Header = http.Header{"X-Signature": {x}, "Webhook-Id": {id}, "Webhook-Timestamp": {at}, "Webhook-Signature": {list}}
		var out bytes.Buffer
		p := printer{command: printTo(&out), secrets: []signature.Secret{secret}, standard: []signature.Secret{standard}, status: http.StatusOK}
		p.ServeHTTP(httptest.NewRecorder(), r)
		said := p.check(body, r.Header)
		if good := signature.Verify(body, x, secret) == nil; strings.HasPrefix(said, "signature ok") != good {
			t.Errorf("X-Signature is good: %[2]t, but listen says %[1]q", said, good)
		}
		if good := signature.VerifyStandard(body, r.Header, 0, standard) == nil; strings.HasSuffix(said, "Standard Webhooks signature ok") != good {
			t.Errorf("the Standard Webhooks signature is good: %[2]t, but listen says %[1]q", said, good)
		}
		if i := strings.IndexFunc(out.String(), func(r rune) bool { return r < ' ' && r != '\n' || r == 0x7f }); i >= 0 {
			t.Errorf("printed %q, with a control character at byte %d, want none", &out, i)
		}
	})
}
