package docs_test

// The receivers in receivers.md that are written in Go. The tests put them into a server.

import (
	"crypto/hmac"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hookferry/analytics/signature"
	"github.com/hookferry/analytics/signature/inbox"
)

func receive(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }

// TestTableOfTheInbox shows that receivers.md has the statements with which package inbox makes its table.
func TestTableOfTheInbox(t *testing.T) {
	guide := readText(t, "receivers.md")
	for _, statement := range inbox.PostgreSQL.Schema(inbox.DefaultTable) {
		if !strings.Contains(guide, "\n"+statement+";\n") {
			t.Errorf("receivers.md lacks %s;", statement)
		}
	}
}

func TestReceiverInGo(t *testing.T) {
	t.Setenv("WEBHOOK_SECRET", xSecret)
	t.Setenv("STANDARD_SECRET", string(standardSecret))
	mux := http.NewServeMux()
	func(http *muxed) {
		http.Handle("/hook", &signature.Handler{
			Secrets: []signature.Secret{signature.Secret(os.Getenv("WEBHOOK_SECRET"))},
			Next:    http.HandlerFunc(receive),
		})
		http.Handle("/standard", &signature.Handler{
			Scheme:  signature.StandardWebhooks,
			Secrets: []signature.Secret{signature.Secret(os.Getenv("STANDARD_SECRET"))},
			Next:    http.HandlerFunc(receive),
		})
	}(&muxed{mux})
	testHandler(t, mux)
}

// A muxed takes the place of package http in the code of the guide. It has a ServeMux of its own.
type muxed struct{ *http.ServeMux }

func (*muxed) HandlerFunc(f http.HandlerFunc) http.Handler { return f }

func TestReceiverInPlainGo(t *testing.T) {
	testHandler(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<20))
		if err != nil {
			w.WriteHeader(http.StatusRequestEntityTooLarge)
			return
		}
		good := false
		if r.URL.Path == "/standard" {
			good = verifyStandard(body, r.Header, "whsec_b3RoZXI=", string(standardSecret))
		} else {
			good = verify(body, r.Header, "another", xSecret)
		}
		if !good {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		receive(w, r)
	}))
}

func verify(body []byte, header http.Header, secrets ...string) bool {
	ok := false
	for _, secret := range secrets {
		mac := hmac.New(sha1.New, []byte(secret))
		mac.Write(body)
		want := hex.EncodeToString(mac.Sum(nil))
		ok = hmac.Equal([]byte(want), []byte(header.Get("X-Signature"))) || ok
	}
	return ok
}

func verifyStandard(body []byte, header http.Header, secrets ...string) bool {
	id, timestamp := header.Get("webhook-id"), header.Get("webhook-timestamp")
	at, err := strconv.ParseInt(timestamp, 10, 64)
	if age := time.Since(time.Unix(at, 0)).Abs(); err != nil || age > 5*time.Minute || id == "" || strings.Contains(id, ".") {
		return false
	}
	ok := false
	for _, secret := range secrets {
		key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(secret, "whsec_"))
		if err != nil {
			return false
		}
		mac := hmac.New(sha256.New, key)
		fmt.Fprintf(mac, "%s.%s.%s", id, timestamp, body)
		want := "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
		for _, given := range strings.Fields(header.Get("webhook-signature")) {
			ok = hmac.Equal([]byte(want), []byte(given)) || ok
		}
	}
	return ok
}
