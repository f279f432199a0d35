package signature_test

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hookferry/analytics/signature"
)

// This is the example in the tests of the specification's reference libraries for all languages
// (github.com/standard-webhooks/standard-webhooks, libraries/go/webhook_test.go).
const (
	specSecret    = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	specID        = "msg_p5jXN8AQM9LWM0D4loKWxJek"
	specTime      = 1614265330
	specBody      = `{"test": 2432232314}`
	specSignature = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
	specPrivate   = "whsk_6Xb/dCcHpPea21PS1N9VY/NZW723CEc77N4rJCubMbfVKIDij2HKpMKkioLlX0dRqSKJp4AJ6p9lMicMFs6Kvg=="
	specPublic    = "whpk_1SiA4o9hyqTCpIqC5V9HUakiiaeACeqfZTInDBbOir4="
	specByKey     = "v1a,hnO3f9T8Ytu9HwrXslvumlUpqtNVqkhqw/enGzPCXe5BdqzCInXqYXFymVJaA7AZdpXwVLPo3mNl8EM+m7TBAg=="
	// specOther is well formed, but signs something else.
	specOther = "v1,Ceo5qEr07ixe2NLpvHk3FH9bwy/WavXrAFQ/9tdO6mc="
)

// otherSecret is another secret, of the minimum size.
const otherSecret = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYX"

func standardHeader(id, timestamp, signatures string) http.Header {
	h := http.Header{}
	h.Set(signature.StandardID, id)
	h.Set(signature.StandardTimestamp, timestamp)
	h.Set(signature.StandardSignature, signatures)
	return h
}

// otherByKey is a well-formed signature of something else, like specOther, by a private key.
var otherByKey = specByKey[:4] + strings.ToLower(specByKey[4:88]) + specByKey[88:]

// A private key may include its public half or not. Both forms have the same public key.
func TestStandardPublicKeyOfBothFormsOfAPrivateKey(t *testing.T) {
	key, err := base64.StdEncoding.DecodeString(specPrivate[5:])
	if err != nil {
		t.Fatal(err)
	}
	seed := signature.Secret("whsk_" + base64.StdEncoding.EncodeToString(key[:32]))
	for _, private := range []signature.Secret{specPrivate, seed} {
		public, err := signature.StandardPublicKey(private)
		if err != nil || public != specPublic {
			t.Errorf("StandardPublicKey(%d bytes) = %q, %v, want %q", len(private), public, err, specPublic)
		}
	}
	made := signature.NewStandardPrivateKey()
	public, err := signature.StandardPublicKey(made)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	both, err := signature.SignStandard([]byte(specBody), specID, now, made, specSecret)
	if err != nil {
		t.Fatal(err)
	}
	for _, by := range []signature.Secret{signature.Secret(public), specSecret} {
		if err := signature.VerifyStandard([]byte(specBody), standardHeader(specID, strconv.FormatInt(now.Unix(), 10), both), 0, by); err != nil {
			t.Errorf("VerifyStandard with a secret of %d bytes = %v", len(by), err)
		}
	}
	for name, s := range map[string]struct {
		secret signature.Secret
		want   error
	}{
		"empty":                         {"", signature.ErrNoSecret},
		"shared":                        {specSecret, signature.ErrSecretFormat},
		"public":                        {specPublic, signature.ErrSecretFormat},
		"private with another's public": {signature.Secret(specPrivate[:len(specPrivate)-8] + "AAAAAA=="), signature.ErrSecretFormat},
		"private with a line end":       {specPrivate + "\n", signature.ErrSecretFormat},
		"private, one byte less":        {signature.Secret("whsk_" + base64.StdEncoding.EncodeToString(make([]byte, 63))), signature.ErrSecretFormat},
	} {
		if _, err := signature.StandardPublicKey(s.secret); !errors.Is(err, s.want) {
			t.Errorf("%s: StandardPublicKey = %v, want %v", name, err, s.want)
		}
	}
	if _, err := signature.NewStandardSigner(specPublic); !errors.Is(err, signature.ErrSecretFormat) {
		t.Errorf("NewStandardSigner with a public key = %v, want ErrSecretFormat", err)
	}
}

