package esjson

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// ErrDepth says that a value is nested deeper than MaxDepth. errors.Is finds it in a
// *SyntaxError or *ValueError with this problem. A cyclic Go value has this problem, too.
var ErrDepth = errors.New(problemDepth)

// ErrLong says that the output would be longer than the limit that the caller has
// passed; see AppendMember.
var ErrLong = errors.New("longer than allowed")

const problemDepth = "nested deeper than 1000 levels"

// A SyntaxError says why and where a text is not JSON, or is not the kind of JSON value
// that the function expects. It never repeats the text.
type SyntaxError struct {
	// Offset is the position in the source at which the problem was found, in bytes.
	Offset int
	// Problem says what is wrong there, such as "unexpected end".
	Problem string
}

func (e *SyntaxError) Error() string {
	return fmt.Sprintf("invalid JSON at byte %d: %s", e.Offset, e.Problem)
}

// Is reports whether target is ErrDepth and e refuses nesting deeper than MaxDepth.
func (e *SyntaxError) Is(target error) bool {
	return target == ErrDepth && e.Problem == problemDepth
}

// A ValueError says why and where a Go value has no JSON form.
type ValueError struct {
	// Path leads from the value passed in to the part that was refused, such as
	// `cart[3].price` or `["a key"][0]`. A very long path is cut. If the value passed in
	// was itself refused, Path is empty.
	Path string
	// Problem says what is wrong there, such as "not a number".
	Problem string
	// Err is the cause, or nil: the error of a Marshaler, or a *SyntaxError in a
	// json.RawMessage.
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

// maxPath and maxPathKey bound a path and each key in it, in bytes. Paths are written to
// logs, and keys may be of any length.
const (
	maxPath    = 200
	maxPathKey = 60
)

// within prepends the key of an object's member to e's path.
func (e *ValueError) within(key string) *ValueError {
	key = cut(key, maxPathKey)
	if strings.Trim(key, plainKey) != "" || key == "" {
		key = "[" + strconv.Quote(key) + "]"
	}
	return e.prepend(key)
}

// plainKey has the characters of the keys that a path shows without quotes, as in cart.price.
const plainKey = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_$-…"

// at prepends the index of an array's element to e's path.
func (e *ValueError) at(i int) *ValueError { return e.prepend("[" + strconv.Itoa(i) + "]") }

func (e *ValueError) prepend(step string) *ValueError {
	if e.Path != "" && e.Path[0] != '[' {
		step += "."
	}
	e.Path = cut(step+e.Path, maxPath)
	return e
}

// cut shortens s to about limit bytes without splitting a character.
func cut(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	for limit > 0 && !utf8.RuneStart(s[limit]) {
		limit--
	}
	return s[:limit] + "…"
}
