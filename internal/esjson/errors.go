package esjson

import (
	"errors"
	"fmt"
	"strconv"
	"unicode/utf8"
)

// ErrDepth is found by errors.Is in the *SyntaxError or *ValueError that refuses
// what is nested deeper than MaxDepth, a cyclic Go value among it.
var ErrDepth = errors.New(problemDepth)

// ErrLong is the error for a value that is longer than its caller has use for.
var ErrLong = errors.New("longer than allowed")

const problemDepth = "nested deeper than 1000 levels"

// A SyntaxError says why and where a text is not JSON, or not the JSON value
// that was asked for. It never repeats the text.
type SyntaxError struct {
	// Offset is the byte of the source at which the problem showed.
	Offset int
	// Problem says what is wrong there, such as "unexpected end".
	Problem string
}

func (e *SyntaxError) Error() string {
	return fmt.Sprintf("invalid JSON at byte %d: %s", e.Offset, e.Problem)
}

// Is reports whether target is ErrDepth and e is about the depth.
func (e *SyntaxError) Is(target error) bool {
	return target == ErrDepth && e.Problem == problemDepth
}

// A ValueError says why and where a Go value has no JSON form.
type ValueError struct {
	// Path leads from the value given to the part refused, such as
	// `cart[3].price` or `["a key"][0]`, cut when it is very long. It is empty
	// for the value itself.
	Path string
	// Problem says what is wrong there, such as "not a number".
	Problem string
	// Err is the cause where there is one: what a Marshaler returned, or a
	// *SyntaxError in a json.RawMessage.
	Err error
}

func (e *ValueError) Error() string {
	if e.Path == "" {
		return e.Problem
	}
	return e.Path + ": " + e.Problem
}

// Unwrap returns Err.
func (e *ValueError) Unwrap() error { return e.Err }

// maxPath and maxPathKey bound a path, and one key in it, in bytes: paths end up
// in logs, and keys may be anything.
const (
	maxPath    = 200
	maxPathKey = 60
)

// within puts e's path into the member key of an object.
func (e *ValueError) within(key string) *ValueError {
	if len(key) > maxPathKey {
		key = cut(key, maxPathKey)
	}
	if !plainKey(key) {
		key = "[" + strconv.Quote(key) + "]"
	}
	if e.Path != "" && e.Path[0] != '[' {
		key += "."
	}
	e.Path = cut(key+e.Path, maxPath)
	return e
}

// at puts e's path into element i of an array.
func (e *ValueError) at(i int) *ValueError {
	index := "[" + strconv.Itoa(i) + "]"
	if e.Path != "" && e.Path[0] != '[' {
		index += "."
	}
	e.Path = cut(index+e.Path, maxPath)
	return e
}

// cut shortens s to about limit bytes, at the start of a character.
func cut(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	for limit > 0 && !utf8.RuneStart(s[limit]) {
		limit--
	}
	return s[:limit] + "…"
}

// plainKey reports whether key can stand in a path without quotes.
func plainKey(key string) bool {
	for _, c := range key {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9',
			c == '_', c == '$', c == '-', c == '…':
		default:
			return false
		}
	}
	return key != ""
}
