package signature_test

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha1"
	"encoding/hex"
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/hookferry/analytics/signature"
)

// TestSignAgreesWithRFC2202 uses the test cases of RFC 2202, section 3.
func TestSignAgreesWithRFC2202(t *testing.T) {
	for _, tt := range []struct {
		name, secret, body, want string
	}{
		{"case 1", strings.Repeat("\x0b", 20), "Hi There", "b617318655057264e28bc0b6fb378c8ef146be00"},
		{"case 2", "Jefe", "what do ya want for nothing?", "effcdf6ae5eb2fa2d27416d5f184df9c259a7c79"},
		{"case 3", strings.Repeat("\xaa", 20), strings.Repeat("\xdd", 50), "125d7342b9ac11cd91a39af48aa17b4f63f175d3"},
		{"case 6", strings.Repeat("\xaa", 80), "Test Using Larger Than Block-Size Key - Hash Key First", "aa4ae5e15272d00e95705637ce8a3b55ed402112"},
	} {
		got, err := signature.Sign([]byte(tt.body), signature.Secret(tt.secret))
		if err != nil || got != tt.want {
			t.Errorf("%s: Sign = %q, %v, want %q", tt.name, got, err, tt.want)
		}
		signer, err := signature.NewSigner(signature.Secret(tt.secret))
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			if got := signer.Append([]byte("x="), []byte(tt.body)); string(got) != "x="+tt.want {
				t.Errorf("%s: Append = %q, want %q", tt.name, got, "x="+tt.want)
			}
		}
		if err := signature.Verify([]byte(tt.body), tt.want, signature.Secret(tt.secret)); err != nil {
			t.Errorf("%s: Verify: %v", tt.name, err)
		}
	}
}

func TestVerify(t *testing.T) {
	const (
		body       = `{"type":"track"}`
		wellFormed = "0123456789abcdef0123456789abcdef01234567"
	)
	sign := func(secret signature.Secret) string {
		s, err := signature.Sign([]byte(body), secret)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	good := sign("new")
	type list = []signature.Secret
	for _, tt := range []struct {
		name    string
		body    string
		header  string
		secrets list
		want    error
	}{
		{"good", body, good, list{"new"}, nil},
		{"good with the first of two", body, good, list{"new", "old"}, nil},
		{"good with the last of three", body, sign("old"), list{"newest", "new", "old"}, nil},
		{"empty body", "", mustSign(t, "", "new"), list{"new"}, nil},

		{"no secrets", body, good, nil, signature.ErrNoSecret},
		{"empty list", body, good, list{}, signature.ErrNoSecret},
		{"empty secret", body, good, list{""}, signature.ErrNoSecret},
		{"empty secret after the right one", body, good, list{"new", ""}, signature.ErrNoSecret},
		{"empty secret and no header", body, "", list{""}, signature.ErrNoSecret},
		{"signed with an empty secret", body, emptySecretSignature(body), list{"", "new"}, signature.ErrNoSecret},

		{"no signature", body, "", list{"new"}, signature.ErrMissing},

		{"upper-case signature", body, strings.ToUpper(good), list{"new"}, signature.ErrMalformed},
		{"one digit short", body, good[:39], list{"new"}, signature.ErrMalformed},
		{"one digit more", body, good + "0", list{"new"}, signature.ErrMalformed},
		{"space before", body, " " + good, list{"new"}, signature.ErrMalformed},
		{"space in place of a digit", body, good[:39] + " ", list{"new"}, signature.ErrMalformed},
		{"a prefix", body, "sha1=" + good, list{"new"}, signature.ErrMalformed},
		{"two signatures", body, good + ", " + good, list{"new"}, signature.ErrMalformed},
		{"not hex", body, strings.Repeat("g", 40), list{"new"}, signature.ErrMalformed},
		{"beyond ASCII", body, strings.Repeat("é", 20), list{"new"}, signature.ErrMalformed},
		{"signature of SHA-256", body, strings.Repeat("0", 64), list{"new"}, signature.ErrMalformed},

		{"arbitrary digits", body, wellFormed, list{"new"}, signature.ErrMismatch},
		{"wrong secret", body, good, list{"other"}, signature.ErrMismatch},
		{"secret with a space more", body, good, list{"new "}, signature.ErrMismatch},
		{"wrong body", body + " ", good, list{"new"}, signature.ErrMismatch},
		{"wrong last digit", body, good[:39] + flip(good[39]), list{"new"}, signature.ErrMismatch},
		{"wrong first digit", body, flip(good[0]) + good[1:], list{"new", "old"}, signature.ErrMismatch},
	} {
		got := signature.Verify([]byte(tt.body), tt.header, tt.secrets...)
		if !errors.Is(got, tt.want) || (got == nil) != (tt.want == nil) {
			t.Errorf("%s: Verify(%q, %q) = %v, want %v", tt.name, tt.body, tt.header, got, tt.want)
		}
		if got != nil && (strings.Contains(got.Error(), good) || strings.Contains(got.Error(), "new")) {
			t.Errorf("%s: the error contains the signature or the secret: %v", tt.name, got)
		}
	}
}

func mustSign(t *testing.T, body string, secret signature.Secret) string {
	t.Helper()
	s, err := signature.Sign([]byte(body), secret)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// emptySecretSignature returns the signature of body with an empty secret. Anyone can compute it.
func emptySecretSignature(body string) string {
	mac := hmac.New(sha1.New, nil)
	mac.Write([]byte(body))
	return hex.EncodeToString(mac.Sum(nil))
}

// flip returns a hexadecimal digit that differs from digit.
func flip(digit byte) string {
	if digit == '0' {
		return "1"
	}
	return "0"
}

func TestSignRefusesEmptySecret(t *testing.T) {
	if s, err := signature.Sign([]byte("body"), ""); !errors.Is(err, signature.ErrNoSecret) || s != "" {
		t.Errorf(`Sign(body, "") = %q, %v, want ErrNoSecret`, s, err)
	}
	if s, err := signature.NewSigner(""); !errors.Is(err, signature.ErrNoSecret) || s != nil {
		t.Errorf(`NewSigner("") = %v, %v, want ErrNoSecret`, s, err)
	}
}

func TestSignerCanBeUsedConcurrently(t *testing.T) {
	signer, err := signature.NewSigner("secret")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			body := bytes.Repeat([]byte{byte('a' + g)}, 100*g)
			want := mustSign(t, string(body), "secret")
			for range 200 {
				if got := signer.Append(nil, body); string(got) != want {
					t.Errorf("goroutine %d: Append = %s, want %s", g, got, want)
					return
				}
			}
		})
	}
	wg.Wait()
}

