package config

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/hookferry/analytics/webhook"
)

// A Stored describes a destination that was created through the admin API and is kept in the store.
type Stored struct {
	Sources []string  // whose calls the destination gets; some may not exist any more
	Changed time.Time // the time of the last change
	By      string    // its author, as stated by the client
	Version uint64    // of the destination's setting in the store
}

// ParseDestination reads and checks a destination that a client of the admin API sends. The
// document has the keys of a destination in the configuration file, and "sources": the names of the
// sources whose calls the destination gets. The id may be missing.
//
// Texts are taken literally: ${NAME} and file:PATH have no meaning, and certificates and keys are
// PEM. So no client can read the environment variables or the files of the server. Customers may
// have chosen the URLs, so an address in a URL must be public, or in w.Allow. A destination
// without retries has those of w.
//
// The document came from JSON, of a size that the caller bounds. The error is an *Error with keys
// relative to it. With an error, the destination has only the sources that could be read.
func ParseDestination(document map[string]any, w *Webhooks) (*Destination, error) {
	r := newReader("", nil)
	r.retries = w.Retries
	d := struct {
		Destination
		Sources []string `yaml:"sources"`
	}{Destination: Destination{ID: "test"}}
	r.parse(document, &d)
	list, _ := document["sources"].([]any)
	for i, name := range list {
		_, isText := name.(string)
		at := fmt.Sprintf("sources[%d]", i)
		r.refuse(!isText, at, "want a name")
		r.refuse(isText && slices.Contains(list[:i], name), at, "is given twice")
	}
	r.destination("", &d.Destination)
	if d.Webhook != nil {
		r.public(d.Webhook, w.Allow)
	}
	d.Stored = &Stored{Sources: d.Sources}
	if len(r.problems) > 0 {
		return &Destination{Stored: d.Stored}, &Error{Problems: r.problems}
	}
	return &d.Destination, nil
}

// Parse reads a document that a client of the admin API sends into v, a pointer, by the tags of its
// type. Texts are taken literally, as in ParseDestination. The error is an *Error.
func Parse(document map[string]any, v any) error {
	r := newReader("", nil)
	r.parse(document, v)
	return r.error("")
}

func (r *reader) parse(document map[string]any, v any) {
	r.literal = true
	text, _ := json.Marshal(document) // also YAML, as it escapes nothing outside of ASCII
	r.decode(text, v)
}

// public checks the URLs of a valid destination: an IP address or localhost in them must be public,
// or in the argument allow. The forwarder's guard checks other hosts at each connection.
func (r *reader) public(d *webhook.Destination, allow []netip.Prefix) {
	for i, e := range d.Endpoints {
		host := ""
		if u, err := webhook.ParseURL(e.URL); err == nil {
			host = u.Hostname()
		}
		if strings.EqualFold(host, "localhost") {
			host = "127.0.0.1"
		}
		ip, err := netip.ParseAddr(host)
		ip = ip.Unmap().WithZone("")
		fine := err != nil || webhook.IsPublic(ip) || slices.ContainsFunc(allow, func(p netip.Prefix) bool { return p.Contains(ip) })
		r.refuse(!fine, fmt.Sprintf("endpoints[%d].url", i), "%s is not public; if it is yours, add it to webhooks.allow", ip)
	}
}

// With returns a copy of s that also has the destinations in list, except those whose id s already
// has. Each of them gets the calls of the sources that it names.
func (s *Settings) With(list []*Destination) *Settings {
	all := *s
	all.Destinations = slices.Clone(s.Destinations)
	of := make(map[string][]string) // the ids of destinations, by the name of the source
	for _, d := range list {
		if s.Destination(d.ID) != nil {
			continue
		}
		all.Destinations = append(all.Destinations, *d)
		for _, name := range d.Stored.Sources {
			of[name] = append(of[name], d.ID)
		}
	}
	slices.SortFunc(all.Destinations, func(a, b Destination) int { return strings.Compare(a.ID, b.ID) })
	all.Sources = slices.Clone(s.Sources)
	for i := range all.Sources {
		source := &all.Sources[i]
		source.Destinations = slices.Concat(source.Destinations, of[source.Name])
	}
	return &all
}
