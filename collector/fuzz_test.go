package collector_test

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hookferry/analytics/internal/esjson"
	"github.com/hookferry/analytics/webhook"
)

// FuzzHandler shows that any request gets a documented answer, and that the events are right.
func FuzzHandler(f *testing.F) {
	files, err := filepath.Glob("testdata/wire/*.json")
	if err != nil || len(files) == 0 {
		f.Fatalf("no seeds: %v", err)
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add("POST", "/v1/batch", basic, "", "", b, false)
		f.Add("POST", "//v1/b", "", "https://shop.example", "gzip", zipped(b), true)
		f.Add("POST", "/v1/page", "Bearer x", "null", "", b, true)
	}
	for _, path := range []string{"/v1/import", "/v1/i", "/v1/m", "/v1/projects/key/settings", "/", "", "/v1/projects/%/settings"} {
		f.Add("GET", path, basic, "", "", []byte(nil), false)
		f.Add("OPTIONS", path, "", "", "", []byte(nil), true)
		f.Add("POST", path, bare, "", "identity", []byte(`{"type":"track","userId":1,"event":"e","context":{"direct":true}}`), true)
	}
	f.Add("POST", "/v1/track", basic, "x", "", []byte(`{"event":"e","userId":1e20,"properties":{"a":[1e20,-1e20,9E20]},"context":{"a":[`+strings.Repeat("1e20,", 500)+`1]}}`), false)
	f.Add("POST", "/v1/track", basic, "x", "", []byte(`{"event":"`+strings.Repeat("\xff", 500)+`\u0000\ud800","userId":"u"}`), false)
	f.Add("POST", "/v1/batch", basic, "x", "gzip", zipped([]byte(`{"batch":[`+strings.Repeat(`{"type":"page","userId":1},`, 200)+`1],"context":{"a":"`+strings.Repeat("x", 30_000)+`"}}`)), false)
	f.Add("POST", "/v1/batch", basic, "", "", []byte(`{"batch":[{},[],null,1,{"type":"alias","userId":1,"previousId":2}],"context":null,"sentAt":1}`), true)

	f.Fuzz(func(t *testing.T, method, path, authorization, origin, encoding string, body []byte, chunked bool) {
		if method == "" || strings.ContainsAny(method, " \t\r\n\x00") {
			return // net/http refuses such a method
		}
		fw := &forwarder{}
		if strings.Contains(origin, "full") {
			fw.fail(webhook.ErrQueueFull)
		}
		h := newHandler(t, fw)
		var rd io.Reader = bytes.NewReader(body)
		if chunked {
			rd = unsized{rd}
		}
		r := httptest.NewRequest("POST", "/", rd)
		r.Method, r.URL.Path = method, path
		for name, value := range map[string]string{"Authorization": authorization, "Origin": origin, "Content-Encoding": encoding} {
			if value != "" {
				r.Header.Set(name, value)
			}
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		a := check(t, w.Result())
		switch a.status {
		case 200, 204, 400, 401, 404, 405, 415:
		case 503:
			if fw.err == nil && !strings.Contains(a.Message, "write key") {
				t.Errorf("answered 503 without a failing forwarder or lookup: %s", a.body)
			}
		default:
			t.Errorf("status %d, want a documented one", a.status)
		}
		plain := body
		if z, err := gzip.NewReader(bytes.NewReader(body)); err == nil {
			plain, _ = io.ReadAll(io.LimitReader(z, 1<<20))
		}
		stored := 0
		for _, e := range fw.events() {
			// Numbers such as 1e20 grow most: with the comma, 5 bytes become 22.
			if most := len(plain)*22/5 + 600; len(e.Body) > most {
				t.Errorf("a request of %d bytes makes a webhook of %d, want at most %d", len(plain), len(e.Body), most)
			}
			if stored += 2 * len(e.Body); stored > 4<<20+4*len(plain) {
				t.Errorf("a request of %d bytes becomes %d for two destinations, want at most %d", len(plain), stored, 4<<20+4*len(plain))
			}
			if a.status != 200 {
				t.Errorf("status %d, but the event %s was forwarded", a.status, e.ID)
			}
			if e.Off {
				continue
			}
			if again, err := esjson.Append(nil, e.Body); err != nil || !bytes.Equal(again, e.Body) {
				t.Errorf("the body %q is encoded again as %q, %v, want the same", e.Body, again, err)
			}
		}
		for _, rejected := range a.Rejected {
			if rejected.Code == "" || rejected.Message == "" {
				t.Errorf("a rejected call lacks its code or message: %s", a.body)
			}
		}
	})
}

// TestErrorsKeepSecrets provokes every kind of refusal with requests that have a secret in every
// part. No answer may repeat the secret.
func TestErrorsKeepSecrets(t *testing.T) {
	const secret = "hunter2"
	for _, body := range []string{
		`hunter2`, `{"hunter2`, `{"writeKey":"hunter2","batch":7}`, `{"batch":"hunter2"}`, `{"batch":["hunter2"],"sentAt":"hunter2"}`,
		`{"batch":[{"type":"hunter2"}]}`, `{"batch":[{"type":"track","userId":{"hunter2":1},"event":"hunter2"}]}`,
		`{"batch":[{"type":"track","userId":"hunter2","event":"e","properties":"hunter2"}]}`,
		`{"batch":[{"type":"track","userId":"hunter2","event":"e","messageId":"` + strings.Repeat(secret, 20) + `"}]}`,
		`{"batch":["hunter2"],"context":{"a":"` + strings.Repeat(secret, 5000) + `"}}`,
	} {
		for _, authorization := range []string{"Basic aHVudGVyMjo=", basic, ""} {
			for _, path := range []string{"/v1/batch", "/v1/track", "/v1/projects/hunter2/settings", "/hunter2"} {
				for _, method := range []string{"POST", "GET"} {
					a := send(t, newHandler(t, &forwarder{err: errors.New(secret)}), method, path,
						map[string]string{"Authorization": authorization}, strings.NewReader(body))
					if strings.Contains(a.body, secret) {
						t.Errorf("%s %s %s: the answer %s has the secret", method, path, body, a.body)
					}
					if a.status == http.StatusOK && len(a.Rejected) == 0 {
						t.Errorf("%s %s %s: answered 200 without rejected calls, want a refusal", method, path, body)
					}
				}
			}
		}
	}
}