func TestSignStandardAgreesWithTheSpecification(t *testing.T) {
	got, err := signature.SignStandard([]byte(specBody), specID, time.Unix(specTime, 999_999_999), specSecret)
	if err != nil || got != specSignature {
		t.Errorf("SignStandard = %q, %v, want %q", got, err, specSignature)
	}
	got, err = signature.SignStandard([]byte(specBody), specID, time.Unix(specTime, 0), specPrivate)
	if err != nil || got != specByKey {
		t.Errorf("SignStandard with a private key = %q, %v, want %q", got, err, specByKey)
	}
	got, err = signature.SignStandard([]byte(specBody), specID, time.Unix(specTime, 0), otherSecret, specSecret)
	other, ok := strings.CutSuffix(got, " "+specSignature)
	if err != nil || !ok || strings.Contains(other, " ") || len(other) != len(specSignature) {
		t.Errorf("SignStandard with two secrets = %q, %v, want two signatures, the second %q", got, err, specSignature)
	}
}

// The clock of the bubble is set to the second in which the example was signed.
func TestVerifyStandard(t *testing.T) {
	type list = []signature.Secret
	now := strconv.Itoa(specTime)
	good := standardHeader(specID, now, specSignature)
	without := func(name string) http.Header {
		h := good.Clone()
		h.Del(name)
		return h
	}
	with := func(name, value string) http.Header {
		h := good.Clone()
		h.Set(name, value)
		return h
	}
	twice := func(name string) http.Header {
		h := good.Clone()
		h.Add(name, h.Get(name))
		return h
	}
	signed := func(id string, at int64) http.Header {
		s, err := signature.SignStandard([]byte(specBody), id, time.Unix(at, 0), specSecret)
		if err != nil {
			t.Fatal(err)
		}
		return standardHeader(id, strconv.FormatInt(at, 10), s)
	}
	whsec := func(n int) signature.Secret {
		return signature.Secret("whsec_" + base64.StdEncoding.EncodeToString(make([]byte, n)))
	}
	for _, tt := range []struct {
		name      string
		header    http.Header
		tolerance time.Duration
		secrets   list
		want      error
	}{
		{"good", good, 0, list{specSecret}, nil},
		{"good with the first of two", good, 0, list{specSecret, otherSecret}, nil},
		{"good with the last of three", good, 0, list{whsec(64), otherSecret, specSecret}, nil},
		{"one of several signatures", with(signature.StandardSignature, strings.Join([]string{specOther, "v2," + specSignature[3:], specSignature, specOther}, " ")), 0, list{specSecret}, nil},
		{"beside one by a private key", with(signature.StandardSignature, specByKey+" "+specSignature), 0, list{specSecret}, nil},
		{"by a private key", with(signature.StandardSignature, specByKey), 0, list{specPublic}, nil},
		{"by a private key, others before", with(signature.StandardSignature, strings.Repeat(otherByKey+" ", 9)+specByKey), 0, list{otherSecret, specPublic}, nil},
		{"by a private key, too many before", with(signature.StandardSignature, strings.Repeat(otherByKey+" ", 10)+specByKey), 0, list{specPublic}, signature.ErrMismatch},
		{"by another private key", with(signature.StandardSignature, otherByKey), 0, list{specPublic}, signature.ErrMismatch},
		{"by a private key, secret is shared", with(signature.StandardSignature, specByKey), 0, list{specSecret}, signature.ErrMismatch},
		{"shared, secret is a public key", good, 0, list{specPublic}, signature.ErrMismatch},
		{"by a private key, cut", with(signature.StandardSignature, specByKey[:len(specByKey)-4]), 0, list{specPublic}, signature.ErrMalformed},
		{"by a private key, of the shared version", with(signature.StandardSignature, "v1,"+specByKey[4:]), 0, list{specPublic}, signature.ErrMalformed},
		{"longest id", signed(strings.Repeat("x", 1024), specTime), 0, list{specSecret}, nil},

		{"no secrets", good, 0, nil, signature.ErrNoSecret},
		{"empty secret", good, 0, list{specSecret, ""}, signature.ErrNoSecret},
		{"empty secret and no header", nil, 0, list{""}, signature.ErrNoSecret},
		{"secret without prefix", good, 0, list{signature.Secret(specSecret[6:])}, signature.ErrSecretFormat},
		{"secret not base64", good, 0, list{specSecret + "!"}, signature.ErrSecretFormat},
		{"secret with a line end", good, 0, list{specSecret + "\n"}, signature.ErrSecretFormat},
		{"secret of 23 bytes", good, 0, list{whsec(23)}, signature.ErrSecretFormat},
		{"secret of 65 bytes", good, 0, list{specSecret, whsec(65)}, signature.ErrSecretFormat},
		{"private key", good, 0, list{specPrivate}, signature.ErrSecretFormat},
		{"public key of 31 bytes", good, 0, list{signature.Secret("whpk_" + base64.StdEncoding.EncodeToString(make([]byte, 31)))}, signature.ErrSecretFormat},

		{"no headers", nil, 0, list{specSecret}, signature.ErrMissing},
		{"no id", without(signature.StandardID), 0, list{specSecret}, signature.ErrMissing},
		{"no timestamp", without(signature.StandardTimestamp), 0, list{specSecret}, signature.ErrMissing},
		{"no signature", without(signature.StandardSignature), 0, list{specSecret}, signature.ErrMissing},
		{"empty id", with(signature.StandardID, ""), 0, list{specSecret}, signature.ErrMissing},

		{"two ids", twice(signature.StandardID), 0, list{specSecret}, signature.ErrMalformed},
		{"two timestamps", twice(signature.StandardTimestamp), 0, list{specSecret}, signature.ErrMalformed},
		{"two signature headers", twice(signature.StandardSignature), 0, list{specSecret}, signature.ErrMalformed},
		{"id with a full stop, correctly signed", signed("a."+now, specTime), 0, list{specSecret}, signature.ErrMalformed},
		{"id with a space, correctly signed", signed("a b", specTime), 0, list{specSecret}, signature.ErrMalformed},
		{"id beyond ASCII, correctly signed", signed("ä", specTime), 0, list{specSecret}, signature.ErrMalformed},
		{"id too long", signed(strings.Repeat("x", 1025), specTime), 0, list{specSecret}, signature.ErrMalformed},
		{"timestamp not a number", with(signature.StandardTimestamp, "hello"), 0, list{specSecret}, signature.ErrMalformed},
		{"timestamp with a sign", with(signature.StandardTimestamp, "+"+now), 0, list{specSecret}, signature.ErrMalformed},
		{"timestamp with zeros", with(signature.StandardTimestamp, "00"+now), 0, list{specSecret}, signature.ErrMalformed},
		{"timestamp with a fraction", with(signature.StandardTimestamp, now+".0"), 0, list{specSecret}, signature.ErrMalformed},
		{"timestamp with a space", with(signature.StandardTimestamp, now+" "), 0, list{specSecret}, signature.ErrMalformed},
		{"negative timestamp", with(signature.StandardTimestamp, "-1"), 0, list{specSecret}, signature.ErrMalformed},
		{"timestamp with too many digits", with(signature.StandardTimestamp, strings.Repeat("9", 13)), 0, list{specSecret}, signature.ErrMalformed},
		{"no version", with(signature.StandardSignature, specSignature[3:]), 0, list{specSecret}, signature.ErrMalformed},
		{"unknown version", with(signature.StandardSignature, "v2"+specSignature[2:]), 0, list{specSecret}, signature.ErrMalformed},
		{"partial signature", with(signature.StandardSignature, specSignature[:8]), 0, list{specSecret}, signature.ErrMalformed},
		{"nothing after the version", with(signature.StandardSignature, "v1,"), 0, list{specSecret}, signature.ErrMalformed},
		{"URL alphabet", with(signature.StandardSignature, strings.NewReplacer("+", "-", "/", "_").Replace(specSignature)), 0, list{specSecret}, signature.ErrMalformed},
		{"too long a list", with(signature.StandardSignature, specSignature+strings.Repeat(" "+specOther, 4096/48+1)), 0, list{specSecret}, signature.ErrMalformed},

		{"wrong signature", with(signature.StandardSignature, specOther), 0, list{specSecret}, signature.ErrMismatch},
		{"two wrong signatures", with(signature.StandardSignature, specOther+" "+specOther), 0, list{specSecret, otherSecret}, signature.ErrMismatch},
		{"wrong secret", good, 0, list{otherSecret}, signature.ErrMismatch},
		{"wrong id", with(signature.StandardID, specID+"x"), 0, list{specSecret}, signature.ErrMismatch},
		{"wrong time", with(signature.StandardTimestamp, strconv.Itoa(specTime+1)), 0, list{specSecret}, signature.ErrMismatch},

		{"as old as tolerated", signed(specID, specTime-300), 0, list{specSecret}, nil},
		{"too old", signed(specID, specTime-301), 0, list{specSecret}, signature.ErrTooOld},
		{"very old", with(signature.StandardTimestamp, "0"), 0, list{specSecret}, signature.ErrTooOld},
		{"too old, with a wrong signature", with(signature.StandardTimestamp, "1"), 0, list{otherSecret}, signature.ErrTooOld},
		{"as new as tolerated", signed(specID, specTime+300), 0, list{specSecret}, nil},
		{"too new", signed(specID, specTime+301), 0, list{specSecret}, signature.ErrTooNew},
		{"very new", with(signature.StandardTimestamp, strings.Repeat("9", 12)), 0, list{specSecret}, signature.ErrTooNew},
		{"within a tolerance of an hour", signed(specID, specTime-3600), time.Hour, list{specSecret}, nil},
		{"outside a tolerance of a second", signed(specID, specTime+2), time.Second, list{specSecret}, signature.ErrTooNew},
		{"negative tolerance is the default", signed(specID, specTime-300), -1, list{specSecret}, nil},
	} {
		synctest.Test(t, func(t *testing.T) {
			time.Sleep(time.Until(time.Unix(specTime, 0)))
			before := tt.header.Clone()
			got := signature.VerifyStandard([]byte(specBody), tt.header, tt.tolerance, tt.secrets...)
			if !errors.Is(got, tt.want) || (got == nil) != (tt.want == nil) {
				t.Errorf("%s: VerifyStandard = %v, want %v", tt.name, got, tt.want)
			}
			if fmt.Sprint(before) != fmt.Sprint(tt.header) {
				t.Errorf("%s: VerifyStandard changed the header", tt.name)
			}
			if got != nil && (strings.Contains(got.Error(), specSecret[6:]) || strings.Contains(got.Error(), specSignature[3:])) {
				t.Errorf("%s: the error contains the signature or the secret: %v", tt.name, got)
			}
			if err := signature.VerifyStandard([]byte(specBody+" "), tt.header, tt.tolerance, tt.secrets...); err == nil {
				t.Errorf("%s: VerifyStandard of another body = nil, want an error", tt.name)
			}
		})
	}
}

