// Package portal lets the customers of a program see and mend their own webhooks, in the program's own
// web application: an http.Handler below the program's router and its session.
//
//	h, err := portal.Handler(portal.Config{
//		Forwarder: forwarder,
//		Tenants:   directory,
//		Tenant:    tenantOfSession,
//	})
//	mux.Handle("/webhooks/", http.StripPrefix("/webhooks", h))
//
// A request sees the tenant that Config.Tenant names, and nothing else. The ids in paths and cursors
// have no tenant in them: the handler puts the one of the session in front. So another tenant's id
// and one that nobody has are the same question, and get the same answer.
//
// Below api/v1/ is a JSON API for pages of one's own, which api/v1/openapi.json describes. The page
// uses nothing else. Requests that change something must come from a page of the same origin or from
// no browser, and have JSON bodies.
//
// States and failures of endpoints are what the Forwarder of this process has seen. What a request costs
// does not grow with the number of tenants, nor with what they have.
package portal

import (
	"cmp"
	"context"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/hookferry/analytics/check"
	"github.com/hookferry/analytics/event"
	"github.com/hookferry/analytics/tenants"
	"github.com/hookferry/analytics/webhook"
)

const (
	DefaultTestsPerMinute   = 10
	DefaultResendsPerMinute = 60
)

// An Action is something that a customer can do apart from looking.
type Action string

const (
	ActionCreate Action = "create" // an endpoint
	ActionChange Action = "change" // settings of an endpoint; enabling and disabling is part of it
	ActionDelete Action = "delete" // an endpoint
	ActionRotate Action = "rotate" // the secret of an endpoint
	ActionTest   Action = "test"   // sends a test event
	ActionResend Action = "resend" // one delivery, or all that were given up or wait
)

var actions = []Action{ActionCreate, ActionChange, ActionDelete, ActionRotate, ActionTest, ActionResend}

// A Change is told to Config.Changed.
type Change struct {
	Tenant, Actor string // as Config.Tenant has returned them
	Action        Action
	Destination   string // its id in the directory
	Delivery      uint64 // the Seq of the delivery that was sent again; zero for others
}

// Config configures a Handler. The number of a tenant's endpoints is bounded by
// tenants.Config.MaxDestinations, and their addresses by tenants.Config.AllowAddresses.
type Config struct {
	Forwarder *webhook.Forwarder // is required, and uses the directory
	Tenants   *tenants.Directory // is required
	// Tenant returns the id of the tenant that a request may see and change, and the name of the person
	// behind it, in up to 255 bytes, for the log of changes. It decides by what the program's own
	// session says, never by what the request could choose freely. After an error the answer is 401,
	// or 403 if the error is ErrForbidden. Tenant is required, and called concurrently.
	Tenant func(*http.Request) (tenant, actor string, err error)
	// Catalogue has the types of events that customers choose from and test. Nil means that they type
	// them, and that a test has no data.
	Catalogue *event.Catalogue

	Name  string // of the page, in up to 60 bytes; empty means "Webhooks"
	Logo  []byte // an image in SVG, PNG, JPEG or WebP of up to 64 KB (65,536 bytes); nil means none
	Theme Theme  // whether the page is light or dark
	// Accent and AccentDark are the colour of links and buttons, as "#0b5f7c", on light and on dark
	// pages. Texts in this colour need a contrast of 4.5 to the page. Empty means the default
	// colour.
	Accent, AccentDark string
	Language           string // of Words, as in HTML's lang; empty means "en"
	// Words replaces texts of the page. The keys are the English texts, which Texts returns; names in
	// braces stand for values, and may be left out or moved.
	Words map[string]string

	Forbid   []Action // what customers cannot do; nil forbids nothing
	ReadOnly bool     // forbids all actions

	Schemes []string // that URLs may have, of "https" and "http"; nil means "https" alone
	Ports   []int    // that URLs may have, such as 443; nil means any

	// TestsPerMinute bounds the tests of a tenant in a minute, ResendsPerMinute its requests to send
	// deliveries again, each of one delivery, or of all of an endpoint that were given up or wait. A
	// request for what does not exist counts, too. They hold for each Handler. Zero means
	// DefaultTestsPerMinute and DefaultResendsPerMinute.
	TestsPerMinute, ResendsPerMinute int
	// Overlap is how long an old secret signs beside the new one, up to 30 days. Zero means
	// tenants.DefaultOverlap.
	Overlap time.Duration

	// Changed is told of each change after it was made, and before the answer, also if what follows the
	// change fails. Its context does not end if the customer is gone. Nil means nobody is told.
	Changed func(context.Context, Change)
	// Logger gets errors that customers are not told, such as those of a store. Nil means no logs.
	Logger *slog.Logger
}

// A Theme says whether the page is light or dark.
type Theme string

const (
	ThemeChoice Theme = "" // as the browser is set, unless the user chooses
	ThemeLight  Theme = "light"
	ThemeDark   Theme = "dark"
)

// Handler returns the portal. It serves paths that begin with a slash: http.StripPrefix takes away
// what is before. The error names the fields of c that are wrong.
func Handler(c Config) (http.Handler, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	return newHandler(c)
}

// check fills in defaults, and copies what the caller could change.
func (c *Config) check() error {
	var wrong check.Faults
	wrong.Refuse(c.Forwarder == nil, "Forwarder", "is required")
	wrong.Refuse(c.Tenants == nil, "Tenants", "is required")
	wrong.Refuse(c.Tenant == nil, "Tenant", "is required")
	c.checkLooks(&wrong)
	for _, a := range c.Forbid {
		wrong.Refuse(!slices.Contains(actions, a), "Forbid", "has %q, which is none of %q", a, actions)
	}
	if c.Forbid = slices.Clone(c.Forbid); c.ReadOnly {
		c.Forbid = actions
	}
	c.checkURLs(&wrong)
	check.Range(&wrong, "TestsPerMinute", &c.TestsPerMinute, 1, 1000, DefaultTestsPerMinute)
	check.Range(&wrong, "ResendsPerMinute", &c.ResendsPerMinute, 1, 100_000, DefaultResendsPerMinute)
	check.Range(&wrong, "Overlap", &c.Overlap, time.Minute, 30*24*time.Hour, tenants.DefaultOverlap)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return wrong.Err("portal")
}

func (c *Config) checkURLs(wrong *check.Faults) {
	for _, s := range c.Schemes {
		wrong.Refuse(s != "https" && s != "http", "Schemes", `has %q; "https" and "http" are allowed`, s)
	}
	for _, p := range c.Ports {
		wrong.Refuse(p < 1 || p > 65535, "Ports", "has %d; 1 to 65535 are allowed", p)
	}
	if c.Ports = slices.Clone(c.Ports); c.Schemes == nil {
		c.Schemes = []string{"https"}
	}
	c.Schemes = slices.Clone(c.Schemes)
}

// may reports whether a customer may do something.
func (c *Config) may(a Action) bool { return !slices.Contains(c.Forbid, a) }

// changed tells the program of a change.
func (q *request) changed(a Action, destination string, delivery uint64) {
	if f := q.h.config.Changed; f != nil {
		f(context.WithoutCancel(q.r.Context()), Change{q.tenant, q.actor, a, destination, delivery})
	}
}

// title is the name that the page shows.
func (c *Config) title() string { return cmp.Or(strings.TrimSpace(c.Name), "Webhooks") }
