package webhook

import (
	"strings"
	"testing"
)

// Nothing of a secret is kept, wherever in an answer it is.
func TestAnswersAreKeptWithoutSecrets(t *testing.T) {
	const secret = "Bearer 0123456789abcdef"
	e, err := compileEndpoint(&Endpoint{URL: "https://crm.example/", Headers: map[string]string{"Authorization": secret}}, "Hookferry")
	if err != nil {
		t.Fatal(err)
	}
	for at := range maxKept + 1 {
		answer := strings.Repeat("x", at) + secret + strings.Repeat("y", maxKept)
		s := e.clean(answer[:maxKept])
		if len(s) > maxKept {
			t.Errorf("secret at %d: %d bytes", at, len(s))
		}
		if strings.Contains(s, secret[:minSecret]) {
			t.Errorf("secret at %d: %q", at, s)
		}
		if !strings.HasPrefix(s, strings.Repeat("x", at)) {
			t.Errorf("secret at %d: %q lacks what is before it", at, s)
		}
	}
	if s := e.clean("refused: " + secret[:10]); s != "refused: "+secret[:10] {
		t.Errorf("clean of an error = %q", s)
	}
}