func FuzzVerify(f *testing.F) {
	f.Add([]byte("body"), "b617318655057264e28bc0b6fb378c8ef146be00", "secret")
	f.Add([]byte(""), "", "")
	f.Add([]byte("x"), strings.Repeat("F", 40), "s")
	f.Fuzz(func(t *testing.T, body []byte, header, secret string) {
		err := signature.Verify(body, header, signature.Secret(secret))
		want, signErr := signature.Sign(body, signature.Secret(secret))
		if (signErr != nil) != (secret == "") {
			t.Fatalf("Sign with secret %q: %v", secret, signErr)
		}
		if (err == nil) != (signErr == nil && header == want) {
			t.Fatalf("Verify(%q, %q, %q) = %v, but the signature is %q", body, header, secret, err, want)
		}
		if signErr == nil {
			if err := signature.Verify(body, want, "other", signature.Secret(secret)); err != nil {
				t.Fatalf("Verify of the signature that Sign returned: %v", err)
			}
		}
	})
}

func BenchmarkAppend(b *testing.B) {
	signer, err := signature.NewSigner("secret")
	if err != nil {
		b.Fatal(err)
	}
	body := bytes.Repeat([]byte("x"), 450)
	var dst []byte
	b.ReportAllocs()
	b.SetBytes(int64(len(body)))
	for b.Loop() {
		dst = signer.Append(dst[:0], body)
	}
}

func BenchmarkVerify(b *testing.B) {
	body := bytes.Repeat([]byte("x"), 450)
	header, err := signature.Sign(body, "secret")
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	b.SetBytes(int64(len(body)))
	for b.Loop() {
		if err := signature.Verify(body, header, "secret"); err != nil {
			b.Fatal(err)
		}
	}
}
