package collector_test

import (
	"bytes"
	"compress/gzip"
	"flag"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// basic is base64("key:"), bare base64("key").
const (
	basic = "Basic a2V5Og=="
	bare  = "Basic a2V5"
)

func zipped(b []byte) []byte {
	var buf bytes.Buffer
	z := gzip.NewWriter(&buf)
	z.Write(b)
	z.Close()
	return buf.Bytes()
}

// TestWireFormats sends the request bodies of real clients in testdata/wire. It compares the
// webhooks with testdata/wire/NAME.golden.
func TestWireFormats(t *testing.T) {
	tested := map[string]bool{}
	for _, tt := range []struct {
		name   string
		body   string
		path   string
		zip    bool
		header map[string]string
	}{
		{name: "analytics-go-2.1.1", body: "analytics-go-2.1.1.json", path: "/v1/batch", header: map[string]string{
			"Authorization": basic, "User-Agent": "analytics-go (version: 2.1.0)", "Content-Type": "application/json"}},
		{name: "analytics-go-2.1.1", body: "analytics-go-2.1.1.json", path: "//v1/batch", header: map[string]string{
			"Authorization": basic, "User-Agent": "analytics-go (version: 2.1.0)", "Content-Type": "application/json"}},
		{name: "analytics-go-1.2.0", body: "analytics-go-1.2.0.json", path: "/v1/import", header: map[string]string{
			"Authorization": basic, "Content-Type": "application/json"}},
		{name: "analytics-go-3.3.0", body: "analytics-go-3.3.0.json", path: "/v1/batch", header: map[string]string{
			"Authorization": basic, "User-Agent": "analytics-go (version: 3.0.0)", "Content-Type": "application/json"}},
		{name: "analytics-node-3.1.0", body: "analytics-node-3.1.0.json", path: "/v1/batch", header: map[string]string{
			"Authorization": basic, "User-Agent": "analytics-node-next/latest", "X-Retry-Count": "2", "Content-Type": "application/json"}},
		{name: "analytics-node-3.1.0", body: "analytics-node-3.1.0.json", path: "/v1/batch", header: map[string]string{
			"Authorization": "Bearer an.access.token", "Content-Type": "application/json"}},
		{name: "rudder-go-4.2.3", body: "rudder-go-4.2.3.json", path: "/v1/batch", zip: true, header: map[string]string{
			"Authorization": basic, "Content-Encoding": "gzip", "Content-Type": "application/json", "RS-targetNode": "0", "RS-nodeCount": "1", "RS-userAgent": "serverSDK"}},
		{name: "browser-single", body: "browser-single.json", path: "/v1/p", header: map[string]string{
			"Origin": "https://shop.example", "Content-Type": "text/plain"}},
		{name: "browser-batch", body: "browser-batch.json", path: "/v1/b", header: map[string]string{
			"Origin": "https://shop.example", "Content-Type": "text/plain"}},
		{name: "php", body: "php.json", path: "/v1/batch", zip: true, header: map[string]string{
			"Authorization": basic, "Content-Encoding": "gzip", "Content-Type": "application/x-www-form-urlencoded"}},
		{name: "php", body: "php.json", path: "/v1/batch", zip: true, header: map[string]string{
			"Authorization": bare, "Content-Type": "application/x-www-form-urlencoded"}},
	} {
		tested[tt.body] = true
		t.Run(tt.name+tt.path, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b, err := os.ReadFile(filepath.Join("testdata/wire", tt.body))
				if err != nil {
					t.Fatal(err)
				}
				if tt.zip {
					b = zipped(b)
				}
				f := &forwarder{}
				r := httptest.NewRequest("POST", tt.path, bytes.NewReader(b))
				r.RemoteAddr = "198.51.100.7:4711"
				for k, v := range tt.header {
					r.Header.Set(k, v)
				}
				w := httptest.NewRecorder()
				newHandler(t, f).ServeHTTP(w, r)
				if w.Code != 200 || w.Body.String() != "{\"success\":true}\n" {
					t.Fatalf("answered %d %s, want 200 and success", w.Code, w.Body)
				}
				var got []byte
				for _, e := range f.events() {
					if e.Off {
						t.Errorf("the event %s is switched off, want it on", e.ID)
					}
					got = append(append(got, e.Body...), '\n')
				}
				golden := filepath.Join("testdata/wire", tt.name+".golden")
				if *update {
					if err := os.WriteFile(golden, got, 0o644); err != nil {
						t.Fatal(err)
					}
				}
				want, err := os.ReadFile(golden)
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(string(want), string(got)); diff != "" {
					t.Errorf("webhooks (-golden +got):\n%s", diff)
				}
				if n := f.calls(); n != 1 {
					t.Errorf("%d calls of ForwardEvents, want 1", n)
				}
			})
		})
	}
	files, err := filepath.Glob("testdata/wire/*.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("no files: %v", err)
	}
	for _, f := range files {
		if !tested[filepath.Base(f)] {
			t.Errorf("no case of this test sends %s", f)
		}
	}
}
