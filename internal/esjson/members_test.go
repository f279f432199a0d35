package esjson

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestMembers(t *testing.T) {
	type pair struct{ Key, Value string }
	for _, tt := range []struct {
		name, src string
		want      []pair
		err       string // its text; empty: none
	}{
		{"empty", " { } ", nil, ""},
		{"in the order of the source", `{"b":1,"0":[ 1 , 2 ],"a":{"x" : 1}}`, []pair{{"b", "1"}, {"0", "[ 1 , 2 ]"}, {"a", `{"x" : 1}`}}, ""},
		{"duplicates", `{"a":1,"a":2}`, []pair{{"a", "1"}, {"a", "2"}}, ""},
		{"space around", "\n{ \"a\"\t:\r 1 \n, \"b\" : \"c\" }\t", []pair{{"a", "1"}, {"b", `"c"`}}, ""},
		{"decoded keys", `{"\u0061\n":1,"\ud83d\ude00é":2,"\ud83d":3,"plain":4}`, []pair{{"a\n", "1"}, {"😀é", "2"}, {"\ufffd", "3"}, {"plain", "4"}}, ""},
		{"invalid UTF-8", "{\"\xe2\x82\":\"\xff\"}", []pair{{"\ufffd", "\"\xff\""}}, ""},
		{"raw values", `{"a":"\u0061\/","b":1.0,"c":{},"d":{ }}`, []pair{{"a", `"\u0061\/"`}, {"b", "1.0"}, {"c", "{}"}, {"d", "{ }"}}, ""},
		{"not an object", ` [1]`, nil, "invalid JSON at byte 1: not an object"},
		{"null", `null`, nil, "invalid JSON at byte 0: not an object"},
		{"nothing", ``, nil, "invalid JSON at byte 0: unexpected end"},
		{"bad value", `{"a":1,"b":tru}`, []pair{{"a", "1"}}, "invalid JSON at byte 14: unexpected character"},
		{"bad key", `{"\x":1}`, nil, "invalid JSON at byte 2: invalid escape sequence"},
		{"cut short", `{"a":1`, []pair{{"a", "1"}}, "invalid JSON at byte 6: unexpected end"},
		{"second value", `{"a":1} {}`, []pair{{"a", "1"}}, "invalid JSON at byte 8: more after the value"},
		{"as deep as may be", `{"a":` + strings.Repeat("[", MaxDepth-1) + strings.Repeat("]", MaxDepth-1) + `}`,
			[]pair{{"a", strings.Repeat("[", MaxDepth-1) + strings.Repeat("]", MaxDepth-1)}}, ""},
		{"objects too deep", strings.Repeat(`{"a":`, MaxDepth+1), nil, "invalid JSON at byte 5000: nested deeper than 1000 levels"},
		{"arrays too deep", `{"a":` + strings.Repeat("[", MaxDepth) + strings.Repeat("]", MaxDepth) + `}`, nil, "invalid JSON at byte 1004: nested deeper than 1000 levels"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var got []pair
			err := Members([]byte(tt.src), func(key, value []byte) error {
				got = append(got, pair{string(key), string(value)})
				return nil
			})
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Errorf("Members(%.40q) (-want +got):\n%s", tt.src, d)
			}
			if text := errorText(err); text != tt.err {
				t.Errorf("Members(%.40q) returns %q, want %q", tt.src, text, tt.err)
			}
			if tooDeep := strings.Contains(tt.err, "deeper"); errors.Is(err, ErrDepth) != tooDeep {
				t.Errorf("Members(%.40q): errors.Is(%v, ErrDepth) is %v", tt.src, err, !tooDeep)
			}
		})
	}
}

func TestElements(t *testing.T) {
	for _, tt := range []struct {
		name, src string
		want      []string
		err       string
	}{
		{"empty", " [ ] ", nil, ""},
		{"raw", ` [ 1.0 , "\u0061" ,{"a" : 1}, null ] `, []string{"1.0", `"\u0061"`, `{"a" : 1}`, "null"}, ""},
		{"not an array", `{"a":1}`, nil, "invalid JSON at byte 0: not an array"},
		{"bad value", `[1,2,]`, []string{"1", "2"}, "invalid JSON at byte 5: unexpected character"},
		{"cut short", `[1`, []string{"1"}, "invalid JSON at byte 2: unexpected end"},
		{"second value", `[1],`, []string{"1"}, "invalid JSON at byte 3: more after the value"},
		{"too deep", strings.Repeat("[", MaxDepth+1), nil, "invalid JSON at byte 1000: nested deeper than 1000 levels"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var got []string
			err := Elements([]byte(tt.src), func(value []byte) error {
				got = append(got, string(value))
				return nil
			})
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Errorf("Elements(%.40q) (-want +got):\n%s", tt.src, d)
			}
			if text := errorText(err); text != tt.err {
				t.Errorf("Elements(%.40q) returns %q, want %q", tt.src, text, tt.err)
			}
		})
	}
}

