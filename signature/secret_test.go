package signature_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/hookferry/analytics/signature"
)

func TestSecretIsNotPrintedOrEncoded(t *testing.T) {
	const value = "correct horse"
	secret := signature.Secret(value)
	type settings struct {
		Name   string
		Secret signature.Secret
		All    []signature.Secret
		ByName map[string]signature.Secret
	}
	s := settings{"crm", secret, []signature.Secret{secret}, map[string]signature.Secret{"a": secret}}

	var printed []string
	for _, verb := range "vTtbcdoOqxXUeEfFgGs" {
		for _, flags := range []string{"", "+", "#", " ", "0", "-20", ".3"} {
			format := "%" + flags + string(verb)
			for _, v := range []any{secret, &secret, s, &s, []any{secret}} {
				printed = append(printed, fmt.Sprintf(format, v))
			}
		}
	}
	for _, v := range []any{secret, s} {
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		printed = append(printed, string(b), fmt.Errorf("with %w", errors.New(fmt.Sprint(v))).Error())
		var log bytes.Buffer
		slog.New(slog.NewTextHandler(&log, nil)).Info("text", "settings", v, "secret", secret)
		slog.New(slog.NewJSONHandler(&log, nil)).Info("json", "settings", v, "secret", secret)
		printed = append(printed, log.String())
	}
	hex := fmt.Sprintf("%x", value)
	for _, p := range printed {
		if strings.Contains(p, "correct") || strings.Contains(p, "horse") ||
			strings.Contains(p, hex) || strings.Contains(strings.ToLower(p), hex) {
			t.Errorf("the output contains the secret: %s", p)
		}
	}

	for _, tt := range []struct{ format, want string }{
		{"%v", "[secret]"}, {"%s", "[secret]"}, {"%q", `"[secret]"`}, {"%#v", `"[secret]"`}, {"%d", "[secret]"},
	} {
		if got := fmt.Sprintf(tt.format, secret); got != tt.want {
			t.Errorf("Sprintf(%q, secret) = %s, want %s", tt.format, got, tt.want)
		}
	}
	if got := fmt.Sprintf("%v%s", signature.Secret(""), signature.Secret("").String()); got != "" {
		t.Errorf("an empty secret prints as %q, want nothing", got)
	}
	if secret.Reveal() != value {
		t.Errorf("Reveal() = %q, want %q", secret.Reveal(), value)
	}
}

// Encoding a Secret gives "[secret]", but decoding gives its value. So a program can read its
// settings from JSON.
func TestSecretIsDecodedToItsValue(t *testing.T) {
	var s struct{ Secret signature.Secret }
	if err := json.Unmarshal([]byte(`{"Secret":"correct horse"}`), &s); err != nil {
		t.Fatal(err)
	}
	if got := s.Secret.Reveal(); got != "correct horse" {
		t.Errorf("decoded %q, want %q", got, "correct horse")
	}
}
