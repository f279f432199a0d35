package esjson

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

// surrogate matches escapes that may be lone surrogates, which encoding/json cannot
// represent.
var surrogate = regexp.MustCompile(`(?i)\\ud[89a-f]`)

func FuzzAppend(f *testing.F) {
	seeds := 0
	for _, group := range inputs {
		for _, text := range group.texts {
			f.Add([]byte(text))
			seeds++
		}
	}
	if seeds < 200 {
		f.Fatalf("inputs has %d texts, want at least 200", seeds)
	}
	f.Add([]byte(typicalBody))
	f.Add([]byte(nastyBody))
	f.Fuzz(func(t *testing.T, src []byte) {
		before := bytes.Clone(src)
		out, err := Append([]byte("kept"), src)
		if !bytes.Equal(src, before) {
			t.Fatalf("Append(%+q) changed its source", before)
		}
		if !bytes.HasPrefix(out, []byte("kept")) {
			t.Fatalf("Append(kept, %+q) = %+q, want it to begin with kept", src, out)
		}
		checkMembers(t, src, out[4:], err)
		if valid := json.Valid(src); valid != (err == nil) && !errors.Is(err, ErrDepth) {
			t.Fatalf("Append(%+q): error %v, but json.Valid = %v", src, err, valid)
		}
		if err != nil {
			if string(out) != "kept" {
				t.Fatalf("Append(kept, %+q) = %+q, %v, want only kept after an error", src, out, err)
			}
			var syntax *SyntaxError
			if !errors.As(err, &syntax) || syntax.Offset < 0 || syntax.Offset > len(src) {
				t.Fatalf("Append(%+q): %#v, want a *SyntaxError with an offset in the text", src, err)
			}
			return
		}
		out = out[4:]
		if !utf8.Valid(out) {
			t.Fatalf("Append(%+q) = %+q, which is not UTF-8", src, out)
		}
		again, err := Append(nil, out)
		if err != nil || !bytes.Equal(out, again) {
			t.Fatalf("Append(%+q) = %+q, but Append of that is %+q, %v, want no change", src, out, again, err)
		}
		if utf8.Valid(src) && !surrogate.Match(src) {
			if got, want := decoded(t, out), decoded(t, src); !reflect.DeepEqual(got, want) {
				t.Fatalf("Append(%+q) = %+q, which decodes to\n%v\nwant, as the source,\n%v", src, out, got, want)
			}
		}
	})
}

// checkMembers checks that Check, Members, AppendMembers and Outline agree with Append. out and err
// are the result of Append for src.
func checkMembers(t *testing.T, src, out []byte, err error) {
	t.Helper()
	var syntax, checked *SyntaxError
	errors.As(err, &syntax)
	errors.As(Check(src), &checked)
	if !reflect.DeepEqual(syntax, checked) {
		t.Fatalf("%+q: the error of Append is %v, that of Check %v, want the same", src, err, checked)
	}
	checkElements(t, src, err)
	if !bytes.HasPrefix(bytes.TrimLeft(src, " \t\r\n"), []byte("{")) {
		if Members(src, nil) == nil {
			t.Fatalf("Members(%+q) = nil, want an error", src)
		}
		return
	}
	var rebuilt, formed []byte
	found := Members(src, func(key, value []byte) error {
		rebuilt = append(AppendString(append(rebuilt, ','), string(key)), ':')
		rebuilt = append(rebuilt, value...)
		return nil
	})
	_, foundForms := AppendMembers(nil, src, func(key, value, form []byte) error {
		if again, err := Append(nil, value); err != nil || !bytes.Equal(again, form) {
			t.Fatalf("%+q: the form of %+q is %+q, want %+q, %v, as Append returns", src, value, form, again, err)
		}
		formed = append(AppendString(append(formed, ','), string(key)), ':')
		formed = append(formed, form...)
		return nil
	})
	loose := Outline(src, func([]byte) {}, func(_, _ []byte) error { return nil })
	for _, found := range []error{found, foundForms} {
		var foundSyntax *SyntaxError
		errors.As(found, &foundSyntax)
		if !reflect.DeepEqual(syntax, foundSyntax) {
			t.Fatalf("%+q: the error of Append is %v, that of Members or AppendMembers %v, want the same", src, err, found)
		}
	}
	if !errors.Is(err, ErrDepth) && !reflect.DeepEqual(found, loose) {
		t.Fatalf("%+q: the error of Members is %v, that of Outline %v, want the same", src, found, loose)
	}
	if err != nil || surrogate.Match(src) {
		return
	}
	for _, parts := range [][]byte{rebuilt, formed} {
		whole := fmt.Appendf(nil, "{%s}", bytes.TrimPrefix(parts, []byte(",")))
		if got, err := Append(nil, whole); err != nil || !bytes.Equal(got, out) {
			t.Fatalf("Append(%+q) = %+q\nAppend of its members put together: %+q, %v, want the same", src, out, got, err)
		}
	}
}

// checkElements checks that Outline finds the elements of src if src is an array, and none
// otherwise. err is the error of Append for src.
func checkElements(t *testing.T, src []byte, err error) {
	t.Helper()
	elements, members, found := outlined(fmt.Appendf(nil, `{"a":%s}`, src))
	if err != nil {
		return
	}
	if found != nil || len(members) != 1 {
		t.Fatalf("Outline of an object with the member %+q finds %q, %v, want one member", src, members, found)
	}
	whole := members[0][2:]
	if whole[0] != '[' {
		if elements != nil {
			t.Fatalf("Outline finds the elements %q in %+q, want none", elements, src)
		}
		return
	}
	got, gotErr := Append(nil, []byte("["+strings.Join(elements, ",")+"]"))
	want, wantErr := Append(nil, src)
	if !bytes.Equal(got, want) || gotErr != nil || wantErr != nil {
		t.Fatalf("Outline finds the elements %+q in %+q, want others", elements, src)
	}
}

