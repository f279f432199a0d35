// Package page is the web page of the admin listener: plain HTML, CSS and ES modules without a
// build step. It loads nothing from other servers, and does everything through the admin API, which
// it finds by a relative path. So it also works below a path prefix of a proxy.
//
// app.js has the routes, and polls the status for all views. Each file of views/ is a view, which is
// created once and then updated in place, so that a refresh does not lose focus and selection.
// Leaving a view aborts its requests, and a hidden page sends none. All text is set by textContent,
// which the trusted types of the policy enforce. e2e/ tests the page in Chromium.
package page

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"fmt"
	"net/http"
	"path"
	"time"

	"github.com/klauspost/compress/gzhttp"
)

//go:embed assets
var assets embed.FS

// policy lets the page load its own files and call its own origin, and nothing else. It forbids
// inline scripts and styles, frames around the page, and HTML made from text.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// types has the content types of all assets. Those of package mime differ between systems.
var types = map[string]string{
	".html": "text/html; charset=utf-8",
	".css":  "text/css; charset=utf-8",
	".js":   "text/javascript; charset=utf-8",
	".svg":  "image/svg+xml",
}

// Handler serves the page at /, and its other files below. Package admin sets the headers that all
// answers have. Browsers ask for each file every time, and learn by the ETag whether it has changed,
// so files of two versions are never mixed.
func Handler() http.Handler {
	compress, err := gzhttp.NewWrapper(gzhttp.MinSize(0))
	if err != nil {
		panic(err) // only if the options above are wrong
	}
	return compress(http.HandlerFunc(serve))
}

func serve(w http.ResponseWriter, r *http.Request) {
	name := r.URL.Path
	switch name {
	case "/":
		name = "/index.html"
	case "/index.html": // so that the page has only one URL
		name = ""
	}
	content, err := assets.ReadFile("assets" + name)
	if err != nil {
		http.NotFound(w, r)
		return
	}
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		http.Error(w, "the page can only be read; use GET", http.StatusMethodNotAllowed)
		return
	}
	h := w.Header()
	h.Set("Content-Type", types[path.Ext(name)])
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-cache")
	sum := sha256.Sum256(content)
	// The ETag is weak, because it is the same for each content encoding.
	h.Set("ETag", fmt.Sprintf(`W/"%x"`, sum[:8]))
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(content))
}
