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
	var failed error
	err := members(src, func(key []byte, i int) (int, *SyntaxError) {
		end, err := skip(src, i, MaxDepth-1)
		if err == nil {
			if failed = fn(key, src[i:end:end]); failed != nil {
				err = stopped
			}
		}
		return end, err
	})
	if failed != nil {
		return failed
	}
	return err
}

// AppendMembers is Members for callers that write the values somewhere: fn is also
// given the form of each, which is what Append makes of the value. If the value is
// in that form already, form is a part of src; else it is appended to dst, which
// AppendMembers returns. So a form is valid as long as neither src nor the array of
// dst is changed.
func AppendMembers(dst, src []byte, fn func(key, value, form []byte) error) ([]byte, error) {
	c := copiers.Get().(*copier)
	defer c.release()
	c.src, c.dst = src, dst
	var failed error
	err := members(src, func(key []byte, i int) (int, *SyntaxError) {
		form, end, err := c.form(i, 1)
		if err == nil {
			if failed = fn(key, src[i:end:end], form); failed != nil {
				err = stopped
			}
		}
		return end, err
	})
	if failed != nil {
		err = failed
	}
	return c.dst, err
}

// Outline is Members for an object whose values may be nested deeper than
// MaxDepth: whoever takes them apart in turn finds that out for each. Of a value
// that is an array it calls element for each of its elements first, with the part
// of src that holds it.
func Outline(src []byte, element func(value []byte), fn func(key, value []byte) error) error {
	var failed error
	err := members(src, func(key []byte, i int) (end int, err *SyntaxError) {
		if i < len(src) && src[i] == '[' {
			end, err = skipElements(src, i, func(i int) (int, *SyntaxError) {
				end, err := skip(src, i, anyDepth)
				if err == nil {
					element(src[i:end:end])
				}
				return end, err
			})
		} else {
			end, err = skip(src, i, anyDepth)
		}
		if err == nil {
			if failed = fn(key, src[i:end:end]); failed != nil {
				err = stopped
			}
		}
		return end, err
	})
	if failed != nil {
		return failed
	}
	return err
}

// anyDepth is a limit to nesting that no text reaches.
const anyDepth = math.MaxInt

// stopped ends a walk for an error of the caller's function.
var stopped = new(SyntaxError)

// members calls each with the text of every key of the object src and where its
// value should start; each returns where that ends.
func members(src []byte, each func(key []byte, i int) (int, *SyntaxError)) error {
	start := skipSpace(src, 0)
	switch {
	case start >= len(src):
		return unexpected(src, start)
	case src[start] != '{':
		return &SyntaxError{start, "not an object"}
	}
	var text []byte
	end, err := skipMembers(src, start, func(key, keyEnd, value int) (int, *SyntaxError) {
		name := src[key+1 : keyEnd-1 : keyEnd-1]
		if !verbatim(name) {
			text = appendText(text[:0], name)
			name = text
		}
		return each(name, value)
	})
	return closed(src, end, err)
}

// Check returns nil if src is a JSON text, white space around it allowed, in
// which arrays and objects are nested MaxDepth deep at most, and what is wrong,
// a *SyntaxError, if it is not.
func Check(src []byte) error {
	end, err := skip(src, skipSpace(src, 0), MaxDepth)
	return closed(src, end, err)
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
