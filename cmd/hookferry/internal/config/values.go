package config

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hookferry/analytics/signature"
	"github.com/hookferry/analytics/webhook"
)

// A Size is a number of bytes. In text, KB (1,024), MB, GB or TB may follow the number.
type Size int64

func parseSize(text string) (Size, error) {
	digits, unit := text, int64(1)
	for i, suffix := range []string{"KB", "MB", "GB", "TB"} {
		if rest, ok := strings.CutSuffix(digits, suffix); ok {
			digits, unit = strings.TrimSpace(rest), 1<<(10*(i+1))
			break
		}
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || n < 0 || n > math.MaxInt64/unit {
		return 0, errors.New("not a size")
	}
	return Size(n * unit), nil
}

// parseInt also takes a size, for webhook.Batch.MaxBytes.
func parseInt(text string) (int, error) {
	n, err := strconv.Atoi(text)
	if size, wrong := parseSize(text); err != nil && wrong == nil {
		return int(min(size, math.MaxInt32)), nil
	}
	return n, err
}

// String returns the size in the largest unit in which it is a whole number.
func (s Size) String() string {
	units := []string{"", "KB", "MB", "GB", "TB"}
	i := 0
	for s != 0 && s%1024 == 0 && i < len(units)-1 {
		s, i = s/1024, i+1
	}
	return strconv.FormatInt(int64(s), 10) + units[i]
}

// A Pem is the content of a PEM file.
type Pem struct{ signature.Secret }

func parsePrefix(text string) (netip.Prefix, error) {
	if addr, err := netip.ParseAddr(text); err == nil && addr.Zone() == "" {
		return netip.PrefixFrom(addr, addr.BitLen()), nil
	}
	return netip.ParsePrefix(text)
}

// isScalar reports whether a value of type t is read from a single YAML scalar.
func isScalar(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.String, reflect.Bool, reflect.Int, reflect.Int64, reflect.Float64:
		return true
	}
	return t == reflect.TypeFor[Pem]() || t == reflect.TypeFor[netip.Prefix]()
}

// inEndpoint, in place of the bounds of a text, says that the text may be file:PATH, as a secret may.
const inEndpoint = "file:"

// set parses a text into v, a scalar with the bounds in allow. The problem does not repeat the text.
func (r *reader) set(v reflect.Value, allow, text string) (problem string) {
	digits := strings.ReplaceAll(text, "_", "")
	switch p := v.Addr().Interface().(type) {
	case *signature.Secret:
		if path, isFile := strings.CutPrefix(text, "file:"); isFile && !r.literal {
			text, problem = r.read(path)
			r.origins[p] = r.path(path)
		}
		*p = signature.Secret(text)
	case *Pem:
		if !r.literal {
			text, problem = r.read(text)
		}
		p.Secret = signature.Secret(text)
	case *bool:
		if text != "true" && text != "false" {
			return "want true or false"
		}
		*p = text == "true"
	case *int:
		problem = parse(p, "a whole number", digits, parseInt)
	case *float64:
		problem = parse(p, "a number", digits, func(s string) (float64, error) { return strconv.ParseFloat(s, 64) })
	case *Size:
		problem = parse(p, "bytes such as 512KB, 64MB or 1GB", text, parseSize)
	case *webhook.Duration:
		return r.set(reflect.ValueOf((*time.Duration)(p)).Elem(), allow, text)
	case *time.Duration:
		problem = parse(p, "a time such as 500ms, 10s or 720h", text, time.ParseDuration)
	case *netip.Prefix:
		problem = parse(p, "an address, or a prefix such as 10.0.0.0/8", text, parsePrefix)
	case *slog.Level:
		problem = parse(p, "debug, info, warn or error", text, func(s string) (l slog.Level, err error) { return l, l.UnmarshalText([]byte(s)) })
	default:
		if v.Kind() != reflect.String {
			panic("config: no way to read a " + v.Type().String())
		}
		var hidden signature.Secret
		if allow == inEndpoint {
			problem = r.set(reflect.ValueOf(&hidden).Elem(), "", text)
			text, allow = hidden.Reveal(), ""
		}
		v.SetString(text)
	}
	if problem == "" && allow != "" {
		problem = outside(allow, v)
	}
	return problem
}

