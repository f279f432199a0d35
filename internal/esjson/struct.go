package esjson

import (
	"cmp"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode"
)

// Structs are written here and not by encoding/json and Append after it, which would take half of the
// code and twice the time. Only so a time in a struct has the form of all times, an error names the
// field, and a value that is too long costs a multiple of the limit and not of its own length.

// A field describes one member of the JSON object for a struct type.
type field struct {
	name      string
	key       string // the name as written in JSON, with the quotes and the colon
	index     []int  // the path for reflect, through embedded structs
	tagged    bool   // the name comes from a tag
	omitEmpty bool
	isZero    func(reflect.Value) bool // reports whether omitzero omits the value; nil without that option
	quoted    bool
}

var fieldCache sync.Map // map of reflect.Type to []field

// fieldsOf returns the fields of the struct type t in output order. It follows the rules
// that encoding/json documents for names, tag options and embedded structs.
func fieldsOf(t reflect.Type) []field {
	if known, ok := fieldCache.Load(t); ok {
		return known.([]field)
	}
	fields := dominant(visible(t))
	slices.SortFunc(fields, func(a, b field) int {
		return cmp.Or(cmp.Compare(arrayIndex(bytesOf(a.name)), arrayIndex(bytesOf(b.name))), slices.Compare(a.index, b.index))
	})
	known, _ := fieldCache.LoadOrStore(t, fields)
	return known.([]field)
}

// An embedded is a struct type in which the function visible looks for fields. It is the argument
// of visible, or a struct that is embedded in that type.
type embedded struct {
	t     reflect.Type
	index []int
	twice bool // the struct is embedded more than once at its depth
}

// visible returns all fields of t and of the structs embedded in it.
func visible(t reflect.Type) (fields []field) {
	visited := map[reflect.Type]bool{}
	for level := []embedded{{t: t}}; len(level) > 0; {
		var next []embedded
		for _, s := range level {
			if visited[s.t] {
				continue
			}
			visited[s.t] = true
			for i := range s.t.NumField() {
				f := s.t.Field(i)
				to := f.Type // the type of f, or its element type if it is an unnamed pointer type
				if to.Name() == "" && to.Kind() == reflect.Pointer {
					to = to.Elem()
				}
				tag := f.Tag.Get("json")
				if tag == "-" || !f.IsExported() && !(f.Anonymous && to.Kind() == reflect.Struct) {
					continue
				}
				name, options, _ := strings.Cut(tag, ",")
				if !validName(name) {
					name = ""
				}
				index := append(slices.Clone(s.index), i)
				if f.Anonymous && name == "" && to.Kind() == reflect.Struct {
					at := slices.IndexFunc(next, func(e embedded) bool { return e.t == to })
					if at < 0 {
						next = append(next, embedded{t: to, index: index})
					} else {
						next[at].twice = true
					}
					continue
				}
				member := field{name: cmp.Or(name, f.Name), index: index, tagged: name != ""}
				member.key = string(AppendString(nil, member.name)) + ":"
				for option := range strings.SplitSeq(options, ",") {
					switch option {
					case "omitempty":
						member.omitEmpty = true
					case "omitzero":
						member.isZero = zeroOf(f.Type)
					case "string":
						member.quoted = basic(to.Kind())
					}
				}
				fields = append(fields, member)
				if s.twice { // a duplicate, so that neither field dominates
					fields = append(fields, member)
				}
			}
		}
		level = next
	}
	return fields
}

// dominant keeps one field of each name: the field of the least depth, and at equal depth
// the field with a tag. If the two best fields are equal in depth and tag, it keeps neither.
func dominant(fields []field) (kept []field) {
	rank := func(a, b field) int {
		tagged := 0
		switch {
		case a.tagged && !b.tagged:
			tagged = -1
		case b.tagged && !a.tagged:
			tagged = 1
		}
		return cmp.Or(cmp.Compare(len(a.index), len(b.index)), tagged)
	}
	slices.SortStableFunc(fields, func(a, b field) int { return cmp.Or(cmp.Compare(a.name, b.name), rank(a, b)) })
	for i := 0; i < len(fields); {
		first := i
		for i++; i < len(fields) && fields[i].name == fields[first].name; i++ {
		}
		if i == first+1 || rank(fields[first], fields[first+1]) != 0 {
			kept = append(kept, fields[first])
		}
	}
	return kept
}

// validName reports whether the name in a tag can be used.
func validName(name string) bool {
	for _, c := range name {
		if !strings.ContainsRune("!#$%&()*+-./:;<=>?@[]^_{|}~ ", c) && !unicode.IsLetter(c) && !unicode.IsDigit(c) {
			return false
		}
	}
	return name != ""
}

