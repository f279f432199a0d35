package config

import (
	"bytes"
	"encoding"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"syscall"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/hookferry/analytics/signature"
)

const (
	// MaxFile bounds a configuration file in bytes: 4 MB of 1,048,576 bytes.
	MaxFile = 4 << 20
	// maxSecretFile bounds a file with a secret, a certificate or a key.
	maxSecretFile = 256 << 10
	// maxValues bounds the values of a file, those that aliases repeat counted
	// each time.
	maxValues = 1_000_000
	// maxProblems is how many problems are told.
	maxProblems = 50
)

// A decoder puts what a file says into settings. It goes on after a problem, so
// that all of them are told at once. The parser's own decoder stops at the first
// problem, and its errors may repeat what a value is.
type decoder struct {
	folder   string // relative paths begin there
	literal  bool   // texts are what they say: no variables, no files
	getenv   func(string) string
	places   map[string]place // by key
	files    []File           // that were read
	values   int
	problems []Problem
}

type place struct{ line, column int }

func newDecoder(path string, getenv func(string) string) *decoder {
	return &decoder{
		folder: filepath.Dir(path),
		getenv: getenv,
		places: map[string]place{},
	}
}

// given is the Path of a Pem whose content is in the document.
const given = "given"

// decode reads a file into s, a pointer to a value that has the defaults.
func (d *decoder) decode(text []byte, s any) {
	var document, more yaml.Node
	loader, err := yaml.NewLoader(bytes.NewReader(text))
	if err == nil {
		err = loader.Load(&document)
	}
	var syntax *yaml.LoadError
	switch {
	case err == io.EOF || err == nil && document.Content[0].ShortTag() == "!!null":
		d.problem("", "is empty")
	case errors.As(err, &syntax):
		d.places[""] = place{syntax.Mark.Line, syntax.Mark.Column}
		text := "is not YAML"
		switch syntax.Stage { // messages of others repeat what a value is
		case yaml.ScannerStage, yaml.ParserStage:
			text = syntax.Message
		case yaml.ComposerStage:
			text = "refers to an anchor that is not above"
		}
		d.problem("", "%s", text)
	case err != nil:
		d.problem("", "is not YAML")
	case loader.Load(&more) != io.EOF:
		d.problem("", "has more than one document")
	default:
		d.value("", document.Content[0], reflect.ValueOf(s).Elem())
	}
}

// problem notes what is wrong with a key.
func (d *decoder) problem(key, format string, args ...any) {
	if len(d.problems) < maxProblems {
		d.problems = append(d.problems, d.placed(Problem{Key: key, Text: fmt.Sprintf(format, args...)}))
	}
}

// placed returns p with its place: that of its key, or of the nearest above. A
// key that is missing from the whole has none.
func (d *decoder) placed(p Problem) Problem {
	for key := p.Key; key != "" || p.Key == ""; key = key[:max(strings.LastIndexAny(key, ".["), 0)] {
		if at, ok := d.places[key]; ok || key == "" {
			p.Line, p.Column = at.line, at.column
			break
		}
	}
	return p
}

// under is the key of a value in a mapping.
func under(key, name string) string {
	if key == "" {
		return name
	}
	return key + "." + name
}

// value puts n, which is at key, into v.
func (d *decoder) value(key string, n *yaml.Node, v reflect.Value) {
	if d.values++; d.values > maxValues {
		if d.values == maxValues+1 {
			d.places[""] = placeOf(n)
			d.problem("", "has more than %d values", maxValues)
		}
		return
	}
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	d.places[key] = placeOf(n)
	switch {
	case n.Style&yaml.TaggedStyle != 0:
		d.problem(key, "has a tag; there are none here")
		return
	case n.ShortTag() == "!!null":
		d.problem(key, "has no value; leave the key out for the default")
		return
	}
	if v.Kind() == reflect.Pointer {
		v.Set(reflect.New(v.Type().Elem()))
		v = v.Elem()
	}
	if set := scalar(v); set != nil {
		if text, ok := d.text(key, n); ok {
			if problem := set(d, text); problem != "" {
				d.problem(key, "%s", problem)
			}
		}
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		fields := fieldsOf(v)
		d.mapping(key, n, func(name string, value *yaml.Node) {
			if field, ok := fields[name]; ok {
				d.value(under(key, name), value, field)
			} else {
				d.problem(under(key, name), "there is no such key; there are %s", strings.Join(keysOf(v.Type()), ", "))
			}
		})
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		d.mapping(key, n, func(name string, value *yaml.Node) {
			e := reflect.New(v.Type().Elem()).Elem()
			d.value(under(key, name), value, e)
			v.SetMapIndex(reflect.ValueOf(name), e)
		})
	case reflect.Slice:
		if n.Kind != yaml.SequenceNode {
			d.problem(key, "want a list")
			return
		}
		for i, value := range n.Content {
			e := reflect.New(v.Type().Elem()).Elem()
			switch e := e.Addr().Interface().(type) {
			case *Source:
				*e = DefaultSource()
			case *Destination:
				*e = DefaultDestination()
			}
			d.value(fmt.Sprintf("%s[%d]", key, i), value, e)
			v.Set(reflect.Append(v, e))
		}
	default:
		panic("config: no way to read a " + v.Type().String())
	}
}

// mapping calls each for what n, a mapping, holds.
func (d *decoder) mapping(key string, n *yaml.Node, each func(name string, value *yaml.Node)) {
	if n.Kind != yaml.MappingNode {
		d.problem(key, "want keys and values")
		return
	}
	seen := map[string]place{}
	for i := 0; i < len(n.Content); i += 2 {
		name, at := n.Content[i].Value, placeOf(n.Content[i])
		full := under(key, name)
		d.places[full] = at
		if first, twice := seen[name]; twice {
			d.problem(full, "is given twice; first in line %d", first.line)
			continue
		}
		seen[name] = at
		each(name, n.Content[i+1])
	}
}

