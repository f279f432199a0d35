package esjson

import (
	"bytes"
	"encoding"
	"encoding/base64"
	"encoding/json"
	"math"
	"reflect"
	"sync"
	"time"

	"github.com/hookferry/analytics/internal/isotime"
)

// AppendValue appends the JSON of the Go value v in the form of this package. It follows
// the rules that encoding/json documents, but does not use that package: its output and
// its errors are the same with every Go release. There are a few differences:
//
//   - the keys of a map that are array indices come first, in ascending order; the
//     others follow in the order of their bytes;
//   - a time.Time is written in UTC with milliseconds, as isotime.Append does;
//   - an integer beyond 2^53 is rounded to a double;
//   - if a method of a value panics, AppendValue returns an error.
//
// On error, a *ValueError, AppendValue returns dst unchanged. It keeps no reference to any
// part of v. For maps and slices of basic values it allocates nothing, apart from growing
// dst.
func AppendValue(dst []byte, v any) ([]byte, error) {
	return appendValue(dst, v, 0, math.MaxInt)
}

// AppendMember does the same as AppendValue, for the value of a member of an object that
// the caller writes. This object counts as one level towards MaxDepth. The result,
// including dst, may have at most limit bytes. AppendMember returns dst and ErrLong as soon
// as it is certain that the result would be longer. So even a huge value costs at most a
// small multiple of limit in time and memory. The text of a json.RawMessage, a json.Number
// or a Marshaler counts only a quarter of its length, as it may hold white space or
// needless digits.
func AppendMember(dst []byte, v any, limit int) ([]byte, error) {
	return appendValue(dst, v, 1, limit)
}

// appendValue appends v inside depth arrays and objects.
func appendValue(dst []byte, v any, depth, limit int) ([]byte, error) {
	e := encoders.Get().(*encoder)
	defer e.release()
	e.limit = limit
	out, err := e.value(dst, v, depth)
	if e.long {
		return dst, ErrLong
	}
	if err != nil {
		return dst, err
	}
	if e.mended {
		// Replacing invalid UTF-8, or MarshalText, may have made two different keys of a map
		// equal. Append keeps only the last value of each key.
		return Append(dst, bytes.Clone(out[len(dst):]))
	}
	return out, nil
}

// An encoder holds the state that is needed to write maps.
type encoder struct {
	// entries and ranks belong to all maps that are being written. Those of outer maps come
	// before those of inner maps.
	entries []entry
	ranks   []uint64 // see rankOf and sort
	// mended reports that two keys may be equal, because invalid UTF-8 in a key was replaced
	// or because MarshalText made the keys.
	mended bool
	limit  int  // the bound of the output's length, dst included
	long   bool // the limit was exceeded
}

// fits reports whether n more bytes are within the limit.
func (e *encoder) fits(dst []byte, n int) bool { return n <= e.limit-len(dst) }

// tooLong records that the limit was exceeded and returns the error.
func (e *encoder) tooLong(dst []byte) ([]byte, *ValueError) {
	e.long = true
	return dst, &ValueError{Problem: ErrLong.Error(), Err: ErrLong}
}

// text appends the string s.
func (e *encoder) text(dst []byte, s string) ([]byte, *ValueError) {
	if !e.fits(dst, len(s)) {
		return e.tooLong(dst)
	}
	return AppendString(dst, s), nil
}

var encoders = sync.Pool{New: func() any { return new(encoder) }}

func (e *encoder) release() {
	clear(e.entries) // after an error, entries may be left
	e.entries, e.ranks, e.mended, e.long = e.entries[:0], e.ranks[:0], false, false
	if cap(e.entries) <= maxKept {
		encoders.Put(e)
	}
}

// value appends v inside depth arrays and objects. It handles the most frequent types.
func (e *encoder) value(dst []byte, v any, depth int) ([]byte, *ValueError) {
	switch v := v.(type) {
	case nil:
		return append(dst, "null"...), nil
	case string:
		return e.text(dst, v)
	case bool:
		return appendBool(dst, v), nil
	case int:
		return appendInt(dst, int64(v)), nil
	case int64:
		return appendInt(dst, v), nil
	case float64:
		return appendNumeric(dst, v, 64)
	case map[string]any:
		return e.object(dst, v, depth)
	}
	return e.otherValue(dst, v, depth)
}

