package main

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"

	"github.com/hookferry/analytics"
)

var callTypes = []string{"track", "identify", "page", "screen", "group", "alias"}

// callFlags has the flags that describe a call. Each flag sets one field of the message. If that
// field is a map, the flag may be repeated, and each key=value sets one key of the map.
var callFlags = []struct{ name, field, usage string }{
	{"user", "UserId", "`id` of the user"},
	{"anonymous", "AnonymousId", "`id` of a user who is not known yet"},
	{"event", "Event", "`name` of what happened"},
	{"name", "Name", "`name` of the page or screen"},
	{"category", "Category", "`category` of the page"},
	{"group", "GroupId", "`id` of the group"},
	{"previous", "PreviousId", "`id` that the user had before"},
	{"timestamp", "Timestamp", "`time` when it happened, such as 2026-01-31T12:00:00Z; now if left out"},
	{"message-id", "MessageId", "`id` of the call: a second call with it is not forwarded; made up if left out"},
	{"property", "Properties", "`key=value`, with the value as JSON if it is JSON, else as text; may be repeated"},
	{"trait", "Traits", "`key=value` of the user or the group, as JSON if it is JSON, else as text; may be repeated"},
	{"context", "Context", "`key=value` of the call's context; may be repeated"},
	{"integration", "Integrations", "`name=true|false`, a destination switch, such as Webhooks=false; may be repeated"},
}

// messageFlags defines a flag for each field that message has. The user gets an error for any other
// flag. messageFlags returns a function that sets the fields and checks the message.
func messageFlags(c *command, message analytics.Message) func() error {
	fields := reflect.ValueOf(message).Elem()
	var readMaps []func() error
	for _, f := range callFlags {
		field := fields.FieldByName(f.field)
		switch {
		// Skip a flag if the message has no such field. Skip --trait if the message has Properties,
		// too: its Traits are then only another name of Properties, which --property sets.
		case !field.IsValid() || f.name == "trait" && fields.FieldByName("Properties").IsValid():
		case field.Kind() == reflect.String:
			c.StringVar(field.Addr().Interface().(*string), f.name, "", f.usage)
		default:
			texts := c.StringArray(f.name, nil, f.usage)
			readMaps = append(readMaps, func() error {
				m, err := readPairs(f.name, *texts)
				field.Set(reflect.ValueOf(m))
				return err
			})
		}
	}
	return func() error {
		for _, read := range readMaps {
			if err := read(); err != nil {
				return err
			}
		}
		return inFlags(message.Validate())
	}
}

// inFlags names the flag in an error about a field of a message or a setting of the client.
func inFlags(err error) error {
	if field, ok := errors.AsType[*analytics.FieldError](err); ok {
		return usagef("%s", fieldFlags.Replace(field.Field+" "+field.Problem))
	}
	if setting, ok := errors.AsType[*analytics.ConfigError](err); ok {
		return usagef("%s", fieldFlags.Replace(setting.Field+" "+setting.Problem))
	}
	return err
}

// fieldFlags replaces the names of fields by the names of their flags.
var fieldFlags = func() *strings.Replacer {
	pairs := []string{"Endpoint", "--endpoint", "write key", "--write-key"}
	for _, f := range callFlags {
		pairs = append(pairs, f.field, "--"+f.name)
	}
	return strings.NewReplacer(pairs...)
}()

// readPairs makes a map of key=value texts, or returns nil if there are none. A value that is valid
// JSON is kept as JSON. Any other value becomes a string.
func readPairs(flag string, texts []string) (map[string]any, error) {
	var m map[string]any
	for _, text := range texts {
		key, value, ok := strings.Cut(text, "=")
		if !ok || key == "" {
			return nil, usagef("--%s: %q is not of the form key=value", flag, text)
		}
		if _, twice := m[key]; twice {
			return nil, usagef("--%s: %q is given twice", flag, key)
		}
		if m == nil {
			m = map[string]any{}
		}
		m[key] = value
		if json.Valid([]byte(value)) {
			m[key] = json.RawMessage(value)
		}
	}
	return m, nil
}