func placeOf(n *yaml.Node) place { return place{n.Line, n.Column} }

// text returns the text of a scalar with its variables replaced.
func (d *decoder) text(key string, n *yaml.Node) (string, bool) {
	if n.Kind != yaml.ScalarNode {
		d.problem(key, "want a single value; quote one with a colon or braces")
		return "", false
	}
	text := n.Value
	if d.literal {
		return text, true
	}
	var b strings.Builder
	for {
		before, rest, found := strings.Cut(text, "${")
		b.WriteString(before)
		if !found {
			return b.String(), true
		}
		if strings.HasSuffix(before, "$") {
			b.WriteString("{")
			text = rest
			continue
		}
		name, after, closed := strings.Cut(rest, "}")
		if !closed || !isName(name) {
			d.problem(key, "has ${ without a name and }; write $${ for ${ itself")
			return "", false
		}
		value := d.getenv(name)
		if value == "" {
			d.problem(key, "the environment variable %s is not set", name)
			return "", false
		}
		b.WriteString(value)
		text = after
	}
}

// isName reports whether s is the name of a variable: letters, digits and
// underscores, with no digit first.
func isName(s string) bool {
	for i, c := range s {
		letter := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || c == '_'
		if !letter && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return s != "" && len(s) <= 128
}

// scalar returns what sets v, which is not one of several values, from a text,
// and says what is wrong with that. It is nil for others.
func scalar(v reflect.Value) func(d *decoder, text string) (problem string) {
	switch p := v.Addr().Interface().(type) {
	case *signature.Secret:
		return func(d *decoder, text string) string {
			path, isFile := strings.CutPrefix(text, "file:")
			if !isFile || d.literal {
				*p = signature.Secret(text)
				return ""
			}
			content, problem := d.read(path)
			content = strings.TrimSuffix(strings.TrimSuffix(content, "\n"), "\r")
			if problem == "" && content == "" {
				problem = "the file is empty"
			}
			*p = signature.Secret(content)
			return problem
		}
	case *Pem:
		return func(d *decoder, text string) string {
			if d.literal {
				*p = Pem{Path: given, Data: signature.Secret(text)}
				return ""
			}
			content, problem := d.read(text)
			*p = Pem{Path: text, Data: signature.Secret(content)}
			return problem
		}
	case *netip.Prefix:
		return func(_ *decoder, text string) string {
			var err error
			if *p, err = ParsePrefix(text); err != nil {
				return err.Error()
			}
			return ""
		}
	case *time.Duration:
		return func(_ *decoder, text string) string {
			var err error
			if *p, err = time.ParseDuration(text); err != nil {
				return "want a time such as 500ms, 10s or 720h"
			}
			return ""
		}
	case encoding.TextUnmarshaler:
		return func(_ *decoder, text string) string {
			if err := p.UnmarshalText([]byte(text)); err != nil {
				if wants, ok := p.(interface{ Want() string }); ok {
					return "want " + wants.Want()
				}
				return "want debug, info, warn or error" // a slog.Level
			}
			return ""
		}
	}
	switch v.Kind() {
	case reflect.String:
		return func(_ *decoder, text string) string {
			v.SetString(text)
			return ""
		}
	case reflect.Bool:
		return func(_ *decoder, text string) string {
			if text != "true" && text != "false" {
				return "want true or false"
			}
			v.SetBool(text == "true")
			return ""
		}
	case reflect.Int:
		return func(_ *decoder, text string) string {
			n, err := strconv.Atoi(strings.ReplaceAll(text, "_", ""))
			if err != nil {
				return "want a whole number"
			}
			v.SetInt(int64(n))
			return ""
		}
	case reflect.Float64:
		return func(_ *decoder, text string) string {
			f, err := strconv.ParseFloat(strings.ReplaceAll(text, "_", ""), 64)
			if err != nil {
				return "want a number"
			}
			v.SetFloat(f)
			return ""
		}
	}
	return nil
}

// read returns the content of a file that a value names.
func (d *decoder) read(path string) (content, problem string) {
	if path == "" {
		return "", "want the path of a file"
	}
	if !filepath.IsAbs(path) {
		path = filepath.Join(d.folder, path)
	}
	b, err := d.readFile(path, maxSecretFile)
	if err != nil {
		return "", "reading the file: " + withoutPath(err).Error()
	}
	return string(b), ""
}

// errIrregular refuses what could keep its reader waiting, or do something of
// its own when it is opened: pipes, sockets, devices.
var errIrregular = errors.New("it is not a regular file")

// readFile reads a regular file of at most limit bytes.
func (d *decoder) readFile(path string, limit int64) ([]byte, error) {
	// Before it is read: what changes meanwhile is noticed.
	was := stat(path)
	d.files = append(d.files, was)
	if was.info != nil && !was.info.Mode().IsRegular() {
		return nil, errIrregular
	}
	// What has become a pipe since is opened without waiting for its writer.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil {
		return nil, err
	} else if !info.Mode().IsRegular() {
		return nil, errIrregular
	}
	b, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(b)) > limit {
		err = fmt.Errorf("it has more than %d bytes", limit)
	}
	return b, err
}

// withoutPath is what failed with a file. Its path may be made of variables,
// which may hold anything.
func withoutPath(err error) error {
	var p *os.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}
