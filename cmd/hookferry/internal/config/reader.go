package config

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"syscall"

	"go.yaml.in/yaml/v4"

	"github.com/hookferry/analytics/signature"
	"github.com/hookferry/analytics/webhook"
)

const (
	// MaxFile bounds a configuration file in bytes: 4 MB of 1,048,576 bytes.
	MaxFile = 4 << 20
	// maxSecretFile bounds a file with a secret, a certificate or a key, in bytes.
	maxSecretFile = 256 << 10
	// maxValues bounds the values of a file. A value counts once for each alias that repeats it.
	maxValues = 1_000_000
	// maxProblems bounds the problems of an Error.
	maxProblems = 50
)

// A reader reads and checks settings, and collects all problems. The decoder of the YAML parser is
// not used: it stops at the first wrong value, and its errors may repeat values.
type reader struct {
	folder   string // relative paths are relative to this folder
	literal  bool   // ${NAME} and file:PATH have no meaning
	getenv   func(string) string
	places   map[string]*yaml.Node        // the places of keys
	files    []File                       // the files that were read
	origins  map[*signature.Secret]string // the files that secrets were read from
	retries  *webhook.Retries             // of destinations that have none of their own
	values   int
	problems []Problem
	unread   int // how many problems are about values that could not be read; these come first
}

// newReader returns a reader for the file at path, or for settings without a file if path is "".
func newReader(path string, getenv func(string) string) *reader {
	return &reader{folder: filepath.Dir(path), getenv: getenv, places: map[string]*yaml.Node{}, origins: map[*signature.Secret]string{}}
}

// problem notes a problem of the value at key, with the place of the innermost key around the value
// that is in the file. It does nothing if there are maxProblems problems, or if one of them says
// that the value could not be read.
func (r *reader) problem(key, format string, args ...any) {
	if len(r.problems) >= maxProblems || r.unreadable(key) {
		return
	}
	p := Problem{Key: key, Text: fmt.Sprintf(format, args...)}
	at := r.places[key]
	for at == nil && key != "" {
		if key = key[:max(strings.LastIndexAny(key, ".["), 0)]; key != "" {
			at = r.places[key]
		}
	}
	if at != nil {
		p.Line, p.Column = at.Line, at.Column
	}
	r.problems = append(r.problems, p)
}

// refuse notes a problem if wrong is true.
func (r *reader) refuse(wrong bool, key, format string, args ...any) {
	if wrong {
		r.problem(key, format, args...)
	}
}

// unreadable reports whether the value at key, or a value that contains it, could not be read.
func (r *reader) unreadable(key string) bool {
	return slices.ContainsFunc(r.problems[:r.unread], func(p Problem) bool {
		return key == p.Key || strings.HasPrefix(key, p.Key+".") || strings.HasPrefix(key, p.Key+"[")
	})
}

// under returns the key of the value called name in the mapping at key.
func under(key, name string) string {
	if key == "" {
		return name
	}
	return key + "." + name
}

// decode reads a YAML document into v, a pointer to a value with the defaults.
func (r *reader) decode(text []byte, v any) {
	var document, more yaml.Node
	loader, err := yaml.NewLoader(bytes.NewReader(text))
	if err == nil {
		err = loader.Load(&document)
	}
	var syntax *yaml.LoadError
	switch {
	case err == io.EOF || err == nil && document.Content[0].ShortTag() == "!!null":
		r.problem("", "is empty")
	case errors.As(err, &syntax):
		r.places[""] = &yaml.Node{Line: syntax.Mark.Line, Column: syntax.Mark.Column}
		text := "is not YAML"
		switch syntax.Stage {
		case yaml.ScannerStage, yaml.ParserStage: // messages of other stages may repeat values
			text = syntax.Message
		case yaml.ComposerStage:
			text = "refers to an anchor that is not above"
		}
		r.problem("", "%s", text)
	case err != nil:
		r.problem("", "is not YAML")
	case loader.Load(&more) != io.EOF:
		r.problem("", "has more than one document")
	default:
		r.value("", "", document.Content[0], reflect.ValueOf(v).Elem())
	}
	r.unread = len(r.problems)
}

