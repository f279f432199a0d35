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
	"unicode/utf8"
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
	var words []string
	add := func(label, value string) {
		if value != "" {
			words = append(words, strings.TrimSpace(label+" "+plain(value)))
		}
	}
	kind := cmp.Or(field("type"), "no type")
	add("", kind)
	switch kind {
	case "track":
		words = append(words, strconv.Quote(field("event")))
	case "page", "screen":
		if name := field("name"); name != "" {
			words = append(words, strconv.Quote(name))
		}
	case "group":
		add("group", field("groupId"))
	case "alias":
		add("from", field("Previous ID"))
		add("to", field("User ID"))
	}
	if user := field("userId"); user != "" {
		add("user", user)
	} else {
		add("anonymous", field("anonymousId"))
	}
	return strings.Join(words, "  ")
}

// plain returns s, in quotes if s contains spaces, quotes or unprintable characters.
func plain(s string) string {
	if strings.ContainsFunc(s, func(r rune) bool { return r == utf8.RuneError || r == '"' || unicode.IsSpace(r) || !unicode.IsPrint(r) }) {
		return strconv.Quote(s)
	}
	return s
}

// appendPretty appends body, indented and with a newline at the end. It escapes control characters.
func appendPretty(dst, body []byte) []byte {
	var indented bytes.Buffer
	if json.Indent(&indented, body, "", "  ") != nil {
		return append(strconv.AppendQuote(dst, string(body)), '\n')
	}
	return append(appendEscaped(dst, indented.Bytes()), '\n')
}

// appendEscaped appends JSON with control characters escaped. The JSON keeps its meaning.
func appendEscaped(dst, text []byte) []byte {
	for _, r := range string(text) {
		switch {
		case r == '\n' || unicode.IsPrint(r):
			dst = utf8.AppendRune(dst, r)
		case r > 0xffff:
			// In JSON, a character above U+FFFF can only be in a string, so it may be escaped.
			high, low := utf16.EncodeRune(r)
			dst = fmt.Appendf(dst, `\u%04x\u%04x`, high, low)
		default:
			dst = fmt.Appendf(dst, `\u%04x`, r)
		}
	}
	return dst
}
