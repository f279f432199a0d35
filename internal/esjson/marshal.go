package esjson

import (
	"encoding"
	"encoding/json"
	"fmt"
	"reflect"
	"strconv"
)

// reflected appends a value by reflection, according to its kind, or refuses its type. The type of
// the value must not be a Marshaler.
func (e *encoder) reflected(dst []byte, rv reflect.Value, depth int) ([]byte, *ValueError) {
	switch rv.Kind() {
	case reflect.Bool:
		return appendBool(dst, rv.Bool()), nil
	case reflect.String:
		if rv.Type() == jsonNumber {
			return e.jsonNumber(dst, rv.String())
		}
		return e.text(dst, rv.String())
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
	case reflect.Struct:
		return e.structure(dst, rv, depth)
	}
	return dst, unsupported(rv.Type())
}

// unsupported returns the error for a value whose type has no JSON form.
func unsupported(t reflect.Type) *ValueError {
	return &ValueError{Problem: "unsupported type: " + t.String()}
}

// pointer appends the value that rv points to. If the value is a struct or an array, it has an
// address, and so have its fields or elements. So their methods with a pointer receiver are found.
func (e *encoder) pointer(dst []byte, rv reflect.Value, depth int) ([]byte, *ValueError) {
	// Pointers add no level to the output, but they may form a cycle.
	for range MaxDepth {
		if rv.IsNil() {
			return append(dst, "null"...), nil
		}
		rv = rv.Elem()
		k := rv.Kind()
		switch {
		case isMarshaler(rv.Type()):
			return e.value(dst, rv.Interface(), depth)
		case k != reflect.Pointer && k != reflect.Interface:
			return e.reflected(dst, rv, depth)
		}
	}
	return dst, tooDeep()
}

var (
	mapStringAny = reflect.TypeFor[map[string]any]()
	jsonNumber   = reflect.TypeFor[json.Number]()
)

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
		return dst, unsupported(t)
	}
	if !e.fits(dst, minMember*rv.Len()) {
		return e.tooLong(dst)
	}
	first := len(e.entries)
	for iter := rv.MapRange(); iter.Next(); {
		key, err := name(iter.Key())
		if err != nil {
			return dst, err
		}
		e.add(key, iter.Value().Interface())
	}
	e.mended = e.mended || t.Key().Implements(textMarshaler) // MarshalText may return the same text for two keys
	return e.sorted(dst, first, depth, nil)
}

// keyName returns a function that returns the text of a map key of type t. It returns nil
// if such keys have no text.
func keyName(t reflect.Type) func(reflect.Value) (string, *ValueError) {
	switch k := t.Kind(); {
	case k == reflect.String:
		return func(v reflect.Value) (string, *ValueError) { return v.String(), nil }
	case t.Implements(textMarshaler):
		return func(v reflect.Value) (string, *ValueError) {
			if (k == reflect.Pointer || k == reflect.Interface) && v.IsNil() {
				return "", nil
			}
			text, err := guard("MarshalText: ", v.Interface().(encoding.TextMarshaler).MarshalText)
			return string(text), err
		}
	case reflect.Int <= k && k <= reflect.Int64:
		return func(v reflect.Value) (string, *ValueError) { return strconv.FormatInt(v.Int(), 10), nil }
	case reflect.Uint <= k && k <= reflect.Uintptr:
		return func(v reflect.Value) (string, *ValueError) { return strconv.FormatUint(v.Uint(), 10), nil }
	}
	return nil
}

func (e *encoder) reflectedSlice(dst []byte, rv reflect.Value, depth int) ([]byte, *ValueError) {
	if rv.Kind() == reflect.Slice {
		if rv.IsNil() {
			return append(dst, "null"...), nil
		}
		if t := rv.Type().Elem(); t.Kind() == reflect.Uint8 && !isMarshaler(reflect.PointerTo(t)) {
			return e.base64(dst, rv.Bytes())
		}
	}
	if depth >= MaxDepth {
		return dst, tooDeep()
	}
	if !e.fits(dst, 2*rv.Len()) {
		return e.tooLong(dst)
	}
	dst = append(dst, '[')
	for i := range rv.Len() {
		if i > 0 {
			dst = append(dst, ',')
		}
		var err *ValueError
		if dst, err = e.value(dst, addressed(rv.Index(i)).Interface(), depth+1); err != nil {
			return dst, err.at(i)
		}
		if !e.fits(dst, 0) {
			return e.tooLong(dst)
		}
	}
	return append(dst, ']'), nil
}

var (
	jsonMarshaler = reflect.TypeFor[json.Marshaler]()
	textMarshaler = reflect.TypeFor[encoding.TextMarshaler]()
)

func isMarshaler(t reflect.Type) bool {
	return t.NumMethod() > 0 && (t.Implements(jsonMarshaler) || t.Implements(textMarshaler)) // most types have no methods
}

func isNilPointer(v any) bool {
	rv := reflect.ValueOf(v)
	return rv.Kind() == reflect.Pointer && rv.IsNil()
}

func (e *encoder) marshaler(dst []byte, m json.Marshaler, depth int) ([]byte, *ValueError) {
	if isNilPointer(m) {
		return append(dst, "null"...), nil
	}
	text, err := guard("MarshalJSON: ", m.MarshalJSON)
	if err != nil {
		return dst, err
	}
	return e.raw(dst, text, depth)
}

func (e *encoder) textMarshaler(dst []byte, m encoding.TextMarshaler) ([]byte, *ValueError) {
	if isNilPointer(m) {
		return append(dst, "null"...), nil
	}
	text, err := guard("MarshalText: ", m.MarshalText)
	if err != nil {
		return dst, err
	}
	return e.text(dst, string(text))
}

// guard calls marshal, a method of the caller's type, and turns a panic into an error. All
// errors of guard start with prefix.
func guard(prefix string, marshal func() ([]byte, error)) (text []byte, err *ValueError) {
	defer func() {
		if r := recover(); r != nil {
			text, err = nil, &ValueError{Problem: fmt.Sprintf("%spanic: %v", prefix, r)}
		}
	}()
	text, failed := marshal()
	if failed != nil {
		return nil, &ValueError{Problem: prefix + failed.Error(), Err: failed}
	}
	return text, nil
}
