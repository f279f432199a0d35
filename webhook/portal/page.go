package portal

import (
	"embed"
	"fmt"
	"html"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"

	"github.com/hookferry/analytics/internal/ui"
)

//go:embed assets
var assets embed.FS

// page returns what serves the page and its files.
func page(c *Config) http.Handler { return ui.Serve(files(c)) }

// files has the files of the page by their paths, with the looks that the program has chosen.
func files(c *Config) map[string][]byte {
	all := ui.Kit()
	maps.DeleteFunc(all, func(name string, _ []byte) bool { return name == "kit/chart.js" })
	maps.Copy(all, ui.Files(assets, "assets"))
	icon, logo := "icon.svg", ""
	if c.Logo != nil {
		icon = "logo" + logoExtensions[logoType(c.Logo)]
		logo = `<img src="` + icon + `" alt="">`
		all[icon] = c.Logo
	}
	theme := ""
	if c.Theme != ThemeChoice {
		theme = fmt.Sprintf(` data-theme="%s"`, c.Theme)
		all["kit/theme.js"] = []byte("// The theme of this page is fixed.\n")
	}
	all["index.html"] = []byte(strings.NewReplacer("{{language}}", c.Language, "{{theme}}", theme, "{{icon}}", icon, "{{logo}}", logo,
		"{{name}}", html.EscapeString(c.title())).Replace(string(all["index.html"])))
	all["colours.css"] = []byte(c.colours())
	return all
}

var logoExtensions = map[string]string{"image/svg+xml": ".svg", "image/png": ".png", "image/jpeg": ".jpeg", "image/webp": ".webp"}

// colours is a style sheet with the colours that the program has chosen.
func (c *Config) colours() string {
	var b strings.Builder
	for _, at := range []struct{ theme, colour, text string }{{"light", c.Accent, "#ffffff"}, {"dark", c.AccentDark, "#000000"}} {
		if at.colour == "" {
			continue
		}
		rule := fmt.Sprintf("--accent: %s; --on-accent: %s; --tint: color-mix(in srgb, %s 14%%, var(--panel));", at.colour, at.text, at.colour)
		fmt.Fprintf(&b, ":root[data-theme=%q] { %s }\n@media (prefers-color-scheme: %s) { :root:not([data-theme]) { %s } }\n", at.theme, rule, at.theme, rule)
	}
	return b.String()
}

var marked = regexp.MustCompile(`\b[nt]\('((?:[^'\\]|\\.)*)'`)

// Texts returns all texts of the page, which Config.Words may replace, in alphabetical order.
func Texts() []string {
	found := map[string]bool{"Sign in to see your webhooks.": true, "You may not see these webhooks.": true}
	all := ui.Kit()
	maps.Copy(all, ui.Files(assets, "assets"))
	for name, content := range all {
		if strings.HasSuffix(name, ".js") {
			for _, m := range marked.FindAllSubmatch(content, -1) {
				found[strings.ReplaceAll(string(m[1]), `\'`, "'")] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(found))
}
