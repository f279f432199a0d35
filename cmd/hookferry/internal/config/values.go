package config

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"reflect"
	"strconv"
	"strings"

	"github.com/hookferry/analytics/signature"
)

// A Size is a number of bytes. As a text it is a number with KB, MB, GB or TB,
// each 1,024 times the one before.
type Size int64

// Want says what UnmarshalText takes.
func (Size) Want() string { return "bytes such as 512KB, 64MB or 1GB" }

// UnmarshalText reads a size.
func (s *Size) UnmarshalText(text []byte) error {
	digits, unit := string(text), int64(1)
	for i, suffix := range []string{"KB", "MB", "GB", "TB"} {
		if rest, ok := strings.CutSuffix(digits, suffix); ok {
			digits, unit = strings.TrimSpace(rest), 1<<(10*(i+1))
			break
		}
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || n < 0 || n > math.MaxInt64/unit {
		return errors.New("want " + s.Want())
	}
	*s = Size(n * unit)
	return nil
}

// String returns the size in the largest unit that it is a multiple of.
func (s Size) String() string {
	units := []string{"", "KB", "MB", "GB", "TB"}
	i := 0
	for s != 0 && s%1024 == 0 && i < len(units)-1 {
		s, i = s/1024, i+1
	}
	return strconv.FormatInt(int64(s), 10) + units[i]
}

// ParsePrefix reads a prefix, or a single address. The error does not repeat
// the text.
func ParsePrefix(text string) (netip.Prefix, error) {
	if addr, err := netip.ParseAddr(text); err == nil && addr.Zone() == "" {
		return netip.PrefixFrom(addr, addr.BitLen()), nil
	}
	prefix, err := netip.ParsePrefix(text)
	if err != nil {
		return netip.Prefix{}, errors.New("want an address, or a prefix such as 10.0.0.0/8")
	}
	return prefix, nil
}

// ReadSecret returns what a text of the file stands for that is a secret: itself,
// or the content of the file that it names. Relative paths begin in the working
// directory. The error names the path: it is what somebody typed, or a variable
// that stands for it alone.
func ReadSecret(text string) (secret signature.Secret, err error) {
	return secret, read(text, reflect.ValueOf(&secret).Elem())
}

// Set puts a text into the setting at a key, such as "log.level", as the file would, but for
// variables. In the key, "[0]" is the first value of a list, and "[]" a new one behind the
// last. The error is that of ReadSecret, or says what is allowed.
func (s *Settings) Set(key, text string) error {
	v := reflect.ValueOf(s).Elem()
	for part := range strings.SplitSeq(key, ".") {
		name, index, isList := strings.Cut(part, "[")
		v = fieldsOf(v)[name]
		switch {
		case isList && index == "]":
			v.Set(reflect.Append(v, reflect.Zero(v.Type().Elem())))
			v = v.Index(v.Len() - 1)
		case isList:
			v = v.Index(0)
		}
	}
	return read(text, v)
}

// read puts a text into a value that is a scalar.
func read(text string, v reflect.Value) error {
	problem := scalar(v)(newDecoder("", nil), text)
	if strings.HasPrefix(text, "file:") && problem != "" {
		return fmt.Errorf("%s: %s", text, problem)
	}
	if problem != "" {
		return errors.New(problem)
	}
	return nil
}

// Keys returns every key of the file, such as "sources[].keys[]" or, where a
// mapping has names of its own, "tracing.headers.*".
func Keys() []string {
	var keys []string
	var walk func(key string, t reflect.Type)
	walk = func(key string, t reflect.Type) {
		if t.Kind() == reflect.Pointer {
			t = t.Elem()
		}
		if key != "" {
			keys = append(keys, key)
		}
		switch {
		case scalar(reflect.New(t).Elem()) != nil:
		case t.Kind() == reflect.Slice:
			walk(key+"[]", t.Elem())
		case t.Kind() == reflect.Map:
			walk(key+".*", t.Elem())
		default:
			fields := fieldsOf(reflect.New(t).Elem())
			for _, name := range keysOf(t) {
				walk(under(key, name), fields[name].Type())
			}
		}
	}
	walk("", reflect.TypeFor[Settings]())
	return keys
}

// fieldsOf returns the fields of a struct by their keys.
func fieldsOf(v reflect.Value) map[string]reflect.Value {
	fields := map[string]reflect.Value{}
	for i := range v.NumField() {
		if name := v.Type().Field(i).Tag.Get("yaml"); name != "-" {
			fields[name] = v.Field(i)
		}
	}
	return fields
}

// keysOf returns the keys of a mapping that is read into a struct.
func keysOf(t reflect.Type) []string {
	var keys []string
	for i := range t.NumField() {
		if name := t.Field(i).Tag.Get("yaml"); name != "-" {
			keys = append(keys, name)
		}
	}
	return keys
}