// value reads the YAML node n at key into v. The bounds of the value are in allow; see outside.
func (r *reader) value(key, allow string, n *yaml.Node, v reflect.Value) {
	if r.values++; r.values > maxValues {
		if r.values == maxValues+1 {
			r.places[""] = n
			r.problem("", "has more than %d values", maxValues)
		}
		return
	}
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	r.places[key] = n
	switch {
	case n.Style&yaml.TaggedStyle != 0:
		r.problem(key, "has a YAML tag; tags are not allowed")
		return
	case n.ShortTag() == "!!null":
		r.problem(key, "has no value; leave the key out for the default")
		return
	}
	if v.Kind() == reflect.Pointer {
		v.Set(reflect.New(v.Type().Elem()))
		v = v.Elem()
	}
	switch {
	case isScalar(v.Type()):
		if n.Kind != yaml.ScalarNode {
			r.problem(key, "want a single value; put quotes around a text with a colon or braces")
			return
		}
		text, problem := r.expand(n.Value)
		if problem == "" {
			problem = r.set(v, allow, text)
		}
		if problem != "" {
			r.problem(key, "%s", problem)
		}
	case v.Kind() == reflect.Struct:
		retries, ok := v.Addr().Interface().(*webhook.Retries)
		if ok {
			r.standard(key, n, retries)
		}
		r.mapping(key, n, func(name string, value *yaml.Node) {
			if field, allow := fieldOf(v, name); field.IsValid() {
				r.value(under(key, name), allow, value, field)
			} else if !ok || name != "standard" {
				r.problem(under(key, name), "there is no such key; there are %s", strings.Join(keysOf(v.Type()), ", "))
			}
		})
	case v.Kind() == reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		r.mapping(key, n, func(name string, value *yaml.Node) {
			e := reflect.New(v.Type().Elem()).Elem()
			r.value(under(key, name), allow, value, e)
			v.SetMapIndex(reflect.ValueOf(name), e)
		})
	case n.Kind != yaml.SequenceNode:
		r.problem(key, "want a list")
	default:
		v.Set(reflect.MakeSlice(v.Type(), 0, 0))
		for i, value := range n.Content {
			e := reflect.New(v.Type().Elem()).Elem()
			r.value(fmt.Sprintf("%s[%d]", key, i), "", value, e)
			v.Set(reflect.Append(v, e))
		}
	}
}

// standard sets retries to what Standard Webhooks recommends if the mapping n at key asks for it.
func (r *reader) standard(key string, n *yaml.Node, retries *webhook.Retries) {
	for i := 0; i+1 < len(n.Content); i += 2 {
		is := false
		if n.Content[i].Value == "standard" {
			r.value(under(key, "standard"), "", n.Content[i+1], reflect.ValueOf(&is).Elem())
		}
		if is {
			*retries = *webhook.StandardRetries()
		}
	}
}

func (r *reader) mapping(key string, n *yaml.Node, each func(name string, value *yaml.Node)) {
	if n.Kind != yaml.MappingNode {
		r.problem(key, "want keys and values")
		return
	}
	seen := map[string]*yaml.Node{}
	for i := 0; i < len(n.Content); i += 2 {
		at, name := n.Content[i], n.Content[i].Value
		full := under(key, name)
		r.places[full] = at
		if first := seen[name]; first != nil {
			r.problem(full, "is given twice; first in line %d", first.Line)
			continue
		}
		seen[name] = at
		each(name, n.Content[i+1])
	}
}

// variable matches ${NAME}, $${ and, without a submatch, any other ${.
var variable = regexp.MustCompile(`\$\$\{|\$\{([A-Za-z_][A-Za-z0-9_]{0,127})\}|\$\{`)

// expand replaces ${NAME} in a text by the value of the environment variable.
func (r *reader) expand(text string) (expanded, problem string) {
	if r.literal {
		return text, ""
	}
	expanded = variable.ReplaceAllStringFunc(text, func(found string) (value string) {
		switch name := variable.FindStringSubmatch(found)[1]; {
		case found == "$${":
			return "${"
		case name == "":
			problem = cmp.Or(problem, "has ${ without a name and }; write $${ for ${ itself")
		default:
			if value = r.getenv(name); value == "" {
				problem = cmp.Or(problem, "the environment variable "+name+" is not set")
			}
		}
		return value
	})
	return expanded, problem
}

// path returns the path of a file that a value names.
func (r *reader) path(path string) string {
	if filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(r.folder, path)
}

// read returns the content of a file without its last line break.
func (r *reader) read(path string) (content, problem string) {
	if path == "" {
		return "", "want the path of a file"
	}
	b, err := r.readFile(r.path(path), maxSecretFile)
	if err != nil {
		return "", "reading the file: " + withoutPath(err).Error()
	}
	if content = strings.TrimSuffix(strings.TrimSuffix(string(b), "\n"), "\r"); content == "" {
		return "", "the file is empty"
	}
	return content, ""
}

// errIrregular says that a file is a pipe, a socket or a device, which may block without end.
var errIrregular = errors.New("it is not a regular file")

// readFile reads a regular file of at most limit bytes. It notes the file's state before, so that a
// Watch notices a change during the read.
func (r *reader) readFile(path string, limit int64) ([]byte, error) {
	was := stat(path)
	r.files = append(r.files, was)
	if was.info != nil && !was.info.Mode().IsRegular() {
		return nil, errIrregular
	}
	// With O_NONBLOCK, the open does not wait for a writer if the file has become a pipe meanwhile.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, cmp.Or(err, errIrregular)
	}
	b, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(b)) > limit {
		err = fmt.Errorf("it has more than %d bytes", limit)
	}
	return b, err
}

// withoutPath returns the cause of a file error. The path may hold the value of a variable, a secret.
func withoutPath(err error) error {
	if p, ok := errors.AsType[*os.PathError](err); ok {
		return p.Err
	}
	return err
}