// parse parses text with the function read, and stores the value in p.
func parse[T any](p *T, want, text string, read func(string) (T, error)) (problem string) {
	v, err := read(text)
	if err != nil {
		return "want " + want
	}
	*p = v
	return ""
}

// ReadSecret returns the secret that a text stands for: the text itself or, if it is file:PATH, the
// content of that file. PATH may be relative to the working directory. The error contains the path,
// which is no secret: it was typed, or is the value of a variable for a path.
func ReadSecret(text string) (secret signature.Secret, err error) {
	return secret, read(text, "", reflect.ValueOf(&secret).Elem())
}

// Set sets the setting at key, such as "log.level", to a text of the file without ${NAME}. In a key,
// "[0]" is the first value of a list, and "[]" appends a value. The error says which values are
// allowed. For a secret in a file, it contains the path, as that of ReadSecret does.
func (s *Settings) Set(key, text string) error {
	v, allow := reflect.ValueOf(s).Elem(), ""
	for part := range strings.SplitSeq(key, ".") {
		name, index, isList := strings.Cut(part, "[")
		v, allow = fieldOf(v, name)
		switch {
		case isList && index == "]":
			v.Set(reflect.Append(v, reflect.Zero(v.Type().Elem())))
			v = v.Index(v.Len() - 1)
		case isList:
			v = v.Index(0)
		}
	}
	if key == "queue.url" {
		s.Queue.File, _ = strings.CutPrefix(text, "file:")
		if s.Queue.File == text { // not from a file
			s.Queue.File = ""
		}
	}
	return read(text, allow, v)
}

func read(text, allow string, v reflect.Value) error {
	problem := newReader("", nil).set(v, allow, text)
	switch {
	case problem == "":
		return nil
	case strings.HasPrefix(text, "file:"):
		return fmt.Errorf("%s: %s", text, problem)
	}
	return errors.New(problem)
}

// fieldOf returns the field of a struct for a key, and its tag allow, or the zero Value.
func fieldOf(v reflect.Value, key string) (field reflect.Value, allow string) {
	for f, value := range v.Fields() {
		if f.Anonymous {
			if field, allow = fieldOf(value, key); field.IsValid() {
				return field, allow
			}
		} else if key != "" && keyIn(f) == key {
			if v.Type() == reflect.TypeFor[webhook.Endpoint]() {
				return value, inEndpoint
			}
			return value, f.Tag.Get("allow")
		}
	}
	return reflect.Value{}, ""
}

// keyIn returns the key of a field, "" if it has none.
func keyIn(f reflect.StructField) string {
	key, _, _ := strings.Cut(cmp.Or(f.Tag.Get("yaml"), f.Tag.Get("json")), ",")
	return key
}

func keysOf(t reflect.Type) (keys []string) {
	for _, f := range reflect.VisibleFields(t) {
		if key := keyIn(f); key != "" {
			keys = append(keys, key)
		}
	}
	return keys
}

// outside returns a problem if a tag allow does not allow v. The tag is a range ("1s to 1h"), zero or
// a range ("0 or 1s to 1h"), or a list of texts ("text or json").
func outside(allow string, v reflect.Value) (problem string) {
	if v.Kind() == reflect.String {
		if slices.Contains(strings.Split(allow, " or "), v.String()) {
			return ""
		}
		return "want " + allow
	}
	limits, orZero := strings.CutPrefix(allow, "0 or ")
	if orZero && v.IsZero() {
		return ""
	}
	low, high, _ := strings.Cut(limits, " to ")
	least, most := reflect.New(v.Type()).Elem(), reflect.New(v.Type()).Elem()
	if problem := cmp.Or(new(reader).set(least, "", low), new(reader).set(most, "", high)); problem != "" {
		panic("config: the tag " + allow + " is wrong")
	}
	if v.CanFloat() && least.Float() <= v.Float() && v.Float() <= most.Float() ||
		v.CanInt() && least.Int() <= v.Int() && v.Int() <= most.Int() {
		return ""
	}
	return fmt.Sprintf("%v to %v are allowed", least, most)
}
