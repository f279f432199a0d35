package webhook

import (
	"errors"
	"fmt"
	"strings"

	"github.com/hookferry/analytics/check"
	"github.com/hookferry/analytics/event"
)

// A Filter selects events by patterns. A pattern is a type of event, such as "identify" or
// "invoice.paid". "invoice.*" matches all types that begin with "invoice.", and "*" matches all
// types. Tracks, pages and screens also have a name, which follows a colon, as in "track:Order
// Completed". A name that ends in "*" matches all names that begin with the text before the "*":
// "page:Docs *", "*:Order *". Patterns are case-sensitive.
//
// The zero Filter takes every event. A Filter can be stored, for example as JSON.
type Filter struct {
	Include []string `json:"include,omitempty"` // takes only events that match one of these; empty takes all
	Exclude []string `json:"exclude,omitempty"` // leaves out events that match one of these, even if Include takes them
}

const maxPatterns = 100 // patterns of each list of a Filter at most
const maxPattern = 512  // bytes

// Match reports whether the filter takes e.
func (f *Filter) Match(e *event.Event) bool {
	return (len(f.Include) == 0 || matchAny(f.Include, e)) && !matchAny(f.Exclude, e)
}

func matchAny(patterns []string, e *event.Event) bool {
	for _, p := range patterns {
		kind, name, named := strings.Cut(p, ":")
		if family, all := strings.CutSuffix(kind, "*"); kind != e.Type && !(all && strings.HasPrefix(e.Type, family)) {
			continue
		}
		prefix, open := strings.CutSuffix(name, "*")
		switch {
		case !named, open && e.Name != "" && strings.HasPrefix(e.Name, prefix), !open && e.Name == name:
			return true
		}
	}
	return false
}

// Validate returns all faults as *ConfigErrors, joined by errors.Join.
func (f *Filter) Validate() error {
	var wrong check.Faults
	checkPatterns("Include", f.Include, &wrong)
	checkPatterns("Exclude", f.Exclude, &wrong)
	return configError(wrong)
}

func checkPatterns(field string, patterns []string, wrong *check.Faults) {
	n := len(patterns)
	wrong.Refuse(n > maxPatterns, field, "%d given; at most %d are allowed", n, maxPatterns)
	for i, p := range patterns {
		kind, name, named := strings.Cut(p, ":")
		field := fmt.Sprintf("%s[%d]", field, i)
		wrong.Refuse(len(p) > maxPattern, field, "has %d bytes, the limit is %d", len(p), maxPattern)
		wrong.Add(field, typeProblem(kind))
		wrong.Refuse(named && name == "", field, "has no event name after the colon")
	}
}

// typeProblem says what is wrong with the type in a pattern, "" if nothing is.
func typeProblem(kind string) string {
	family, all := strings.CutSuffix(kind, "*")
	switch {
	case kind == "*":
		return ""
	case all && !strings.HasSuffix(family, "."):
		return fmt.Sprintf("has a * that follows no dot; write %q", family+".*")
	case all:
		kind = strings.TrimSuffix(family, ".")
	}
	if wrong, ok := errors.AsType[*event.CallError](event.CheckType(kind)); ok {
		return wrong.Message()
	}
	return ""
}
