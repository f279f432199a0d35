package config

import (
	"encoding/json"
	"maps"
	"reflect"
	"slices"

	"github.com/hookferry/analytics/tenants"
	"github.com/hookferry/analytics/webhook"
)

// A Document is a destination as clients of the admin API send it, with the keys of one in the
// configuration file, and the names of the sources whose calls it gets.
type Document struct {
	Name string `yaml:"name"`
	webhook.Settings
	Sources []string `yaml:"sources"`
	tenants.Secrets
}

// Parse changes the fields of v, a pointer to a struct, whose keys the document of a client of the
// admin API has. Null stands for zero. The error is an *Error; package tenants checks the rest.
//
// Texts are taken literally: ${NAME} and file:PATH have no meaning, and certificates and keys are PEM.
// So no client can read the environment variables or the files of the server. The document came from
// JSON, of a size that the caller bounds.
func Parse(document map[string]any, v any) error {
	r := newReader("", nil)
	r.literal = true
	document = maps.Clone(document)
	for name, value := range document {
		if field, _ := fieldOf(reflect.ValueOf(v).Elem(), name); field.IsValid() {
			if field.SetZero(); value == nil {
				delete(document, name)
			}
		}
	}
	text, _ := json.Marshal(document) // also YAML, as it escapes nothing outside of ASCII
	r.decode(text, v)
	return r.error("")
}

// With returns a copy of s whose sources also have the destinations in routes, which has the ids for
// each source. It leaves out the ids of destinations that s has itself.
func (s *Settings) With(routes map[string][]string) *Settings {
	all := *s
	all.Sources = slices.Clone(s.Sources)
	for i := range all.Sources {
		source := &all.Sources[i]
		more := slices.DeleteFunc(slices.Clone(routes[source.Name]), func(id string) bool { return s.Destination(id) != nil })
		source.Destinations = slices.Concat(source.Destinations, more)
	}
	return &all
}
