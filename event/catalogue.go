package event

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/hookferry/analytics/internal/esjson"
)

// A Type describes the events of one type to those who receive them.
type Type struct {
	Type        string // such as "invoice.paid"; see Custom.Type
	Description string // for people
	// Example is a value as Custom.Data has it in these events, usually a struct with all fields set.
	Example any
}

// A Catalogue has the types of the events that a program sends. It encodes to JSON as an array of
// objects with the members type, description and example, in the order of the types. It does not
// change, and is safe for concurrent use.
type Catalogue struct {
	types []described
	known map[string]bool
}

// A described is a Type as JSON.
type described struct {
	Type        string          `json:"type"`
	Description string          `json:"description,omitempty"`
	Example     json.RawMessage `json:"example"`
}

// NewCatalogue returns the catalogue of types, which must have different names. It encodes the
// examples, within the limits of a Custom, and keeps nothing else of them. The error names the type
// that is wrong.
func NewCatalogue(types ...Type) (*Catalogue, error) {
	c := &Catalogue{known: make(map[string]bool)}
	for _, t := range types {
		example := Custom{Type: t.Type, Data: t.Example}
		_, err := example.AppendJSON(nil)
		var data []byte
		if err == nil {
			data, err = esjson.AppendMember(nil, t.Example, MaxBody)
		}
		if err == nil && c.known[t.Type] {
			err = errors.New("is given twice")
		}
		if err != nil {
			return nil, fmt.Errorf("event: type %q of a catalogue: %w", t.Type, err)
		}
		c.known[t.Type] = true
		c.types = append(c.types, described{t.Type, t.Description, data})
	}
	slices.SortFunc(c.types, func(a, b described) int { return strings.Compare(a.Type, b.Type) })
	return c, nil
}

// Check returns a *CallError for a type of event that the catalogue lacks. Calls of the tracking API
// and deletions are always known. A nil Catalogue knows all types.
func (c *Catalogue) Check(eventType string) error {
	if c == nil || c.known[eventType] || reserved[eventType] {
		return nil
	}
	return &CallError{Field: "type", Code: CodeType, Problem: fmt.Sprintf("%q is not in the catalogue", eventType)}
}

// MarshalJSON implements json.Marshaler.
func (c *Catalogue) MarshalJSON() ([]byte, error) {
	return json.Marshal(append([]described{}, c.types...))
}

// Compatible compares c with an earlier catalogue, as JSON. It returns an error for each type that c
// lacks, and for each member of an example that is missing in c, or has another JSON type. Receivers
// may rely on these. Of arrays it compares the first elements. A null may become any value. A test
// that compares a catalogue with the one that was committed fails before a receiver does:
//
//	committed, err := os.ReadFile("testdata/catalogue.json")
//	if err := errors.Join(err, catalogue.Compatible(committed)); err != nil {
//		t.Error(err)
//	}
func (c *Catalogue) Compatible(earlier []byte) error {
	var old []described
	if err := json.Unmarshal(earlier, &old); err != nil {
		return fmt.Errorf("event: reading a catalogue: %w", err)
	}
	var wrong []error
	for _, was := range old {
		i := slices.IndexFunc(c.types, func(d described) bool { return d.Type == was.Type })
		if i < 0 {
			wrong = append(wrong, fmt.Errorf("event: %s: the type is missing", was.Type))
			continue
		}
		var before, now any
		if err := errors.Join(json.Unmarshal(was.Example, &before), json.Unmarshal(c.types[i].Example, &now)); err != nil {
			return fmt.Errorf("event: %s: reading an example: %w", was.Type, err)
		}
		for _, problem := range compare("data", before, now, nil) {
			wrong = append(wrong, fmt.Errorf("event: %s: %s", was.Type, problem))
		}
	}
	return errors.Join(wrong...)
}

// compare appends what a receiver of was would miss in now. Both are decoded JSON values at the
// same path.
func compare(path string, was, now any, problems []string) []string {
	if was != nil && kindOf(was) != kindOf(now) {
		return append(problems, fmt.Sprintf("%s was %s, and is %s", path, kindOf(was), kindOf(now)))
	}
	switch was := was.(type) {
	case map[string]any:
		now := now.(map[string]any)
		for _, name := range slices.Sorted(maps.Keys(was)) {
			if value, found := now[name]; found {
				problems = compare(path+"."+name, was[name], value, problems)
			} else {
				problems = append(problems, path+"."+name+" is missing")
			}
		}
	case []any:
		if now := now.([]any); len(was) > 0 && len(now) > 0 {
			problems = compare(path+"[0]", was[0], now[0], problems)
		}
	}
	return problems
}

// kindOf names the JSON type of a decoded value.
func kindOf(v any) string {
	switch v.(type) {
	case map[string]any:
		return "an object"
	case []any:
		return "an array"
	case string:
		return "a string"
	case float64:
		return "a number"
	case bool:
		return "a boolean"
	}
	return "null"
}
