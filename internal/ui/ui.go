// Package ui has the parts that the pages of this repository are made of, and serves them: plain CSS and
// ES modules without a build step. The folder kit has them; a page finds them below kit/.
//
// The page of cmd/hookferry, which is another module, imports this package, too: both have the same
// version.
package ui

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"fmt"
	"io/fs"
	"net/http"
	"path"
	"strconv"
	"strings"
	"time"
)

//go:embed kit
var kit embed.FS

// Policy lets a page load its own files and call its own origin, and nothing else. It forbids inline
// scripts and styles, frames around the page, and HTML made from text.
const Policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// Types has the content types of all files. Those of package mime differ between systems.
var Types = map[string]string{
	".html": "text/html; charset=utf-8",
	".css":  "text/css; charset=utf-8",
	".js":   "text/javascript; charset=utf-8",
	".txt":  "text/plain; charset=utf-8",
	".svg":  "image/svg+xml",
	".png":  "image/png",
	".jpeg": "image/jpeg",
	".webp": "image/webp",
}

// Kit returns the files of the kit by their paths, which begin with kit/.
func Kit() map[string][]byte {
	all := make(map[string][]byte)
	for name, content := range Files(kit, "kit") {
		all["kit/"+name] = content
	}
	return all
}

// Files returns the files of a folder by their paths in it.
func Files(from embed.FS, folder string) map[string][]byte {
	all := make(map[string][]byte)
	err := fs.WalkDir(from, folder, func(name string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() {
			all[strings.TrimPrefix(name, folder+"/")], err = from.ReadFile(name)
		}
		return err
	})
	if err != nil {
		panic(err) // only if the folder is not embedded
	}
	return all
}

// A file is ready to be sent.
type file struct {
	kind, tag      string
	plain, gzipped []byte
}

// Serve serves files by their paths, and index.html at /. It compresses them once. Browsers ask for each
// file every time, and learn by the ETag whether it has changed, so files of two versions are never
// mixed.
func Serve(files map[string][]byte) http.Handler {
	ready := make(map[string]*file, len(files))
	for name, content := range files {
		if name = "/" + name; name == "/index.html" {
			name = "/" // so that the page has only one URL
		}
		ready[name] = prepare(name, content)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f := ready[r.URL.Path]
		switch {
		case f == nil:
			http.NotFound(w, r)
		case r.Method != http.MethodGet && r.Method != http.MethodHead:
			w.Header().Set("Allow", "GET, HEAD")
			http.Error(w, "the page can only be read; use GET", http.StatusMethodNotAllowed)
		default:
			f.serve(w, r)
		}
	})
}

func prepare(name string, content []byte) *file {
	var b bytes.Buffer
	z, _ := gzip.NewWriterLevel(&b, gzip.BestCompression) // fails for other levels only
	z.Write(content)                                      // a Buffer takes all
	z.Close()
	sum := sha256.Sum256(content)
	kind, known := Types[path.Ext(name)]
	if !known {
		kind = Types[".html"]
	}
	// The ETag is weak, because it is the same for each content encoding.
	return &file{kind, fmt.Sprintf(`W/"%x"`, sum[:8]), content, b.Bytes()}
}

func (f *file) serve(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Type", f.kind)
	h.Set("Content-Security-Policy", Policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-cache")
	h.Set("Vary", "Accept-Encoding")
	h.Set("ETag", f.tag)
	content := f.plain
	if acceptsGzip(r.Header.Values("Accept-Encoding")) {
		h.Set("Content-Encoding", "gzip")
		content = f.gzipped
	}
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(content))
}

// acceptsGzip reports whether a client takes gzip, by its headers Accept-Encoding.
func acceptsGzip(headers []string) bool {
	for part := range strings.SplitSeq(strings.Join(headers, ","), ",") {
		coding, parameter, weighed := strings.Cut(part, ";")
		if !strings.EqualFold(strings.TrimSpace(coding), "gzip") {
			continue
		}
		weight, isWeight := strings.CutPrefix(strings.ToLower(strings.TrimSpace(parameter)), "q=")
		q, err := strconv.ParseFloat(weight, 64)
		return !weighed || isWeight && err == nil && q > 0
	}
	return false
}
