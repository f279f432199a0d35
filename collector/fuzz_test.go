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

// For any request the answer is one of the documented ones, and the events are right.
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
			return // never gets past net/http
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
				t.Errorf("503 without a cause: %s", a.body)
			}
		default:
			t.Errorf("status %d", a.status)
		}
		plain := body
		if z, err := gzip.NewReader(bytes.NewReader(body)); err == nil {
			plain, _ = io.ReadAll(io.LimitReader(z, 1<<20))
		}
		stored := 0
		for _, e := range fw.events() {
			// Nothing grows more than a number such as 1e20: with its comma, 5 bytes become 22.
			if most := len(plain)*22/5 + 600; len(e.Body) > most {
				t.Errorf("a request of %d bytes has a webhook of %d, more than %d", len(plain), len(e.Body), most)
			}
			if stored += 2 * len(e.Body); stored > 4<<20+4*len(plain) {
				t.Errorf("a request of %d bytes becomes %d for two destinations", len(plain), stored)
			}
			if a.status != 200 {
				t.Errorf("status %d, but %s was handed on", a.status, e.ID)
			}
			if e.Off {
				continue
			}
			if again, err := esjson.Append(nil, e.Body); err != nil || !bytes.Equal(again, e.Body) {
				t.Errorf("the body %q is no fixed point: %q, %v", e.Body, again, err)
			}
		}
		for _, rejected := range a.Rejected {
			if rejected.Code == "" || rejected.Message == "" {
				t.Errorf("rejection without code and message: %s", a.body)
			}
		}
	})
}

// TestErrorsKeepSecrets provokes every kind of refusal by requests with secrets in every
// part, and looks for them in the answer.
func TestErrorsKeepSecrets(t *testing.T) {
	const secret = "hunter2"
	for _, body := range []string{
		`hunter2`, `{"hunter2`, `{"writeKey":"hunter2","batch":7}`, `{"batch":"hunter2"}`, `{"batch":["hunter2"],"sentAt":"hunter2"}`,
		`{"batch":[{"type":"hunter2"}]}`, `{"batch":[{"type":"track","userId":{"hunter2":1},"event":"hunter2"}]}`,
		`{"batch":[{"type":"track","userId":"hunter2","event":"e","timestamp":"hunter2"}]}`,
		`{"batch":[{"type":"track","userId":"hunter2","event":"e","messageId":"` + strings.Repeat(secret, 20) + `"}]}`,
		`{"batch":["hunter2"],"context":{"a":"` + strings.Repeat(secret, 5000) + `"}}`,
	} {
		for _, authorization := range []string{"Basic aHVudGVyMjo=", basic, ""} {
			for _, path := range []string{"/v1/batch", "/v1/track", "/v1/projects/hunter2/settings", "/hunter2"} {
				for _, method := range []string{"POST", "GET"} {
					a := send(t, newHandler(t, &forwarder{err: errors.New(secret)}), method, path,
						map[string]string{"Authorization": authorization}, strings.NewReader(body))
					if strings.Contains(a.body, secret) {
						t.Errorf("%s %s %s: the answer %s shows what was sent", method, path, body, a.body)
					}
					if a.status == http.StatusOK && len(a.Rejected) == 0 {
						t.Errorf("%s %s %s: not refused", method, path, body)
					}
				}
			}
		}
	}
}