func TestNewStandardSecret(t *testing.T) {
	a, b := signature.NewStandardSecret(), signature.NewStandardSecret()
	key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(a.Reveal(), "whsec_"))
	if err != nil || len(key) != 32 || len(a.Reveal()) != 50 {
		t.Errorf("NewStandardSecret() has %d bytes, %v, in a text of %d, want 32 bytes in 50", len(key), err, len(a.Reveal()))
	}
	if a == b {
		t.Error("NewStandardSecret() returned the same secret twice")
	}
	if _, err := signature.NewStandardSigner(a); err != nil {
		t.Errorf("NewStandardSigner(NewStandardSecret()): %v", err)
	}
}

func TestStandardSignerRefusesBadSecrets(t *testing.T) {
	for _, tt := range []struct {
		name    string
		secrets []signature.Secret
		want    error
	}{
		{"none", nil, signature.ErrNoSecret},
		{"empty", []signature.Secret{specSecret, ""}, signature.ErrNoSecret},
		{"plain", []signature.Secret{"secret"}, signature.ErrSecretFormat},
	} {
		if s, err := signature.NewStandardSigner(tt.secrets...); s != nil || !errors.Is(err, tt.want) {
			t.Errorf("%s: NewStandardSigner = %v, %v, want %v", tt.name, s, err, tt.want)
		}
		if s, err := signature.SignStandard(nil, "id", time.Now(), tt.secrets...); s != "" || !errors.Is(err, tt.want) {
			t.Errorf("%s: SignStandard = %q, %v, want %v", tt.name, s, err, tt.want)
		}
	}
}

