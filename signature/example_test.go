package signature_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/hookferry/analytics/signature"
)

func ExampleVerify() {
	body := []byte(`{"version":1,"type":"track","userId":"u1","event":"Signed Up"}`)
	header, err := signature.Sign(body, "the shared secret")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(header)
	fmt.Println(signature.Verify(body, header, "the shared secret"))

	body = []byte(`{"version":1,"type":"track","userId":"u2","event":"Signed Up"}`)
	err = signature.Verify(body, header, "the shared secret")
	fmt.Println(errors.Is(err, signature.ErrMismatch))
	// Output:
	// e947cbc107a4b1c2c933f4926a1805c094257b2d
	// <nil>
	// true
}

// While a secret is being replaced, the old one is accepted, too.
func ExampleHandler() {
	receive := func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body) // the verified bytes
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		fmt.Fprintf(w, "received %s", body)
	}
	hook := &signature.Handler{
		Secrets: []signature.Secret{"the new secret", "the old secret"},
		Next:    http.HandlerFunc(receive),
	}

	body := `{"type":"track","userId":"u1"}`
	for _, secret := range []signature.Secret{"the old secret", "a guess"} {
		header, err := signature.Sign([]byte(body), secret)
		if err != nil {
			fmt.Println(err)
			return
		}
		r := httptest.NewRequest("POST", "/hook", strings.NewReader(body))
		r.Header.Set(signature.Header, header)
		w := httptest.NewRecorder()
		hook.ServeHTTP(w, r)
		fmt.Println(w.Code, strings.TrimSpace(w.Body.String()))
	}
	// Output:
	// 200 received {"type":"track","userId":"u1"}
	// 401 the signature does not match
}

// The headers contain the time of the attempt. The request verifies for five minutes, or
// for longer with a larger tolerance.
func ExampleVerifyStandard() {
	const secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	body := []byte(`{"test": 2432232314}`)
	header := http.Header{}
	header.Set("webhook-id", "msg_p5jXN8AQM9LWM0D4loKWxJek")
	header.Set("webhook-timestamp", "1614265330")
	header.Set("webhook-signature", "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=")

	fmt.Println(signature.VerifyStandard(body, header, 0, secret))
	const century = 100 * 365 * 24 * time.Hour
	fmt.Println(signature.VerifyStandard(body, header, century, secret))
	// Output:
	// signature: too old
	// <nil>
}

func ExampleSignStandard() {
	value, err := signature.SignStandard([]byte(`{"test": 2432232314}`), "msg_p5jXN8AQM9LWM0D4loKWxJek",
		time.Unix(1614265330, 0), "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
	fmt.Println(value, err)
	// Output: v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE= <nil>
}

// A receiver that has only the public key can verify, but not sign.
func ExampleStandardPublicKey() {
	private := signature.NewStandardPrivateKey() // the sender sets it in Destination.StandardSecrets
	public, err := signature.StandardPublicKey(private)
	if err != nil {
		fmt.Println(err)
		return
	}
	body, now := []byte(`{"type":"track","userId":"u1"}`), time.Now()
	value, err := signature.SignStandard(body, "m1", now, private)
	if err != nil {
		fmt.Println(err)
		return
	}
	header := http.Header{}
	header.Set(signature.StandardID, "m1")
	header.Set(signature.StandardTimestamp, fmt.Sprint(now.Unix()))
	header.Set(signature.StandardSignature, value)
	fmt.Println(public[:5], value[:4], signature.VerifyStandard(body, header, 0, signature.Secret(public)))
	// Output: whpk_ v1a, <nil>
}

// This receiver requires the headers of Standard Webhooks.
func ExampleHandler_standardWebhooks() {
	secret := signature.NewStandardSecret() // shown to the receiver once
	hook := &signature.Handler{
		Scheme:  signature.StandardWebhooks,
		Secrets: []signature.Secret{secret},
		Next: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprint(w, "received ", r.Header.Get(signature.StandardID))
		}),
	}

	body := `{"type":"track","userId":"u1"}`
	for _, age := range []time.Duration{time.Second, time.Hour} {
		at := time.Now().Add(-age)
		value, err := signature.SignStandard([]byte(body), "m1", at, secret)
		if err != nil {
			fmt.Println(err)
			return
		}
		r := httptest.NewRequest("POST", "/hook", strings.NewReader(body))
		r.Header.Set(signature.StandardID, "m1")
		r.Header.Set(signature.StandardTimestamp, fmt.Sprint(at.Unix()))
		r.Header.Set(signature.StandardSignature, value)
		w := httptest.NewRecorder()
		hook.ServeHTTP(w, r)
		fmt.Println(w.Code, strings.TrimSpace(w.Body.String()))
	}
	// Output:
	// 200 received m1
	// 401 the signature is too old
}
