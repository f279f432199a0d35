// Package page is the web page of the admin listener: plain HTML, CSS and ES modules without a
// build step. It loads nothing from other servers, and does everything through the admin API, which
// it finds by a relative path. So it also works below a path prefix of a proxy.
//
// app.js has the routes, and polls the status for all views. Each file of views/ is a view, which is
// created once and then updated in place, so that a refresh does not lose focus and selection.
// Leaving a view aborts its requests, and a hidden page sends none. All text is set by textContent,
// which the trusted types of the policy enforce. Parts that the portal of package webhook/portal has, too, are in
// internal/ui. e2e/ tests the page in Chromium.
package page

import (
	"embed"
	"maps"
	"net/http"

	"github.com/hookferry/analytics/internal/ui"
)

//go:embed assets
var assets embed.FS

// Handler serves the page at /, and below it the other files of the page and those of package ui.
// Package admin sets further headers that all answers have.
func Handler() http.Handler { return ui.Serve(files()) }

// files has the files of the page by their paths.
func files() map[string][]byte {
	all := ui.Kit()
	maps.Copy(all, ui.Files(assets, "assets"))
	return all
}