// basic reports whether the tag option "string" has an effect on a field of kind k.
func basic(k reflect.Kind) bool {
	return reflect.Bool <= k && k <= reflect.Float64 || k == reflect.String
}

// A zeroer is a value with an IsZero method.
type zeroer interface{ IsZero() bool }

var zeroerType = reflect.TypeFor[zeroer]()

// zeroOf returns a function that reports whether a value of type t is zero.
func zeroOf(t reflect.Type) func(reflect.Value) bool {
	switch {
	case t.Implements(zeroerType):
		return func(v reflect.Value) bool {
			if k := v.Kind(); k == reflect.Interface || k == reflect.Pointer {
				if v.IsNil() || v.Elem().Kind() == reflect.Pointer && v.Elem().IsNil() {
					return true
				}
			}
			return v.Interface().(zeroer).IsZero()
		}
	case reflect.PointerTo(t).Implements(zeroerType):
		return func(v reflect.Value) bool {
			p := reflect.New(t)
			p.Elem().Set(v)
			return p.Interface().(zeroer).IsZero()
		}
	}
	return reflect.Value.IsZero
}

// empty reports whether the tag option omitempty omits v.
func empty(v reflect.Value) bool {
	switch k := v.Kind(); k {
	case reflect.Array, reflect.Map, reflect.Slice, reflect.String:
		return v.Len() == 0
	default:
		return (basic(k) || k == reflect.Interface || k == reflect.Pointer) && v.IsZero()
	}
}

func (e *encoder) structure(dst []byte, rv reflect.Value, depth int) ([]byte, *ValueError) {
	if depth >= MaxDepth {
		return dst, tooDeep()
	}
	open := byte('{')
	fields := fieldsOf(rv.Type())
	for i := range fields {
		f := &fields[i]
		v, ok := f.of(rv)
		if !ok || f.omitEmpty && empty(v) {
			continue
		}
		if f.isZero != nil {
			var zero bool
			if _, err := guard("IsZero: ", func() ([]byte, error) { zero = f.isZero(v); return nil, nil }); err != nil {
				return dst, err.within(f.name)
			}
			if zero {
				continue
			}
		}
		dst = append(append(dst, open), f.key...)
		open = ','
		var err *ValueError
		switch {
		case f.quoted:
			dst, err = e.quoted(dst, v, depth+1)
		case v.CanInterface():
			dst, err = e.value(dst, addressed(v).Interface(), depth+1)
		case v.Kind() == reflect.Pointer && v.IsNil():
			dst = append(dst, "null"...)
		default: // an unexported struct type, embedded with a name in its tag
			dst, err = e.structure(dst, reflect.Indirect(v), depth+1)
		}
		if err != nil {
			return dst, err.within(f.name)
		}
		if !e.fits(dst, 0) {
			return e.tooLong(dst)
		}
	}
	if open == '{' {
		dst = append(dst, '{')
	}
	return append(dst, '}'), nil
}

// of returns the value of the field f in the struct rv. It returns false if an embedded
// pointer on the way to the field is nil.
func (f *field) of(rv reflect.Value) (reflect.Value, bool) {
	for _, i := range f.index {
		if rv.Kind() == reflect.Pointer {
			if rv.IsNil() {
				return rv, false
			}
			rv = rv.Elem()
		}
		rv = rv.Field(i)
	}
	return rv, true
}

// addressed returns a pointer to v if v has an address, so that methods with a pointer
// receiver are found. Otherwise it returns v.
func addressed(v reflect.Value) reflect.Value {
	switch v.Kind() {
	case reflect.Interface, reflect.Pointer, reflect.Map:
	default:
		if v.CanAddr() {
			return v.Addr()
		}
	}
	return v
}

// quoted appends a JSON string that contains the JSON of v, for the tag option "string".
// In this form an integer keeps all its digits. The kind of v must be basic.
func (e *encoder) quoted(dst []byte, v reflect.Value, depth int) ([]byte, *ValueError) {
	if v.Kind() == reflect.Pointer {
		if v.IsNil() {
			return append(dst, "null"...), nil
		}
		v = v.Elem()
	}
	if v = addressed(v); isMarshaler(v.Type()) {
		return e.value(dst, v.Interface(), depth)
	}
	v = reflect.Indirect(v)
	var text []byte
	var err *ValueError
	switch k := v.Kind(); {
	case reflect.Int <= k && k <= reflect.Int64:
		text = strconv.AppendInt(nil, v.Int(), 10)
	case reflect.Uint <= k && k <= reflect.Uintptr:
		text = strconv.AppendUint(nil, v.Uint(), 10)
	default:
		text, err = e.value(nil, v.Interface(), depth)
	}
	if err != nil {
		return dst, err
	}
	return e.text(dst, string(text))
}