// decoded returns the Go value of a JSON text, with numbers rounded as in JavaScript.
func decoded(t *testing.T, text []byte) any {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		t.Fatal(err)
	}
	return rounded(v)
}

func rounded(v any) any {
	switch v := v.(type) {
	case json.Number:
		f, err := v.Float64()
		if err != nil {
			return nil
		}
		return f + 0 // turns -0 into 0
	case map[string]any:
		for k, e := range v {
			v[k] = rounded(e)
		}
	case []any:
		for i, e := range v {
			v[i] = rounded(e)
		}
	}
	return v
}

// FuzzValue builds Go values from bytes. AppendValue must write each value like encoding/json, or
// return a *ValueError.
func FuzzValue(f *testing.F) {
	for i := range 256 {
		f.Add([]byte{byte(i), 3, 'a', 'b', 'c', byte(i + 1), 2, '1', '2', byte(i + 2), 1, 'x'})
	}
	f.Add([]byte(strings.Repeat("\x15\x01a", 300)))
	f.Fuzz(func(t *testing.T, data []byte) {
		b := &builder{rest: data}
		v := b.value(0)
		out, err := AppendValue([]byte("kept"), v)
		if err != nil {
			var value *ValueError
			if !errors.As(err, &value) || value.Problem == "" || string(out) != "kept" {
				t.Fatalf("AppendValue = %+q, %#v, want kept and a *ValueError with a problem", out, err)
			}
			return
		}
		if !bytes.HasPrefix(out, []byte("kept")) {
			t.Fatalf("AppendValue = %+q, want it to begin with kept", out)
		}
		out = out[4:]
		fixed, err := Append(nil, out)
		if err != nil || !bytes.Equal(fixed, out) {
			t.Fatalf("AppendValue = %+q, but Append changes it to %+q, %v", out, fixed, err)
		}
		if again, err := AppendValue(nil, v); err != nil || !bytes.Equal(again, out) {
			t.Fatalf("AppendValue = %+q, and the second time %+q, %v, want the same", out, again, err)
		}
		if b.differs {
			return
		}
		text, err := json.Marshal(v)
		if err != nil {
			t.Fatalf("AppendValue = %+q, but encoding/json returns the error %v", out, err)
		}
		if want, err := Append(nil, text); err != nil || !bytes.Equal(want, out) {
			t.Fatalf("AppendValue = %+q, want %+q, %v, as encoding/json writes", out, want, err)
		}
	})
}

// A builder builds a Go value from bytes.
type builder struct {
	rest []byte

	// differs is set if encoding/json writes the value differently. It writes a time in its
	// own zone and with all digits, and one U+FFFD for each byte that is not UTF-8.
	differs bool
}

func (b *builder) byte() byte {
	if len(b.rest) == 0 {
		return 0
	}
	c := b.rest[0]
	b.rest = b.rest[1:]
	return c
}

func (b *builder) text() string {
	n := min(int(b.byte()), len(b.rest))
	s := string(b.rest[:n])
	b.rest = b.rest[n:]
	b.differs = b.differs || !utf8.ValidString(s)
	return s
}

func (b *builder) bits() (u uint64) {
	for range 8 {
		u = u<<8 | uint64(b.byte())
	}
	return u
}

func (b *builder) value(depth int) any {
	if depth > MaxDepth+5 {
		return nil
	}
	switch kind := b.byte(); kind % 32 {
	case 1:
		return b.text()
	case 2:
		return kind > 128
	case 3:
		return int64(b.bits())
	case 4:
		return b.bits()
	case 5:
		return math.Float64frombits(b.bits())
	case 6:
		return math.Float32frombits(uint32(b.bits()))
	case 7:
		return json.Number(b.text())
	case 8:
		return json.RawMessage(b.text())
	case 9:
		b.differs = true
		return time.Unix(int64(b.bits())>>(kind/8), 0)
	case 10:
		return []byte(b.text())
	case 11:
		return raw(b.text())
	case 12:
		return upper(b.text())
	case 13:
		return map[string]string{b.text(): b.text(), b.text(): b.text()}
	case 14:
		return []string{b.text(), b.text()}
	case 15:
		return map[string]float64{b.text(): math.Float64frombits(b.bits())}
	case 16:
		return point{int(b.byte()), 0}
	case 17:
		return &aStruct{A: b.text(), B: map[string]any{b.text(): b.text()}}
	case 18:
		return []any{make(chan int), func() {}, panicking{}, failing{}, invalid{}, 1i}[b.byte()%6]
	case 19:
		return ptr(b.value(depth + 1))
	case 20:
		return []map[string]any{{b.text(): b.value(depth + 2)}}
	case 21, 22, 23:
		m := map[string]any{}
		for range 1 + kind/64 {
			m[b.text()] = b.value(depth + 1)
		}
		return m
	case 24, 25:
		var s []any
		for range 1 + kind/64 {
			s = append(s, b.value(depth+1))
		}
		return s
	case 26:
		return map[int]any{int(b.byte()): b.value(depth + 1), int(int64(b.bits())): nil}
	case 28:
		return options{Omitted: b.text(), NoInterface: b.value(depth + 1), Int: int64(b.bits()), Float: math.Float64frombits(b.bits()) + 0, Either: zeroMinus(b.byte())}
	case 29:
		return &struct {
			*Exported
			inner
			A any `json:"1"`
		}{&Exported{b.text(), int(b.byte())}, inner{}, b.value(depth + 1)}
	case 27:
		return anyMap{b.text(): namedString(b.text())}
	}
	return nil
}