func TestStandardSignerCanBeUsedConcurrently(t *testing.T) {
	signer, err := signature.NewStandardSigner(specSecret, otherSecret)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			body := bytes.Repeat([]byte{byte('a' + g)}, 100*g)
			id, at := fmt.Sprint("id", g), time.Unix(int64(g), 0)
			want, err := signature.SignStandard(body, id, at, specSecret, otherSecret)
			if err != nil {
				t.Error(err)
			}
			for range 200 {
				if got := signer.Append([]byte("x"), id, at, body); string(got) != "x"+want {
					t.Errorf("goroutine %d: Append = %s, want x%s", g, got, want)
					return
				}
			}
		})
	}
	wg.Wait()
}

func TestHandlerVerifiesStandardWebhooks(t *testing.T) {
	for _, tt := range []struct {
		name    string
		age     time.Duration
		change  func(http.Header)
		body    string
		secrets []signature.Secret
		scheme  signature.Scheme
		status  int
		answer  string
	}{
		{"good", 0, nil, specBody, []signature.Secret{otherSecret, specSecret}, signature.StandardWebhooks, 200, "ok"},
		{"good within the tolerance", time.Minute, nil, specBody, []signature.Secret{specSecret}, signature.StandardWebhooks, 200, "ok"},
		{"another body", 0, nil, specBody + " ", []signature.Secret{specSecret}, signature.StandardWebhooks, 401, "the signature does not match\n"},
		{"too old", time.Minute + time.Second, nil, specBody, []signature.Secret{specSecret}, signature.StandardWebhooks, 401, "the signature is too old\n"},
		{"too new", -time.Minute - time.Second, nil, specBody, []signature.Secret{specSecret}, signature.StandardWebhooks, 401, "the signature is too new\n"},
		{"malformed", 0, func(h http.Header) { h.Set(signature.StandardTimestamp, "now") }, specBody, []signature.Secret{specSecret}, signature.StandardWebhooks, 401, "the signature is malformed\n"},
		{"only X-Signature", 0, func(h http.Header) { h.Del(signature.StandardSignature) }, specBody, []signature.Secret{specSecret}, signature.StandardWebhooks, 401, "the signature is missing\n"},
		{"plain secret", 0, nil, specBody, []signature.Secret{"secret"}, signature.StandardWebhooks, 500, "a secret is malformed\n"},
		{"no secret", 0, nil, specBody, nil, signature.StandardWebhooks, 500, "no secret is configured\n"},
		{"X-Signature of a request with both", time.Hour, nil, specBody, []signature.Secret{"plain"}, signature.XSignature, 200, "ok"},
		{"unknown scheme", 0, nil, specBody, []signature.Secret{specSecret}, 7, 500, "the scheme is unknown\n"},
	} {
		synctest.Test(t, func(t *testing.T) {
			h := &signature.Handler{
				Secrets:   tt.secrets,
				Scheme:    tt.scheme,
				Tolerance: time.Minute,
				Next: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if got, err := io.ReadAll(r.Body); err != nil || string(got) != tt.body {
						t.Errorf("%s: Next reads %q, %v, want %q", tt.name, got, err, tt.body)
					}
					fmt.Fprint(w, "ok")
				}),
			}
			at := time.Now().Add(-tt.age)
			value, err := signature.SignStandard([]byte(specBody), specID, at, specSecret)
			if err != nil {
				t.Fatal(err)
			}
			r := httptest.NewRequest("POST", "/hook", strings.NewReader(tt.body))
			r.Header = standardHeader(specID, strconv.FormatInt(at.Unix(), 10), value)
			r.Header.Set(signature.Header, mustSign(t, specBody, "plain"))
			if tt.change != nil {
				tt.change(r.Header)
			}
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			if w.Code != tt.status || w.Body.String() != tt.answer {
				t.Errorf("%s: answered %d %q, want %d %q", tt.name, w.Code, w.Body, tt.status, tt.answer)
			}
		})
	}
}

