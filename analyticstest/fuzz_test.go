package analyticstest_test

import (
	"bytes"
	"encoding/json"
	"net/http/httptest"
	"testing"

	"github.com/hookferry/analytics/analyticstest"
)

// The server answers any body with 200 or 400. The calls that it accepts are parts of the body.
func FuzzServeHTTP(f *testing.F) {
	for _, body := range []string{
		`{"batch":[{"type":"track","messageId":"m","timestamp":"2026-03-04T05:06:07.891Z","userId":"u","event":"e","properties":{"n":1}}],"messageId":"b","sentAt":1772600767891}`,
		`{"batch":[{"type":"alias"},{"type":"alias"}],"context":{"library":{}},"writeKey":"k"}`,
		`{"batch":[]}`,
		`{"batch":[{"type":"track","timestamp":"yesterday","properties":null}],"sentAt":{}}`,
		`{"batch":{}}`,
		`[]`,
		"\x1f\x8b",
	} {
		f.Add([]byte(body), false)
		f.Add([]byte(body), true)
	}
	f.Fuzz(func(t *testing.T, body []byte, packed bool) {
		srv := analyticstest.New(t)
		r := httptest.NewRequest("POST", "/v1/batch", bytes.NewReader(body))
		if packed {
			r.Header.Set("Content-Encoding", "gzip")
		}
		w := httptest.NewRecorder()
		srv.ServeHTTP(w, r)

		batches, calls := srv.Batches(), srv.Calls()
		if len(batches) != 1 {
			t.Fatalf("%d batches, want 1", len(batches))
		}
		b := batches[0]
		if b.Status != w.Code || (w.Code == 200) != (b.Err == nil) || w.Code != 200 && w.Code != 400 {
			t.Errorf("answered %d; the batch has status %d and error %v; want 200 without or 400 with an error", w.Code, b.Status, b.Err)
		}
		if !json.Valid(w.Body.Bytes()) {
			t.Errorf("answered %q, want JSON", w.Body)
		}
		if len(calls) > len(b.Calls) {
			t.Errorf("accepted %d calls of a batch of %d", len(calls), len(b.Calls))
		}
		for _, c := range calls {
			if c.Type == "" || !json.Valid(c.JSON) || !bytes.Contains(b.Body, c.JSON) {
				t.Errorf("call %+v of the body %q, want a type, and JSON that is in the body", c, b.Body)
			}
		}
	})
}
