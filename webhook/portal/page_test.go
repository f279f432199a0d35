package portal

import (
	"bytes"
	"compress/gzip"
	"strings"
	"testing"

	"github.com/hookferry/analytics/internal/ui/uitest"
)

func TestFilesUseOnlyEmbeddedFiles(t *testing.T) {
	uitest.Check(t, files(&Config{Language: "en"}))
}

// A visitor loads all files once, but only one file of the receivers' code.
func TestPageStaysSmallOnTheWire(t *testing.T) {
	const bound = 150_000
	var b bytes.Buffer
	sum := 0
	for name, content := range files(&Config{Language: "en"}) {
		if strings.HasPrefix(name, "code/") {
			continue
		}
		b.Reset()
		z := gzip.NewWriter(&b)
		z.Write(content)
		z.Close()
		sum += b.Len()
	}
	t.Logf("%d bytes", sum)
	if sum > bound {
		t.Errorf("the page has %d bytes when it is compressed, want at most %d", sum, bound)
	}
}

// Every text in the views is marked, so that a program can replace it.
func TestPageHasTheLooksOfTheProgram(t *testing.T) {
	c := Config{Name: `<b>"Acme"`, Logo: []byte(`<svg xmlns="http://www.w3.org/2000/svg"/>`), Theme: ThemeDark, AccentDark: "#63c2e0", Language: "de"}
	all := files(&c)
	page := string(all["index.html"])
	for _, want := range []string{`<html lang="de" data-theme="dark">`, `<title>&lt;b&gt;&#34;Acme&#34;</title>`, `<img src="logo.svg" alt="">`} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %s:\n%s", want, page)
		}
	}
	if strings.Contains(page, "<b>") || strings.Contains(page, "{{") {
		t.Errorf("the page has what it should not:\n%s", page)
	}
	if got := string(all["colours.css"]); !strings.Contains(got, "--accent: #63c2e0") || strings.Contains(got, "light") {
		t.Errorf("the colours are %s", got)
	}
}
