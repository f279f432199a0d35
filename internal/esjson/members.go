package esjson

import (
	"math"
	"unicode/utf8"
)

// Members calls fn for every member of the JSON object src, in the order of the source and
// including duplicate keys. White space around src is allowed. The key is decoded to UTF-8
// as AppendText does it, and is valid during the call only. The value is a part of src,
// without white space around it.
//
// Members checks all of src, including the depth, while it calls fn. So if it finds a
// problem, it has already called fn for the members before the problem. It stops at the
// first error of fn and returns that error unchanged. Its own errors are of type
// *SyntaxError.
func Members(src []byte, fn func(key, value []byte) error) error {
	return members(src, func(i int) (form []byte, end int, err *SyntaxError) {
		end, err = skip(src, i, MaxDepth-1)
		return nil, end, err
	}, func(key, value, _ []byte) error { return fn(key, value) })
}

// AppendMembers does the same as Members, and also passes fn the canonical form of each
// value: the text that Append would write. AppendMembers is for callers that write the
// values to some output. If a value already is in canonical form, the form is a part of
// src. Otherwise the form is appended to dst, and AppendMembers returns the extended dst.
// So a form is valid until src or the array of dst is changed.
func AppendMembers(dst, src []byte, fn func(key, value, form []byte) error) ([]byte, error) {
	c := copiers.Get().(*copier)
	defer c.release()
	c.src, c.dst = src, dst
	err := members(src, func(i int) ([]byte, int, *SyntaxError) { return c.form(i, 1) }, fn)
	return c.dst, err
}

// Outline does the same as Members, but the values may be nested deeper than MaxDepth. If
// the caller reads into a value, it has to check the depth of the value. If a value is an
// array, Outline calls element for each of its elements before it calls fn for the array.
func Outline(src []byte, element func(value []byte), fn func(key, value []byte) error) error {
	return members(src, func(i int) (form []byte, end int, err *SyntaxError) {
		if i >= len(src) || src[i] != '[' {
			end, err = skip(src, i, anyDepth)
			return nil, end, err
		}
		end, err = skipItems(src, i, ']', func(i int) (int, *SyntaxError) {
			end, err := skip(src, i, anyDepth)
			if err == nil {
				element(src[i:end:end])
			}
			return end, err
		})
		return nil, end, err
	}, func(key, value, _ []byte) error { return fn(key, value) })
}

// anyDepth is a limit of nesting that no text reaches.
const anyDepth = math.MaxInt

// members reads the object src. For each member it calls the function read, with the offset at which
// the value should start, and then fn with what read has found. It returns the error of fn unchanged.
func members(src []byte, read func(i int) (form []byte, end int, err *SyntaxError), fn func(key, value, form []byte) error) error {
	start := skipSpace(src, 0)
	switch {
	case start >= len(src):
		return unexpected(src, start)
	case src[start] != '{':
		return &SyntaxError{start, "not an object"}
	}
	var text []byte
	var failed error
	end, err := skipItems(src, start, '}', func(i int) (int, *SyntaxError) {
		keyEnd, value, err := skipKey(src, i)
		if err != nil {
			return i, err
		}
		name := src[i+1 : keyEnd-1 : keyEnd-1]
		if !verbatim(name) {
			text = appendText(text[:0], name)
			name = text
		}
		form, end, err := read(value)
		if err == nil {
			if failed = fn(name, src[value:end:end], form); failed != nil {
				err = stopped
			}
		}
		return end, err
	})
	if failed != nil {
		return failed
	}
	return closed(src, end, err)
}

// stopped makes skipItems stop after the caller's function has returned an error.
var stopped = new(SyntaxError)

// Check returns nil if src is a JSON text whose arrays and objects are nested at most
// MaxDepth deep. White space around it is allowed. Otherwise it returns a *SyntaxError.
func Check(src []byte) error {
	end, err := skip(src, skipSpace(src, 0), MaxDepth)
	return closed(src, end, err)
}

// closed completes the check of a text whose value ends at end. If err is not nil, it
// returns err. Otherwise it checks that only white space follows the value.
func closed(src []byte, end int, err *SyntaxError) error {
	if err != nil {
		return err
	}
	if end = skipSpace(src, end); end < len(src) {
		return &SyntaxError{end, problemTrailing}
	}
	return nil
}

// verbatim reports whether s, a JSON string without its quotes, is already the text that
// the string stands for.
func verbatim(s []byte) bool {
	for i := plain(s, 0); i < len(s); i = plain(s, i) {
		if s[i] < utf8.RuneSelf {
			return false
		}
		i = wellFormed(s, i)
		if i < len(s) && s[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}
