package signature_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"

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

// While a secret is being replaced, the old one is accepted too.
func ExampleHandler() {
	receive := func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body) // the bytes that were verified
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
