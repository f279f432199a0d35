package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf16"
)

// describe summarizes a webhook in a few words: its type, the event, and the user.
func describe(body []byte) string {
	var call map[string]any
	if json.Unmarshal(body, &call) != nil {
		return fmt.Sprintf("not a JSON object (%d bytes)", len(body))
	}
	field := func(name string) string {
		s, _ := call[name].(string)
		return s
	}
	kind := cmp.Or(field("type"), "no type")
	words := plain(kind)
	add := func(label, value string) {
		if value != "" {
			words += "  " + label + plain(value)
		}
	}
	switch kind {
	case "track":
		words += "  " + strconv.Quote(field("event"))
	case "page", "screen":
		if name := field("name"); name != "" {
			words += "  " + strconv.Quote(name)
		}
	case "group":
		add("group ", field("groupId"))
	case "alias":
		add("from ", field("Previous ID"))
		add("to ", field("User ID"))
	}
	if user := field("userId"); user != "" {
		add("user ", user)
	} else {
		add("anonymous ", field("anonymousId"))
	}
	return words
}

// plain returns s, in quotes if s contains spaces, quotes or unprintable characters.
func plain(s string) string {
	quoted := strconv.Quote(s)
	if strings.ContainsFunc(s, unicode.IsSpace) || quoted[1:len(quoted)-1] != s {
		return quoted
	}
	return s
}

// pretty returns body, indented and with a newline at the end. It escapes control characters.
func pretty(body []byte) string {
	var indented bytes.Buffer
	if json.Indent(&indented, body, "", "  ") != nil {
		return strconv.Quote(string(body)) + "\n"
	}
	return escapeJSON(indented.String()) + "\n"
}

// escapeJSON escapes the control characters in JSON. The JSON keeps its meaning.
func escapeJSON(text string) string {
	var b strings.Builder
	for _, r := range text {
		switch {
		case r == '\n' || unicode.IsPrint(r):
			b.WriteRune(r)
		case r > 0xffff:
			// In JSON, a character above U+FFFF can only be in a string, so it may be escaped.
			high, low := utf16.EncodeRune(r)
			fmt.Fprintf(&b, `\u%04x\u%04x`, high, low)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.String()
}
