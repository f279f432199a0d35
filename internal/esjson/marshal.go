package esjson

import (
	"encoding"
	"encoding/json"
	"fmt"
	"reflect"
	"strconv"
	"strings"
)

// reflected appends a value whose type says nothing by itself: by its kind if
// that is simple, and else as encoding/json encodes it.
func (e *encoder) reflected(dst []byte, v any, depth int) ([]byte, *ValueError) {
	rv := reflect.ValueOf(v)
	switch rv.Kind() {
	case reflect.Bool:
		return appendBool(dst, rv.Bool()), nil
	case reflect.String:
		return AppendString(dst, rv.String()), nil
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return appendInt(dst, rv.Int()), nil
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Uintptr:
		return appendUint(dst, rv.Uint()), nil
	case reflect.Float32, reflect.Float64:
		return appendNumeric(dst, rv.Float(), rv.Type().Bits())
	case reflect.Pointer:
		return e.pointer(dst, rv, depth)
	case reflect.Map:
		return e.reflectedMap(dst, rv, depth)
	case reflect.Slice, reflect.Array:
		return e.reflectedSlice(dst, rv, depth)
	}
	return appendMarshaled(dst, v, depth)
}

// pointer appends what the pointer rv leads to.
func (e *encoder) pointer(dst []byte, rv reflect.Value, depth int) ([]byte, *ValueError) {
	// Pointers do not nest anything, yet they may go round in circles.
	for range MaxDepth {
		if rv.IsNil() {
			return append(dst, "null"...), nil
		}
		to := rv.Elem()
		switch {
		case isMarshaler(to.Type()):
		case to.Kind() == reflect.Pointer || to.Kind() == reflect.Interface:
			rv = to
			continue
		case to.Kind() == reflect.Struct || to.Kind() == reflect.Array:
			// Through the pointer encoding/json finds the methods of fields
			// and elements that have a pointer receiver.
			return appendMarshaled(dst, rv.Interface(), depth)
		}
		return e.value(dst, to.Interface(), depth)
	}
	return dst, tooDeep()
}

var mapStringAny = reflect.TypeFor[map[string]any]()

func (e *encoder) reflectedMap(dst []byte, rv reflect.Value, depth int) ([]byte, *ValueError) {
	t := rv.Type()
	if t.ConvertibleTo(mapStringAny) {
		return e.object(dst, rv.Convert(mapStringAny).Interface().(map[string]any), depth)
	}
	if rv.IsNil() {
		return append(dst, "null"...), nil
	}
	name := keyName(t.Key())
	if name == nil {
		return appendMarshaled(dst, rv.Interface(), depth)
	}
	first := len(e.entries)
	for iter := rv.MapRange(); iter.Next(); {
		e.add(name(iter.Key()), iter.Value().Interface())
	}
	return e.sorted(dst, first, depth)
}

// keyName returns what encoding/json makes of map keys of type t, or nil where
// it takes a method to know.
func keyName(t reflect.Type) func(reflect.Value) string {
	switch k := t.Kind(); {
	case k == reflect.String:
		return reflect.Value.String
	case isMarshaler(t):
		return nil
	case reflect.Int <= k && k <= reflect.Int64:
		return func(v reflect.Value) string { return strconv.FormatInt(v.Int(), 10) }
	case reflect.Uint <= k && k <= reflect.Uintptr:
		return func(v reflect.Value) string { return strconv.FormatUint(v.Uint(), 10) }
	}
	return nil
}

func (e *encoder) reflectedSlice(dst []byte, rv reflect.Value, depth int) ([]byte, *ValueError) {
	if rv.Kind() == reflect.Slice {
		if rv.IsNil() {
			return append(dst, "null"...), nil
		}
		if t := rv.Type().Elem(); t.Kind() == reflect.Uint8 && !isMarshaler(reflect.PointerTo(t)) {
			return appendBase64(dst, rv.Bytes()), nil
		}
	}
	if depth >= MaxDepth {
		return dst, tooDeep()
	}
	dst = append(dst, '[')
	for i := range rv.Len() {
		if i > 0 {
			dst = append(dst, ',')
		}
		v := rv.Index(i)
		switch v.Kind() {
		case reflect.Interface, reflect.Pointer, reflect.Map:
		default:
			if v.CanAddr() { // for methods that have a pointer receiver
				v = v.Addr()
			}
		}
		var err *ValueError
		if dst, err = e.value(dst, v.Interface(), depth+1); err != nil {
			return dst, err.at(i)
		}
	}
	return append(dst, ']'), nil
}

var (
	jsonMarshaler = reflect.TypeFor[json.Marshaler]()
	textMarshaler = reflect.TypeFor[encoding.TextMarshaler]()
)

func isMarshaler(t reflect.Type) bool {
	return t.Implements(jsonMarshaler) || t.Implements(textMarshaler)
}

func isNilPointer(v any) bool {
	rv := reflect.ValueOf(v)
	return rv.Kind() == reflect.Pointer && rv.IsNil()
}

func appendMarshaler(dst []byte, m json.Marshaler, depth int) ([]byte, *ValueError) {
	if isNilPointer(m) {
		return append(dst, "null"...), nil
	}
	text, err := guard("MarshalJSON: ", m.MarshalJSON)
	if err != nil {
		return dst, err
	}
	return appendRaw(dst, text, depth)
}

func appendTextMarshaler(dst []byte, m encoding.TextMarshaler) ([]byte, *ValueError) {
	if isNilPointer(m) {
		return append(dst, "null"...), nil
	}
	text, err := guard("MarshalText: ", m.MarshalText)
	if err != nil {
		return dst, err
	}
	return AppendString(dst, string(text)), nil
}

func appendMarshaled(dst []byte, v any, depth int) ([]byte, *ValueError) {
	text, err := guard("", func() ([]byte, error) { return json.Marshal(v) })
	if err != nil {
		return dst, err
	}
	return appendRaw(dst, text, depth)
}

// guard calls marshal, which may run anybody's code, and turns a panic into an
// error. What it reports starts with prefix.
func guard(prefix string, marshal func() ([]byte, error)) (text []byte, err *ValueError) {
	defer func() {
		if r := recover(); r != nil {
			text, err = nil, &ValueError{Problem: fmt.Sprintf("%spanic: %v", prefix, r)}
		}
	}()
	text, failed := marshal()
	if failed != nil {
		problem := strings.TrimPrefix(failed.Error(), "json: ")
		return nil, &ValueError{Problem: prefix + problem, Err: failed}
	}
	return text, nil
}
