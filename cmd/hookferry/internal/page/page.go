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
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"net/http"
	"path"
	"strconv"
	"strings"
	"time"
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

// A file is what is served at one path.
type file struct {
	contentType   string
	plain, zipped []byte
	tag           string // without quotes
}

// Handler serves the page at / and its files below. A browser asks for each of
// them every time and is told by ETag that it has not changed, so a new version
// is never mixed with an old one.
func Handler() http.Handler {
	files := make(map[string]*file)
	err := fs.WalkDir(assets, "assets", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		f, err := load(name)
		if err != nil {
			return err
		}
		files[strings.TrimPrefix(name, "assets")] = f
		return nil
	})
	if err != nil {
		// The files are part of the program.
		panic("page: " + err.Error())
	}
	files["/"] = files["/index.html"]
	delete(files, "/index.html")

	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f := files[r.URL.Path]
		if f == nil {
			http.NotFound(w, r)
			return
		}
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			w.Header().Set("Allow", "GET, HEAD")
			http.Error(w, "the page is only read", http.StatusMethodNotAllowed)
			return
		}
		f.serve(w, r)
	})
}

func load(name string) (*file, error) {
	plain, err := assets.ReadFile(name)
	if err != nil {
		return nil, err
	}
	contentType, ok := types[path.Ext(name)]
	if !ok {
		return nil, fmt.Errorf("%s: no type is known for it", name)
	}
	var zipped bytes.Buffer
	z, err := gzip.NewWriterLevel(&zipped, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	if _, err := z.Write(plain); err != nil {
		return nil, err
	}
	if err := z.Close(); err != nil {
		return nil, err
	}
	sum := sha256.Sum256(plain)
	return &file{contentType: contentType, plain: plain, zipped: zipped.Bytes(), tag: hex.EncodeToString(sum[:8])}, nil
}

func (f *file) serve(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Type", f.contentType)
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cache-Control", "no-cache")
	h.Set("Vary", "Accept-Encoding")
	body, tag := f.plain, f.tag
	if acceptsGzip(r.Header) {
		h.Set("Content-Encoding", "gzip")
		body, tag = f.zipped, f.tag+"-gzip"
	}
	h.Set("ETag", `"`+tag+`"`)
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(body))
}

// acceptsGzip reports whether an Accept-Encoding names gzip, and not with a
// weight of 0.
func acceptsGzip(h http.Header) bool {
	for _, list := range h.Values("Accept-Encoding") {
		for coding := range strings.SplitSeq(list, ",") {
			name, weight, weighted := strings.Cut(coding, ";")
			if !strings.EqualFold(strings.TrimSpace(name), "gzip") {
				continue
			}
			if !weighted {
				return true
			}
			q, err := strconv.ParseFloat(strings.TrimPrefix(strings.TrimSpace(weight), "q="), 64)
			return err == nil && q > 0
		}
	}
	return false
}
