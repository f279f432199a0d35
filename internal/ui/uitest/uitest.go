// Package uitest checks the files of a page.
package uitest

import (
	"maps"
	"path"
	"regexp"
	"strings"
	"testing"
)

var (
	importedPath = regexp.MustCompile(`(?m)^(?:import|export) .*from '([^']+)'$`)
	importedName = regexp.MustCompile(`(?m)^(?:import|export) \{ (.*) \} from '([^']+)'$`)
	passedOn     = regexp.MustCompile(`(?m)^export \* from '([^']+)'$`)
	exportedName = regexp.MustCompile(`(?m)^export (?:async )?(?:function|const|let|class) (\w+)`)
	linkedPath   = regexp.MustCompile(`<(?:link|script)[^>]* (?:href|src)="([^"]+)"`)
	preloaded    = regexp.MustCompile(`<link rel="modulepreload" href="([^"]+)">`)
	inline       = regexp.MustCompile(`<script>|<style|[ "]style=|[ "]on[a-z]+=`)
	elsewhere    = regexp.MustCompile(`innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|import\(|url\(|@import|//[a-z0-9-]+\.[a-z]`)
)

// Check shows that the files of a page use nothing that ui.Policy forbids, and import only what other
// modules export, which otherwise only a browser would notice. It also shows that index.html preloads
// each module: a module that the browser finds only in another module costs a round trip. The page's
// own module is app.js. Files of the kit need not be used.
func Check(t *testing.T, given map[string][]byte) {
	t.Helper()
	files := make(map[string]string)
	for name, content := range given {
		files[name] = string(content)
	}
	if len(files) < 10 {
		t.Fatalf("there are %d files, want at least 10", len(files))
	}
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
	imported := map[string]bool{"app.js": true}
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
		for _, m := range importedName.FindAllStringSubmatch(content, -1) {
			for _, text := range strings.Split(m[1], ", ") {
				wanted, _, _ := strings.Cut(text, " as ")
				if !exports(files, path.Join(path.Dir(name), m[2]))[wanted] {
					t.Errorf("%s imports %s, which %s does not export", name, wanted, m[2])
				}
			}
		}
		// Two URLs are allowed: the placeholder of an example, and the namespace of SVG.
		text := strings.NewReplacer("https://example.com/", "", "http://www.w3.org/2000/svg", "").Replace(content)
		if found := elsewhere.FindAllString(text, -1); found != nil {
			t.Errorf("%s has %q, which the policy forbids or which loads other files", name, found)
		}
	}
	for name := range files {
		if path.Ext(name) == ".js" && !imported[name] && !strings.HasPrefix(name, "kit/") {
			t.Errorf("no file imports %s", name)
		}
	}
}

// exports returns the names that a module exports.
func exports(files map[string]string, name string) map[string]bool {
	all := make(map[string]bool)
	for _, m := range exportedName.FindAllStringSubmatch(files[name], -1) {
		all[m[1]] = true
	}
	for _, m := range importedName.FindAllStringSubmatch(files[name], -1) {
		if strings.HasPrefix(m[0], "export ") {
			for _, wanted := range strings.Split(m[1], ", ") {
				all[wanted] = true
			}
		}
	}
	for _, m := range passedOn.FindAllStringSubmatch(files[name], -1) {
		maps.Copy(all, exports(files, path.Join(path.Dir(name), m[1])))
	}
	return all
}
