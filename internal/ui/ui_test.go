package ui

import (
	"compress/gzip"
	"io"
	"net/http"
	"net/http/httptest"
	"path"
	"testing"
)

// everyFile returns the files of the kit, and a page.
func everyFile() map[string][]byte {
	all := Kit()
	all["index.html"] = []byte("<!doctype html>\n")
	return all
}

func get(h http.Handler, method, target string, header http.Header) *http.Response {
	r := httptest.NewRequest(method, target, nil)
	r.Header = header
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Result()
}

func body(t *testing.T, resp *http.Response) string {
	t.Helper()
	reader := io.Reader(resp.Body)
	if resp.Header.Get("Content-Encoding") == "gzip" {
		z, err := gzip.NewReader(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		reader = z
	}
	b, err := io.ReadAll(reader)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestHandlerServesEveryFile(t *testing.T) {
	h := Serve(everyFile())
	for name, content := range everyFile() {
		target := "/" + name
		if name == "index.html" {
			target = "/"
		}
		for _, encoding := range []string{"", "gzip"} {
			accept := http.Header{"Accept-Encoding": {encoding}}
			resp := get(h, http.MethodGet, target, accept)
			if resp.StatusCode != http.StatusOK || resp.Header.Get("Content-Encoding") != encoding {
				t.Fatalf("GET %s, accepting %q: status %d, encoding %q, want 200 and the encoding asked for", target, encoding, resp.StatusCode, resp.Header.Get("Content-Encoding"))
			}
			if got := body(t, resp); got != string(content) {
				t.Errorf("GET %s, accepting %q: got %d bytes, want the %d bytes of the file", target, encoding, len(got), len(content))
			}
			if got := resp.Header.Get("Content-Type"); got != Types[path.Ext(name)] {
				t.Errorf("GET %s: Content-Type %q, want %q", target, got, Types[path.Ext(name)])
			}
			if got := resp.Header.Get("Content-Security-Policy"); got != Policy {
				t.Errorf("GET %s: Content-Security-Policy %q, want %q", target, got, Policy)
			}
			if got := resp.Header.Get("X-Content-Type-Options"); got != "nosniff" {
				t.Errorf("GET %s: X-Content-Type-Options %q, want nosniff", target, got)
			}
			accept.Set("If-None-Match", resp.Header.Get("ETag"))
			if resp := get(h, http.MethodGet, target, accept); resp.StatusCode != http.StatusNotModified {
				t.Errorf("GET %s with its ETag %s: status %d, want 304", target, accept.Get("If-None-Match"), resp.StatusCode)
			}
		}
	}
}

func TestHandlerRefusesOtherPathsAndMethods(t *testing.T) {
	h := Serve(everyFile())
	for _, test := range []struct {
		name, method, target string
		want                 int
	}{
		{"a file that does not exist", http.MethodGet, "/nothing.js", http.StatusNotFound},
		{"a folder", http.MethodGet, "/kit/", http.StatusNotFound},
		{"a second name of the page", http.MethodGet, "/index.html", http.StatusNotFound},
		{"a path out of the folder", http.MethodGet, "/kit/../../ui.go", http.StatusNotFound},
		{"an unknown path of the API", http.MethodGet, "/api/v1/nothing", http.StatusNotFound},
		{"a POST", http.MethodPost, "/", http.StatusMethodNotAllowed},
	} {
		if resp := get(h, test.method, test.target, nil); resp.StatusCode != test.want {
			t.Errorf("%s: %s %s: status %d, want %d", test.name, test.method, test.target, resp.StatusCode, test.want)
		}
	}
	if resp := get(h, http.MethodHead, "/", nil); resp.StatusCode != http.StatusOK || body(t, resp) != "" {
		t.Errorf("HEAD /: status %d, want 200 and no body", resp.StatusCode)
	}
}

func TestAcceptsGzip(t *testing.T) {
	for _, test := range []struct {
		accept string
		want   bool
	}{
		{"", false}, {"gzip", true}, {"br, gzip, deflate", true}, {"GZIP;q=0.5", true}, {"gzip; q=1.0", true},
		{"gzip;q=0", false}, {"gzip;q=0.000", false}, {"gzip;q=", false}, {"identity", false}, {"x-gzip", false}, {"*", false},
	} {
		resp := get(Serve(everyFile()), http.MethodGet, "/", http.Header{"Accept-Encoding": {test.accept}})
		if got := resp.Header.Get("Content-Encoding") == "gzip"; got != test.want {
			t.Errorf("accepting %q: gzip is %v, want %v", test.accept, got, test.want)
		}
	}
}