// TestAnyDepth: with values nested deeper than MaxDepth, Members and Elements
// fail, and the others give each value, or say what else is wrong.
func TestAnyDepth(t *testing.T) {
	const levels = 300_000
	deep := string(nested(`[{"a":`, "1", "}]", levels/2))
	for _, tt := range []struct {
		name, src string
		want      []string
		err       string
	}{
		{"deep", `[` + deep + `, ` + deep + ` ,1]`, []string{deep, deep, "1"}, ""},
		{"a bit deeper", `[` + string(nested("[", "", "]", MaxDepth)) + `]`, []string{string(nested("[", "", "]", MaxDepth))}, ""},
		{"the wrong bracket", `[1,` + deep[:len(deep)-1] + `}`, []string{"1"}, fmt.Sprintf("invalid JSON at byte %d: unexpected character", 3+len(deep)-1)},
		{"a comma and a bracket", `[1,` + deep[:len(deep)-2] + `,}]`, []string{"1"}, fmt.Sprintf("invalid JSON at byte %d: unexpected character", 3+len(deep)-1)},
		{"cut short", `[1,` + deep, []string{"1", deep}, fmt.Sprintf("invalid JSON at byte %d: unexpected end", 3+len(deep))},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var elements, values []string
			err := ElementsAnyDepth([]byte(tt.src), func(value []byte) error {
				elements = append(elements, string(value))
				return nil
			})
			if !slices.Equal(elements, tt.want) || errorText(err) != tt.err {
				t.Errorf("ElementsAnyDepth gives %d elements and %v, want %d and %q", len(elements), err, len(tt.want), tt.err)
			}
			err = MembersAnyDepth([]byte(`{"a":`+tt.src+`}`), func(_, value []byte) error {
				values = append(values, string(value))
				return nil
			})
			if (err == nil) != (tt.err == "") || err == nil && !slices.Equal(values, []string{tt.src}) {
				t.Errorf("MembersAnyDepth gives %d values and %v, want 1 and %q", len(values), err, tt.err)
			}
			if err := Elements([]byte(tt.src), func([]byte) error { return nil }); !errors.Is(err, ErrDepth) {
				t.Errorf("Elements: %v, want ErrDepth", err)
			}
		})
	}
}

func TestCheck(t *testing.T) {
	for _, tt := range []struct{ name, src, err string }{
		{"object", ` {"a":[1,{}]} `, ""},
		{"string", `"a"`, ""},
		{"nothing", ` `, "invalid JSON at byte 1: unexpected end"},
		{"cut short", `[1,`, "invalid JSON at byte 3: unexpected end"},
		{"more", `1 2`, "invalid JSON at byte 2: more after the value"},
		{"as deep as may be", string(nested("[", "", "]", MaxDepth)), ""},
		{"too deep", string(nested("[", "", "]", MaxDepth+1)), "invalid JSON at byte 1000: nested deeper than 1000 levels"},
	} {
		if text := errorText(Check([]byte(tt.src))); text != tt.err {
			t.Errorf("%s: Check gives %q, want %q", tt.name, text, tt.err)
		}
	}
}

func TestMembersAndElementsStop(t *testing.T) {
	stop := errors.New("enough")
	calls := 0
	if err := Members([]byte(`{"a":1,"b":2,!`), func(key, value []byte) error {
		calls++
		if string(key) == "b" {
			return stop
		}
		return nil
	}); err != stop || calls != 2 {
		t.Errorf("Members calls %d times and returns %v, want 2 and %v", calls, err, stop)
	}
	calls = 0
	if err := Elements([]byte(`[1,2,!`), func(value []byte) error {
		calls++
		if string(value) == "2" {
			return stop
		}
		return nil
	}); err != stop || calls != 2 {
		t.Errorf("Elements calls %d times and returns %v, want 2 and %v", calls, err, stop)
	}
}

// TestMembersGivesNoRoom checks that appending to a value does not write to
// what follows it in the source.
func TestMembersGivesNoRoom(t *testing.T) {
	src := []byte(`{"a":1,"b":[2,3]}`)
	if err := Members(src, func(key, value []byte) error {
		_, _ = append(key, '!'), append(value, '!')
		if value[0] != '[' {
			return nil
		}
		return Elements(value, func(value []byte) error { _ = append(value, '!'); return nil })
	}); err != nil {
		t.Fatal(err)
	}
	if want := `{"a":1,"b":[2,3]}`; string(src) != want {
		t.Errorf("the source is now %q, want %q", src, want)
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
