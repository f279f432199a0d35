package page

import (
	"compress/gzip"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"path"
	"regexp"
	"strings"
	"testing"
)

// everyFile returns the text of each embedded file by its path on the server.
func everyFile(t *testing.T) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := fs.WalkDir(assets, "assets", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		b, err := assets.ReadFile(name)
		files[strings.TrimPrefix(name, "assets/")] = string(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(files) < 10 {
		t.Fatalf("%d files are embedded, want at least 10", len(files))
	}
	return files
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
	h := Handler()
	for name, content := range everyFile(t) {
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
			if got := body(t, resp); got != content {
				t.Errorf("GET %s, accepting %q: got %d bytes, want the %d bytes of the file", target, encoding, len(got), len(content))
			}
			if got := resp.Header.Get("Content-Type"); got != types[path.Ext(name)] {
				t.Errorf("GET %s: Content-Type %q, want %q", target, got, types[path.Ext(name)])
			}
			if got := resp.Header.Get("Content-Security-Policy"); got != policy {
				t.Errorf("GET %s: Content-Security-Policy %q, want %q", target, got, policy)
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
	h := Handler()
	for _, test := range []struct {
		name, method, target string
		want                 int
	}{
		{"a file that does not exist", http.MethodGet, "/nothing.js", http.StatusNotFound},
		{"a folder", http.MethodGet, "/views/", http.StatusNotFound},
		{"a second name of the page", http.MethodGet, "/index.html", http.StatusNotFound},
		{"a path out of the folder", http.MethodGet, "/views/../../page.go", http.StatusNotFound},
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
		resp := get(Handler(), http.MethodGet, "/", http.Header{"Accept-Encoding": {test.accept}})
		if got := resp.Header.Get("Content-Encoding") == "gzip"; got != test.want {
			t.Errorf("accepting %q: gzip is %v, want %v", test.accept, got, test.want)
		}
	}
}

// TestPageStaysSmall bounds the size of the whole page, in the binary and on the wire.
func TestPageStaysSmall(t *testing.T) {
	const bound = 200_000
	sum := 0
	for _, content := range everyFile(t) {
		sum += len(content)
	}
	t.Logf("%d bytes", sum)
	if sum > bound {
		t.Errorf("the files of the page have %d bytes, want at most %d", sum, bound)
	}
}

var (
	importedPath = regexp.MustCompile(`(?m)^import .*from '([^']+)'$`)
	linkedPath   = regexp.MustCompile(`<(?:link|script)[^>]* (?:href|src)="([^"]+)"`)
	preloaded    = regexp.MustCompile(`<link rel="modulepreload" href="([^"]+)">`)
	inline       = regexp.MustCompile(`<script>|<style|[ "]style=|[ "]on[a-z]+=`)
	elsewhere    = regexp.MustCompile(`innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|import\(|url\(|@import|//[a-z0-9-]+\.[a-z]`)
)

// TestFilesUseOnlyEmbeddedFiles shows that the files use nothing that the Content-Security-Policy
// forbids, which otherwise only a browser would notice. It also shows that index.html preloads
// each module: a module that the browser finds only in another module costs a round trip.
func TestFilesUseOnlyEmbeddedFiles(t *testing.T) {
	files := everyFile(t)
	page := files["index.html"]
	for _, m := range linkedPath.FindAllStringSubmatch(page, -1) {
		if _, ok := files[m[1]]; !ok {
			t.Errorf("index.html uses %s, which is not embedded", m[1])
		}
	}
	if found := inline.FindAllString(page, -1); found != nil {
		t.Errorf("index.html has inline scripts or styles: %q", found)
	}
	early := map[string]bool{"app.js": true}
	for _, m := range preloaded.FindAllStringSubmatch(page, -1) {
		early[m[1]] = true
	}
	imported := map[string]bool{"app.js": true, "theme.js": true}
	for name, content := range files {
		for _, m := range importedPath.FindAllStringSubmatch(content, -1) {
			target := path.Join(path.Dir(name), m[1])
			imported[target] = true
			if _, ok := files[target]; !ok {
				t.Errorf("%s imports %s, which is not embedded", name, m[1])
			}
			if !early[target] {
				t.Errorf("a module imports %s, but index.html does not preload it", target)
			}
		}
		// Two URLs are allowed: the placeholder of an example, and the namespace of SVG.
		text := strings.NewReplacer("https://example.com/", "", "http://www.w3.org/2000/svg", "").Replace(content)
		if found := elsewhere.FindAllString(text, -1); found != nil {
			t.Errorf("%s has %q, which the policy forbids or which loads other files", name, found)
		}
	}
	for name := range files {
		if path.Ext(name) == ".js" && !imported[name] {
			t.Errorf("no file imports %s", name)
		}
	}
}
