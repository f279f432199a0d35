package webhook

import (
	"strings"
	"testing"

	"github.com/hookferry/analytics/check"
)

// clean removes a secret at every position of an answer, also a part of it at the end. It keeps the
// text before the secret.
func TestAnswersAreKeptWithoutSecrets(t *testing.T) {
	const secret = "Bearer 0123456789abcdef"
	var wrong check.Faults
	e := compileEndpoint("", &Endpoint{URL: "https://crm.example/", Headers: map[string]string{"Authorization": secret}}, "Hookferry", &wrong)
	must(t, configError(wrong))
	for at := range maxKept + 1 {
		answer := strings.Repeat("x", at) + secret + strings.Repeat("y", maxKept)
		s := clean(answer[:maxKept], e.secrets)
		if len(s) > maxKept {
			t.Errorf("secret at %d: got %d bytes, want at most %d", at, len(s), maxKept)
		}
		if strings.Contains(s, secret[:minSecret]) {
			t.Errorf("secret at %d: got %q, want it without the secret", at, s)
		}
		if !strings.HasPrefix(s, strings.Repeat("x", at)) {
			t.Errorf("secret at %d: got %q, want the text before the secret kept", at, s)
		}
	}
	if s := clean("refused: "+secret[:10], e.secrets); s != "refused: "+secret[:10] {
		t.Errorf("clean() of a text that ends with a part of the secret = %q, want it unchanged", s)
	}
}

// clean redacts every secret of an endpoint's settings, wherever the endpoint echoes it:
// credentials, query values and header values. The result is valid UTF-8 of at most maxKept bytes.
func TestEverySecretIsRedacted(t *testing.T) {
	var wrong check.Faults
	e := compileEndpoint("", &Endpoint{
		URL: "https://user-1234:pass-1234@crm.example/hook?token=query%201234&mode=test&bare-1234",
		Headers: map[string]string{
			"Authorization": "Bearer bearer-1234",
			"X-Key":         "key-1234",
			"X-Long":        "prefix-key-1234-suffix",
		},
	}, "Hookferry", &wrong)
	must(t, configError(wrong))
	for _, tt := range []struct{ name, answer, want string }{
		{"user", "who is user-1234?", "who is [redacted]?"},
		{"password", "pass-1234 is wrong", "[redacted] is wrong"},
		{"basic authentication", "Basic dXNlci0xMjM0OnBhc3MtMTIzNA==", "Basic [redacted]"},
		{"query", "/hook?token=query%201234&mode=test&bare-1234", "/hook?[redacted]"},
		{"value of a query", `{"token":"query 1234"}`, `{"token":"[redacted]"}`},
		{"escaped value of a query", "token=query%201234", "token=[redacted]"},
		{"query value without a name", "bare-1234", "[redacted]"},
		{"short value of a query", "a test", "a test"},
		{"header", "Bearer bearer-1234", "[redacted]"},
		{"credentials of a header", "no bearer-1234 here", "no [redacted] here"},
		{"secret that contains another", "prefix-key-1234-suffix", "[redacted]"},
		{"secret within another", "key-1234", "[redacted]"},
		{"answer that is too long", strings.Repeat("x", maxKept+1), strings.Repeat("x", maxKept)},
		{"answer that becomes longer as UTF-8", strings.Repeat("x\xff", maxKept/2), strings.Repeat("x\uFFFD", maxKept/4)},
		{"answer that is cut off within a secret", strings.Repeat("x", maxKept-6) + "prefix", strings.Repeat("x", maxKept-6) + "[redac"},
	} {
		if got := clean(tt.answer, e.secrets); got != tt.want {
			t.Errorf("%s: clean(%q) = %q, want %q", tt.name, tt.answer, got, tt.want)
		}
	}
}