func FuzzVerifyStandard(f *testing.F) {
	f.Add([]byte(specBody), specID, strconv.Itoa(specTime), specSignature)
	f.Add([]byte(specBody), specID, strconv.Itoa(specTime), otherByKey+" "+specByKey)
	f.Add([]byte(""), "", "", "")
	f.Add([]byte("x"), "a.b", "+1", "v1, v1,"+strings.Repeat("A", 43)+"=")
	f.Fuzz(func(t *testing.T, body []byte, id, timestamp, signatures string) {
		h := standardHeader(id, timestamp, signatures)
		const ages = 100 * 365 * 24 * time.Hour // a tolerance that covers every time in the corpus
		if err := signature.VerifyStandard(body, h, ages, specPublic); err == nil {
			at, err := strconv.ParseInt(timestamp, 10, 64)
			if err != nil {
				t.Fatalf("VerifyStandard with the timestamp %q = nil, want an error", timestamp)
			}
			// Only the private key can make a valid signature, and it always makes the same one.
			if want, err := signature.SignStandard(body, id, time.Unix(at, 0), specPrivate); err != nil || !strings.Contains(" "+signatures+" ", " "+want+" ") {
				t.Fatalf("VerifyStandard(%q, %q) by the public key = nil, but the signature is %q, %v", id, signatures, want, err)
			}
		}
		err := signature.VerifyStandard(body, h, ages, specSecret)
		known := false
		for _, e := range []error{nil, signature.ErrMissing, signature.ErrMalformed, signature.ErrTooOld, signature.ErrTooNew, signature.ErrMismatch} {
			known = known || errors.Is(err, e)
		}
		if !known {
			t.Fatalf("VerifyStandard: %v, want nil or an exported error", err)
		}
		at, atErr := strconv.ParseInt(timestamp, 10, 64)
		if atErr != nil {
			if err == nil {
				t.Fatalf("VerifyStandard with the timestamp %q = nil, want an error", timestamp)
			}
			return
		}
		want, signErr := signature.SignStandard(body, id, time.Unix(at, 0), specSecret)
		if signErr != nil {
			t.Fatal(signErr)
		}
		listed := false
		for s := range strings.SplitSeq(signatures, " ") {
			listed = listed || s == want
		}
		if err == nil && !listed {
			t.Fatalf("VerifyStandard(%q, %q) = nil, but the signature is %q", id, signatures, want)
		}
		// Well-formed headers verify with the signature of SignStandard.
		err = signature.VerifyStandard(body, standardHeader(id, timestamp, "v2,x "+want), ages, otherSecret, specSecret)
		if err != nil && !errors.Is(err, signature.ErrMissing) && !errors.Is(err, signature.ErrMalformed) &&
			!errors.Is(err, signature.ErrTooOld) && !errors.Is(err, signature.ErrTooNew) {
			t.Fatalf("VerifyStandard of the signature of SignStandard for %q at %q: %v", id, timestamp, err)
		}
	})
}

