// Package page is the web page of the admin listener. It is plain HTML, CSS and
// ES modules, embedded as they are: there is no build, and nothing is fetched
// from elsewhere. All that it shows and does goes through the admin API, which
// it finds beside itself, so that it also works below a prefix of a proxy.
//
// app.js has the routes, and asks for the status once for all views. Each file of views/ is a
// view: it is made once and updated in place, so that focus and selection outlive a refresh.
// Leaving a view aborts its requests, and nothing is asked while nobody looks. Text is made
// by textContent alone, to which the policy's trusted types hold the scripts. e2e/ uses the page
// in Chromium before the real program.
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

// policy lets the page load its own files and call its own origin, and nothing
// else: no inline script or style, no frame around it, no text made into HTML.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// types are those of all files there are. The system's table differs by system.
var types = map[string]string{
	".html": "text/html; charset=utf-8",
	".css":  "text/css; charset=utf-8",
	".js":   "text/javascript; charset=utf-8",
	".svg":  "image/svg+xml",
}

// Handler serves the page at / and its files below. A browser asks for each of
// them every time and is told by ETag that it has not changed, so a new version
// is never mixed with an old one.
func Handler() http.Handler {
	compress, err := gzhttp.NewWrapper(gzhttp.MinSize(0))
	if err != nil {
		panic(err) // about the options above
	}
	return compress(http.HandlerFunc(serve))
}

func serve(w http.ResponseWriter, r *http.Request) {
	name := r.URL.Path
	switch name {
	case "/":
		name = "/index.html"
	case "/index.html": // the page has one name
		name = ""
	}
	content, err := assets.ReadFile("assets" + name)
	if err != nil {
		http.NotFound(w, r)
		return
	}
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		http.Error(w, "the page is only read", http.StatusMethodNotAllowed)
		return
	}
	h := w.Header()
	h.Set("Content-Type", types[path.Ext(name)])
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cache-Control", "no-cache")
	sum := sha256.Sum256(content)
	h.Set("ETag", fmt.Sprintf(`W/"%x"`, sum[:8])) // weak: the same for any encoding
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(content))
}
