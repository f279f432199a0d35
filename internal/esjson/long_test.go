package esjson

import (
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
)

type longText struct{ s string }

func (l longText) MarshalText() ([]byte, error) { return []byte(l.s), nil }

// If a value is longer than the limit, AppendMember returns ErrLong. It allocates little more
// memory than the limit, however long the value is.
func TestAppendMemberOfALongValueAllocatesLittle(t *testing.T) {
	const limit, huge = 1000, 20_000_000
	text := strings.Repeat("x", huge)
	type named string
	many := make([]string, 100_000)
	for i := range many {
		many[i] = text[:900]
	}
	members := map[string]string{}
	for i := range 1000 {
		members[fmt.Sprint(i)] = text[:900]
	}
	for _, tt := range []struct {
		name  string
		value any
	}{
		{"string", text},
		{"pointer", &text},
		{"named string", named(text)},
		{"key", map[string]any{text: 1}},
		{"key of strings", map[string]string{text: "a"}},
		{"named key", map[named]any{named(text): 1}},
		{"number", json.Number(strings.Repeat("3", huge))},
		{"member", map[string]any{"a": map[string]string{"b": text}}},
		{"many members", members},
		{"map of strings", map[string][]string{"a": many}},
		{"bytes", make([]byte, huge)},
		{"raw", json.RawMessage(`"` + text + `"`)},
		{"ints", make([]int, huge)},
		{"any", make([]any, huge)},
		{"strings", many},
		{"array", [5_000]int{}},
		{"named ints", make([]struct{ A, B int }, 100_000)},
		{"field", struct{ A, B string }{text[:900], text[:900]}},
		{"field as string", struct {
			A string `json:",string"`
		}{text}},
		{"text marshaler", longText{text[:10_000]}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dst := []byte("before")
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			out, err := AppendMember(dst, tt.value, limit)
			runtime.ReadMemStats(&after)
			if !errors.Is(err, ErrLong) || string(out) != "before" {
				t.Errorf("AppendMember = %.20q, %v, want dst unchanged and ErrLong", out, err)
			}
			if n := after.TotalAlloc - before.TotalAlloc; n > 200*limit {
				t.Errorf("AppendMember allocated %d bytes, want at most %d", n, 200*limit)
			}
		})
	}
}

func TestAppendMemberWritesAValueOfExactlyTheLimit(t *testing.T) {
	for _, v := range []any{"text", 12345, []int{1, 2, 3}, map[string]any{"a": "b", "c": []string{"d"}}, map[string]int{"a": 1}, struct{ A int }{7}} {
		want, err := AppendValue(nil, v)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := AppendMember(nil, v, len(want)); err != nil || string(got) != string(want) {
			t.Errorf("AppendMember(%v, %d) = %s, %v, want %s", v, len(want), got, err, want)
		}
	}
}
