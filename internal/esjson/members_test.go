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
		err       string // the text of the expected error, or empty
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
		{"as deep as allowed", `{"a":` + strings.Repeat("[", MaxDepth-1) + strings.Repeat("]", MaxDepth-1) + `}`,
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
				t.Errorf("Members(%.40q): errors.Is(%v, ErrDepth) = %v, want %v", tt.src, err, !tooDeep, tooDeep)
			}
		})
	}
}

// outlined returns the elements and members that Outline finds in src.
func outlined(src []byte) (elements, members []string, err error) {
	err = Outline(src, func(value []byte) {
		elements = append(elements, string(value))
	}, func(key, value []byte) error {
		members = append(members, string(key)+":"+string(value))
		return nil
	})
	return elements, members, err
}

// TestOutline checks that Outline accepts values nested deeper than MaxDepth, and that it yields
// the elements of an array before the member that has the array.
func TestOutline(t *testing.T) {
	const levels = 300_000
	deep := string(nested(`[{"a":`, "1", "}]", levels/2))
	bit := string(nested("[", "", "]", MaxDepth))
	for _, tt := range []struct {
		name, src         string
		elements, members []string
		err               string
	}{
		{"empty", " { } ", nil, nil, ""},
		{"elements", ` {"a":[ 1.0 , "\u0061" ,{"a" : [1]}, null ] , "b":[ ],"c":2} `,
			[]string{"1.0", `"\u0061"`, `{"a" : [1]}`, "null"}, []string{`a:[ 1.0 , "\u0061" ,{"a" : [1]}, null ]`, "b:[ ]", "c:2"}, ""},
		{"not an object", `[1]`, nil, nil, "invalid JSON at byte 0: not an object"},
		{"no value", `{"a":`, nil, nil, "invalid JSON at byte 5: unexpected end"},
		{"bad value", `{"a":[1,2,]}`, []string{"1", "2"}, nil, "invalid JSON at byte 10: unexpected character"},
		{"array cut short", `{"a":[1`, []string{"1"}, nil, "invalid JSON at byte 7: unexpected end"},
		{"second value", `{"a":[1]},`, []string{"1"}, []string{"a:[1]"}, "invalid JSON at byte 9: more after the value"},
		{"deep", `{"a":[` + deep + `, ` + deep + ` ,1]}`, []string{deep, deep, "1"}, []string{`a:[` + deep + `, ` + deep + ` ,1]`}, ""},
		{"deep member", `{"a":{"b":` + deep + `}}`, nil, []string{`a:{"b":` + deep + `}`}, ""},
		{"one level deeper", `{"a":[` + bit + `]}`, []string{bit}, []string{`a:[` + bit + `]`}, ""},
		{"the wrong closing bracket", `{"a":[1,` + deep[:len(deep)-1] + `}`, []string{"1"}, nil, fmt.Sprintf("invalid JSON at byte %d: unexpected character", 8+len(deep)-1)},
		{"a comma and a bracket", `{"a":[1,` + deep[:len(deep)-2] + `,}]`, []string{"1"}, nil, fmt.Sprintf("invalid JSON at byte %d: unexpected character", 8+len(deep)-1)},
		{"cut short", `{"a":[1,` + deep, []string{"1", deep}, nil, fmt.Sprintf("invalid JSON at byte %d: unexpected end", 8+len(deep))},
	} {
		t.Run(tt.name, func(t *testing.T) {
			elements, members, err := outlined([]byte(tt.src))
			if !slices.Equal(elements, tt.elements) || !slices.Equal(members, tt.members) {
				t.Errorf("Outline(%.40q) yields the elements %.99q and members %.99q, want %.99q and %.99q", tt.src, elements, members, tt.elements, tt.members)
			}
			if text := errorText(err); text != tt.err {
				t.Errorf("Outline(%.40q) returns %q, want %q", tt.src, text, tt.err)
			}
		})
	}
}

// TestAppendMembers checks the canonical form of each value. If a value is already in canonical
// form, the form must be that part of the source, not a copy. Appending to a form must not change
// later ones.
func TestAppendMembers(t *testing.T) {
	src := []byte(`{"a" : [1,{"b":"c"}], "d":1.0,"e":{"x":1, "x":2},"f":"\/", "a":{"z":1,"0":{"y":1,"y":2}},"g":"é"}`)
	want := []string{`[1,{"b":"c"}]`, "1", `{"x":2}`, `"/"`, `{"0":{"y":2},"z":1}`, `"é"`}
	var forms [][]byte
	dst, err := AppendMembers([]byte("kept"), src, func(key, value, form []byte) error {
		if same := &value[0] == &form[0]; same != (string(value) == string(form)) {
			t.Errorf("the form %s of %s is a part of the source: %v, want %v", form, value, same, !same)
		}
		_ = append(form, '!')
		forms = append(forms, form)
		return nil
	})
	if err != nil || !strings.HasPrefix(string(dst), "kept") {
		t.Fatalf("AppendMembers(kept) = %q, %v", dst, err)
	}
	for i := range want {
		if i >= len(forms) || string(forms[i]) != want[i] {
			t.Errorf("the forms are %q, want %q", forms, want)
			break
		}
	}
}

func TestCheck(t *testing.T) {
	for _, tt := range []struct{ name, src, err string }{
		{"object", ` {"a":[1,{}]} `, ""},
		{"string", `"a"`, ""},
		{"nothing", ` `, "invalid JSON at byte 1: unexpected end"},
		{"cut short", `[1,`, "invalid JSON at byte 3: unexpected end"},
		{"more", `1 2`, "invalid JSON at byte 2: more after the value"},
		{"as deep as allowed", string(nested("[", "", "]", MaxDepth)), ""},
		{"too deep", string(nested("[", "", "]", MaxDepth+1)), "invalid JSON at byte 1000: nested deeper than 1000 levels"},
	} {
		if text := errorText(Check([]byte(tt.src))); text != tt.err {
			t.Errorf("%s: Check = %q, want %q", tt.name, text, tt.err)
		}
	}
}

func TestWalkingMembersStopsAtTheFirstErrorOfTheCallback(t *testing.T) {
	stop := errors.New("enough")
	calls := 0
	at := func(key []byte) error {
		calls++
		if string(key) == "b" {
			return stop
		}
		return nil
	}
	src := []byte(`{"a":1,"b":2,!`)
	for _, tt := range []struct {
		name string
		walk func() error
	}{
		{"Members", func() error { return Members(src, func(key, _ []byte) error { return at(key) }) }},
		{"AppendMembers", func() error {
			_, err := AppendMembers(nil, src, func(key, _, _ []byte) error { return at(key) })
			return err
		}},
		{"Outline", func() error { return Outline(src, nil, func(key, _ []byte) error { return at(key) }) }},
	} {
		calls = 0
		if err := tt.walk(); err != stop || calls != 2 {
			t.Errorf("%s called the callback %d times and returned %v, want 2 and %v", tt.name, calls, err, stop)
		}
	}
}

// The callback may append to a key or a value. This does not overwrite the bytes after it in the
// source.
func TestAppendingToAMemberDoesNotChangeTheSource(t *testing.T) {
	src := []byte(`{"a":1,"b":[2,3]}`)
	if err := Members(src, func(key, value []byte) error {
		_, _ = append(key, '!'), append(value, '!')
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if err := Outline(src, func(value []byte) { _ = append(value, '!') }, func(key, value []byte) error {
		_, _ = append(key, '!'), append(value, '!')
		return nil
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
