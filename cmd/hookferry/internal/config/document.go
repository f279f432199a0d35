package config

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/hookferry/analytics/webhook"
)

// A Stored is what a destination has that was made while a server ran, and is kept in the store.
type Stored struct {
	// Sources are the names of those whose calls it gets. Some may be gone.
	Sources []string
	// Changed is when it was changed last, and By who did it, as they said.
	Changed time.Time
	By      string
	// Version is that of its setting in the store.
	Version uint64
}

// ParseDestination reads and checks a destination that a client of the admin API sends: a
// JSON object with the keys that a destination has in the file, and "sources", the names of
// those whose calls it gets. An id may be missing. Texts are what they say: ${NAME} and
// file:PATH have no meaning, and certificates and keys are PEM themselves, so that no client
// reads the variables or the files of the server. An address in a URL is public or in allow:
// URLs may be those of customers. The caller bounds the size of the document. The error is an
// *Error, whose keys begin at the object.
func ParseDestination(document map[string]any, allow []netip.Prefix) (*Destination, error) {
	d := newDecoder("", nil)
	d.literal = true
	destination := DefaultDestination()
	destination.ID = "test"
	destination.Stored = new(Stored)
	settings := make(map[string]any, len(document))
	for key, value := range document {
		if key == "sources" {
			destination.Stored.Sources = d.names(key, value)
		} else {
			settings[key] = value
		}
	}
	text, err := json.Marshal(settings) // which is YAML, too: all that is not ASCII stands as itself
	if err != nil {
		return nil, &Error{Problems: []Problem{{Text: "is not JSON"}}}
	}
	d.decode(text, &destination)
	c := checker{unread: d.problems}
	c.id("id", destination.ID)
	c.destination("", &destination)
	if len(d.problems)+len(c.problems) == 0 {
		c.addresses(destination.Endpoints, allow)
	}
	if problems := append(d.problems, c.problems...); len(problems) > 0 {
		return nil, &Error{Problems: problems}
	}
	return &destination, nil
}

// names reads a list of names that differ.
func (d *decoder) names(key string, value any) (names []string) {
	list, ok := value.([]any)
	if !ok {
		d.problem(key, "want a list of names")
	}
	for i, of := range list {
		switch name, ok := of.(string); {
		case !ok:
			d.problem(fmt.Sprintf("%s[%d]", key, i), "want a name")
		case slices.Contains(names, name):
			d.problem(fmt.Sprintf("%s[%d]", key, i), "is given twice")
		default:
			names = append(names, name)
		}
	}
	return names
}

// addresses checks that hosts which are addresses, or localhost, are public or in allow. What a
// name resolves to is checked for each connection.
func (c *checker) addresses(endpoints []Endpoint, allow []netip.Prefix) {
	for i := range endpoints {
		u, err := url.Parse(endpoints[i].URL.Reveal())
		if err != nil {
			continue // which was told
		}
		ip, err := netip.ParseAddr(u.Hostname())
		switch {
		case strings.EqualFold(u.Hostname(), "localhost"):
			ip = netip.AddrFrom4([4]byte{127, 0, 0, 1})
		case err != nil:
			continue
		}
		ip = ip.Unmap().WithZone("")
		allowed := slices.ContainsFunc(allow, func(p netip.Prefix) bool { return p.Contains(ip) })
		if !allowed && !webhook.IsPublic(ip) {
			c.problem(fmt.Sprintf("endpoints[%d].url", i), "%s is not public; if it is yours, add it to webhooks.allow", ip)
		}
	}
}

// With returns settings that have the destinations of list, too, which is in order of their ids,
// and their sources with them. What s has itself wins.
func (s *Settings) With(list []*Destination) *Settings {
	if len(list) == 0 {
		return s
	}
	all := *s
	all.Destinations = make([]Destination, 0, len(s.Destinations)+len(list))
	of := make(map[string][]string) // ids by the name of the source
	own := s.Destinations
	for _, d := range list {
		for len(own) > 0 && own[0].ID < d.ID {
			all.Destinations = append(all.Destinations, own[0])
			own = own[1:]
		}
		if len(own) > 0 && own[0].ID == d.ID {
			continue
		}
		all.Destinations = append(all.Destinations, *d)
		for _, name := range d.Stored.Sources {
			of[name] = append(of[name], d.ID)
		}
	}
	all.Destinations = append(all.Destinations, own...)
	all.Sources = slices.Clone(s.Sources)
	for i := range all.Sources {
		source := &all.Sources[i]
		source.Destinations = slices.Concat(source.Destinations, of[source.Name])
	}
	return &all
}