func BenchmarkStandardAppend(b *testing.B) {
	body := bytes.Repeat([]byte("x"), 450)
	at := time.Now()
	for _, secrets := range [][]signature.Secret{{specSecret}, {specSecret, otherSecret}, {specPrivate}} {
		b.Run(fmt.Sprintf("secrets=%d/key=%t", len(secrets), secrets[0] == specPrivate), func(b *testing.B) {
			signer, err := signature.NewStandardSigner(secrets...)
			if err != nil {
				b.Fatal(err)
			}
			var dst []byte
			b.ReportAllocs()
			b.SetBytes(int64(len(body)))
			for b.Loop() {
				dst = signer.Append(dst[:0], specID, at, body)
			}
		})
	}
}

func BenchmarkVerifyStandard(b *testing.B) {
	body := bytes.Repeat([]byte("x"), 450)
	at := time.Now()
	value, err := signature.SignStandard(body, specID, at, specSecret)
	if err != nil {
		b.Fatal(err)
	}
	header := standardHeader(specID, strconv.FormatInt(at.Unix(), 10), value)
	b.ReportAllocs()
	b.SetBytes(int64(len(body)))
	for b.Loop() {
		if err := signature.VerifyStandard(body, header, time.Hour, specSecret); err != nil {
			b.Fatal(err)
		}
	}
}