// otherValue does the same as the method value, for the types that value does not handle.
func (e *encoder) otherValue(dst []byte, v any, depth int) ([]byte, *ValueError) {
	switch v := v.(type) {
	case json.RawMessage:
		if v == nil {
			return append(dst, "null"...), nil
		}
		return e.raw(dst, v, depth)
	case time.Time:
		return appendTime(dst, v)
	case []byte:
		if v == nil {
			return append(dst, "null"...), nil
		}
		return e.base64(dst, v)

	case map[string]string:
		return appendMap(e, dst, v, depth, e.text)
	case map[string]bool:
		return appendMap(e, dst, v, depth, func(dst []byte, b bool) ([]byte, *ValueError) { return appendBool(dst, b), nil })
	case map[string]int:
		return appendMap(e, dst, v, depth, func(dst []byte, n int) ([]byte, *ValueError) { return appendInt(dst, int64(n)), nil })
	case map[string]int64:
		return appendMap(e, dst, v, depth, func(dst []byte, n int64) ([]byte, *ValueError) { return appendInt(dst, n), nil })
	case map[string]float64:
		return appendMap(e, dst, v, depth, func(dst []byte, f float64) ([]byte, *ValueError) { return appendNumeric(dst, f, 64) })
	case map[string][]string:
		return appendMap(e, dst, v, depth, func(dst []byte, s []string) ([]byte, *ValueError) { return appendSlice(e, dst, s, depth+1, e.text) })

	case []any:
		return appendSlice(e, dst, v, depth, func(dst []byte, v any) ([]byte, *ValueError) { return e.value(dst, v, depth+1) })
	case []map[string]any:
		return appendSlice(e, dst, v, depth, func(dst []byte, m map[string]any) ([]byte, *ValueError) { return e.object(dst, m, depth+1) })
	case []string:
		return appendSlice(e, dst, v, depth, e.text)
	case []bool:
		return appendSlice(e, dst, v, depth, func(dst []byte, b bool) ([]byte, *ValueError) { return appendBool(dst, b), nil })
	case []int:
		return appendSlice(e, dst, v, depth, func(dst []byte, n int) ([]byte, *ValueError) { return appendInt(dst, int64(n)), nil })
	case []int64:
		return appendSlice(e, dst, v, depth, func(dst []byte, n int64) ([]byte, *ValueError) { return appendInt(dst, n), nil })
	case []float64:
		return appendSlice(e, dst, v, depth, func(dst []byte, f float64) ([]byte, *ValueError) { return appendNumeric(dst, f, 64) })

	case *time.Time: // a Marshaler, too
		if v != nil {
			return appendTime(dst, *v)
		}
		return append(dst, "null"...), nil

	case json.Marshaler:
		return e.marshaler(dst, v, depth)
	case encoding.TextMarshaler:
		return e.textMarshaler(dst, v)
	}
	return e.reflected(dst, reflect.ValueOf(v), depth)
}

func appendBool(dst []byte, b bool) []byte {
	if b {
		return append(dst, "true"...)
	}
	return append(dst, "false"...)
}

// A double can represent every integer from -maxExact to maxExact.
const maxExact = 1 << 53

// appendNumeric appends f, a float of the given number of bits. It refuses NaN and
// infinities.
func appendNumeric(dst []byte, f float64, bits int) ([]byte, *ValueError) {
	switch {
	case math.IsNaN(f):
		return dst, &ValueError{Problem: "not a number"}
	case math.IsInf(f, 0):
		return dst, &ValueError{Problem: "infinite"}
	case bits == 64:
		return AppendFloat(dst, f), nil
	}
	return appendFloat(dst, f, bits), nil
}

func (e *encoder) jsonNumber(dst []byte, n string) ([]byte, *ValueError) {
	if n == "" {
		return append(dst, '0'), nil // as encoding/json does
	}
	if !e.fits(dst, len(n)/4) {
		return e.tooLong(dst)
	}
	b := bytesOf(n)
	if b[0] != '-' && !isDigit(b[0]) {
		return dst, &ValueError{Problem: "json.Number that is no number"}
	}
	end, canonical, err := skipNumber(b, 0)
	switch {
	case err != nil || end < len(b):
		return dst, &ValueError{Problem: "json.Number that is no number"}
	case canonical:
		return append(dst, n...), nil
	}
	return appendNumber(dst, b), nil
}

func appendTime(dst []byte, t time.Time) ([]byte, *ValueError) {
	const year0, year10000 = -62167219200, 253402300800 // the start of each year, in seconds since 1970
	if second := t.Unix(); second < year0 || second >= year10000 {
		return dst, &ValueError{Problem: "time of a year outside 0 to 9999"}
	}
	dst = append(dst, '"')
	dst = isotime.Append(dst, t)
	return append(dst, '"'), nil
}

func (e *encoder) base64(dst, b []byte) ([]byte, *ValueError) {
	if !e.fits(dst, len(b)) {
		return e.tooLong(dst)
	}
	dst = append(dst, '"')
	dst = base64.StdEncoding.AppendEncode(dst, b)
	return append(dst, '"'), nil
}

func (e *encoder) raw(dst, raw []byte, depth int) ([]byte, *ValueError) {
	if !e.fits(dst, len(raw)/4) {
		return e.tooLong(dst)
	}
	out, err := appendAt(dst, raw, depth)
	if err != nil {
		return dst, &ValueError{Problem: err.Error(), Err: err}
	}
	return out, nil
}

// appendSlice appends s. It calls the function element to append each element of s.
func appendSlice[V any](e *encoder, dst []byte, s []V, depth int, element func([]byte, V) ([]byte, *ValueError)) ([]byte, *ValueError) {
	if s == nil {
		return append(dst, "null"...), nil
	}
	if depth >= MaxDepth {
		return dst, tooDeep()
	}
	if !e.fits(dst, 2*len(s)) {
		return e.tooLong(dst)
	}
	dst = append(dst, '[')
	for i, v := range s {
		if i > 0 {
			dst = append(dst, ',')
		}
		var err *ValueError
		if dst, err = element(dst, v); err != nil {
			return dst, err.at(i)
		}
		if !e.fits(dst, 0) {
			return e.tooLong(dst)
		}
	}
	return append(dst, ']'), nil
}

func tooDeep() *ValueError { return &ValueError{Problem: problemDepth, Err: ErrDepth} }
