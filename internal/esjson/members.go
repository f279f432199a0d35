package esjson

import (
	"math"
	"unicode/utf8"
)

// Members calls fn for every member of the JSON object src, white space around
// it allowed, in the order of the source and with every duplicate of a key. The
// key is decoded to UTF-8 as by AppendText and valid during the call only; the
// value is the part of src that holds it, without the white space around it.
//
// Members checks the whole of src, depth included, as it goes: fn may have been
// called for members that precede the problem. It stops at the first error of
// fn and returns it as it is; its own are a *SyntaxError.
func Members(src []byte, fn func(key, value []byte) error) error {
	return members(src, MaxDepth-1, fn)
}

// MembersAnyDepth is Members for an object whose values may be nested deeper
// than MaxDepth. Whoever takes them apart in turn finds that out for each.
func MembersAnyDepth(src []byte, fn func(key, value []byte) error) error {
	return members(src, anyDepth, fn)
}

func members(src []byte, limit int, fn func(key, value []byte) error) error {
	start, err := open(src, '{', "not an object")
	if err != nil {
		return err
	}
	var failed error
	var text []byte
	end, err := skipMembers(src, start, limit, func(key, keyEnd, value, valueEnd int) bool {
		name := src[key+1 : keyEnd-1 : keyEnd-1]
		if !verbatim(name) {
			text = appendText(text[:0], name)
			name = text
		}
		failed = fn(name, src[value:valueEnd:valueEnd])
		return failed == nil
	})
	if failed != nil {
		return failed
	}
	return closed(src, end, err)
}

// Elements calls fn for every element of the JSON array src, white space around
// it allowed, in order, with the part of src that holds it. In all else it is
// as Members.
func Elements(src []byte, fn func(value []byte) error) error {
	return elements(src, MaxDepth-1, fn)
}

// ElementsAnyDepth is to Elements what MembersAnyDepth is to Members.
func ElementsAnyDepth(src []byte, fn func(value []byte) error) error {
	return elements(src, anyDepth, fn)
}

func elements(src []byte, limit int, fn func(value []byte) error) error {
	start, err := open(src, '[', "not an array")
	if err != nil {
		return err
	}
	var failed error
	end, err := skipElements(src, start, limit, func(value, valueEnd int) bool {
		failed = fn(src[value:valueEnd:valueEnd])
		return failed == nil
	})
	if failed != nil {
		return failed
	}
	return closed(src, end, err)
}

// anyDepth is a limit to nesting that no text reaches.
const anyDepth = math.MaxInt

// Check returns nil if src is a JSON text, white space around it allowed, in
// which arrays and objects are nested MaxDepth deep at most, and what is wrong,
// a *SyntaxError, if it is not.
func Check(src []byte) error {
	end, err := skip(src, skipSpace(src, 0), MaxDepth)
	return closed(src, end, err)
}

// open finds the bracket that src should start with.
func open(src []byte, bracket byte, problem string) (int, *SyntaxError) {
	i := skipSpace(src, 0)
	if i >= len(src) {
		return i, unexpected(src, i)
	}
	if src[i] != bracket {
		return i, &SyntaxError{i, problem}
	}
	return i, nil
}

// closed checks that nothing follows the value that ended, without err, at end.
func closed(src []byte, end int, err *SyntaxError) error {
	if err != nil {
		return err
	}
	if end = skipSpace(src, end); end < len(src) {
		return &SyntaxError{end, problemTrailing}
	}
	return nil
}

// verbatim reports whether the inside of a string is its own text.
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
