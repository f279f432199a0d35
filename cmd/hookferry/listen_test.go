package main

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hookferry/analytics/signature"
)

// TestListenChecksSignatures posts webhooks that are signed in each of the ways.
func TestListenChecksSignatures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const body, secret = `{"type":"track","event":"Signed Up","userId":"u1"}`, signature.Secret("s3cret")
		standard, other := signature.NewStandardSecret(), signature.NewStandardSecret()
		plain, err := signature.Sign([]byte(body), secret)
		if err != nil {
			t.Fatal(err)
		}
		// signed has the headers of Standard Webhooks, signed a while ago.
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
			{"without a secret for it", nil, signed(standard, 0),
				"signed by Standard Webhooks, but not checked: listen has no --standard-secret"},
			{"another secret", known, signed(other, 0), "Standard Webhooks signature wrong: made with another secret, or of another body"},
			{"one of two secrets", []signature.Secret{other, standard}, signed(standard, 0), "Standard Webhooks signature ok"},
			{"as old as may be", known, signed(standard, 5*time.Minute), "Standard Webhooks signature ok"},
			{"too old", known, signed(standard, 5*time.Minute+time.Second), "Standard Webhooks signature wrong: made more than 5 minutes ago"},
			{"from the future", known, signed(standard, -6*time.Minute), "Standard Webhooks signature wrong: made more than 5 minutes from now; a clock is wrong"},
			{"no id", known, with(signed(standard, 0), signature.StandardID, ""), "Standard Webhooks signature wrong: without webhook-id or webhook-timestamp"},
			{"malformed", known, with(signed(standard, 0), signature.StandardSignature, "v1,x"),
				"Standard Webhooks signature wrong: not v1, and the base64 of 32 bytes, with an id and a time in seconds"},
		} {
			var out bytes.Buffer
			p := printer{secrets: []signature.Secret{secret}, standard: tt.secrets, out: &out, status: http.StatusOK}
			r := httptest.NewRequest(http.MethodPost, "/hook", strings.NewReader(body))
			r.Header = tt.header
			p.ServeHTTP(httptest.NewRecorder(), r)
			if line, _, _ := strings.Cut(strings.TrimSpace(out.String()), "\n"); !strings.HasSuffix(line, "user u1  "+tt.want) {
				t.Errorf("%s: listen prints %q, want %q at its end", tt.name, line, tt.want)
			}
		}
	})
}
