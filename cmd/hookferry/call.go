package main

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"

	"github.com/hookferry/analytics"
)

// callTypes are the types of calls that send knows.
var callTypes = []string{"track", "identify", "page", "screen", "group", "alias"}

// callFlags returns the flags of a call of that type, and what makes the call
// of them once they are read.
func callFlags(o *options, kind string) func() (analytics.Message, error) {
	user := o.text("user", "", "`id` of the user")
	anonymous := o.text("anonymous", "", "`id` of a user who is not known yet")
	timestamp := o.text("timestamp", "", "`time` when it happened, such as 2026-01-31T12:00:00Z; now if left out")
	id := o.text("message-id", "", "`id` of the call: a second call with it is not forwarded; made up if left out")
	context := o.list("context", "`key=value` of the call's context; may be repeated", lines)
	integrations := o.list("integration", "`name=true|false`, a destination switch, such as Webhooks=false; may be repeated", lines)
	// Only the flags that the type has are defined, so that another one is an
	// error rather than left out without a word.
	text := func(name, usage string, kinds ...string) *string {
		if slices.Contains(kinds, kind) {
			return o.text(name, "", usage)
		}
		return new(string)
	}
	pairs := func(name, usage string, kinds ...string) *[]string {
		if slices.Contains(kinds, kind) {
			return o.list(name, usage, lines)
		}
		return new([]string)
	}
	event := text("event", "`name` of what happened", "track")
	name := text("name", "`name` of the "+kind, "page", "screen")
	category := text("category", "`category` of the page", "page")
	group := text("group", "`id` of the group", "group")
	previous := text("previous", "`id` that the user had before", "alias")
	properties := pairs("property", "`key=value`, with the value as JSON if it is JSON, else as text; may be repeated", "track", "page", "screen")
	traits := pairs("trait", "`key=value`, with the value as JSON if it is JSON, else as text; may be repeated", "identify", "group")

	return func() (analytics.Message, error) {
		maps := map[string]map[string]any{}
		for flag, list := range map[string][]string{
			"property": *properties, "trait": *traits, "context": *context, "integration": *integrations,
		} {
			m, err := readPairs(flag, list)
			if err != nil {
				return nil, err
			}
			maps[flag] = m
		}
		contextMap, switches := maps["context"], maps["integration"]
		var m analytics.Message
		switch kind {
		case "track":
			m = &analytics.Track{UserId: *user, AnonymousId: *anonymous, Event: *event, Properties: maps["property"],
				Context: contextMap, Integrations: switches, Timestamp: *timestamp, MessageId: *id}
		case "identify":
			m = &analytics.Identify{UserId: *user, AnonymousId: *anonymous, Traits: maps["trait"],
				Context: contextMap, Integrations: switches, Timestamp: *timestamp, MessageId: *id}
		case "page":
			m = &analytics.Page{UserId: *user, AnonymousId: *anonymous, Name: *name, Category: *category, Traits: maps["property"],
				Context: contextMap, Integrations: switches, Timestamp: *timestamp, MessageId: *id}
		case "screen":
			m = &analytics.Screen{UserId: *user, AnonymousId: *anonymous, Name: *name, Properties: maps["property"],
				Context: contextMap, Integrations: switches, Timestamp: *timestamp, MessageId: *id}
		case "group":
			m = &analytics.Group{UserId: *user, AnonymousId: *anonymous, GroupId: *group, Traits: maps["trait"],
				Context: contextMap, Integrations: switches, Timestamp: *timestamp, MessageId: *id}
		case "alias":
			m = &analytics.Alias{UserId: *user, PreviousId: *previous, AnonymousId: *anonymous,
				Context: contextMap, Integrations: switches, Timestamp: *timestamp, MessageId: *id}
		}
		return m, inFlags(m.Validate())
	}
}

// inFlags makes an error about a field of a message or of the client one about
// the flag it came from.
func inFlags(err error) error {
	var field *analytics.FieldError
	var setting *analytics.ConfigError
	switch {
	case errors.As(err, &field):
		return &usageError{fieldFlags.Replace(field.Field + " " + field.Problem)}
	case errors.As(err, &setting):
		return &usageError{fieldFlags.Replace(setting.Field + " " + setting.Problem)}
	}
	return err
}

var fieldFlags = strings.NewReplacer("UserId", "--user", "AnonymousId", "--anonymous", "Event", "--event", "GroupId", "--group",
	"PreviousId", "--previous", "Timestamp", "--timestamp", "MessageId", "--message-id", "Context", "--context",
	"Integrations", "--integration", "Properties", "--property", "Traits", "--trait",
	"Endpoint", "--endpoint", "write key", "--write-key")

// readPairs makes a map of key=value texts; nil of none. A value that is JSON
// is taken as that, any other as a string.
func readPairs(flag string, texts []string) (map[string]any, error) {
	if len(texts) == 0 {
		return nil, nil
	}
	m := make(map[string]any, len(texts))
	for _, text := range texts {
		key, value, ok := strings.Cut(text, "=")
		if !ok || key == "" {
			return nil, usagef("--%s: %q is not of the form key=value", flag, text)
		}
		if _, twice := m[key]; twice {
			return nil, usagef("--%s: %q is given twice", flag, key)
		}
		m[key] = value
		if json.Valid([]byte(value)) {
			m[key] = json.RawMessage(value)
		}
	}
	return m, nil
}
