//go:build !race

package esjson

import (
	"encoding/json"
	"testing"
	"time"
)

// The race detector makes sync.Pool drop some of its elements at random. So allocations are
// only counted without it.

func TestAppendDoesNotAllocate(t *testing.T) {
	for _, tt := range []struct{ name, src string }{
		{"typical body", typicalBody},
		{"nasty body", nastyBody},
	} {
		t.Run(tt.name, func(t *testing.T) {
			src := []byte(tt.src)
			dst := make([]byte, 0, 2*len(src))
			if n := testing.AllocsPerRun(200, func() { dst, _ = Append(dst[:0], src) }); n != 0 {
				t.Errorf("Append allocates %v times, want 0", n)
			}
		})
	}
}

func TestWalkingMembersDoesNotAllocate(t *testing.T) {
	typical, nasty := []byte(typicalBody), []byte(nastyBody)
	n := 0
	member := func(key, value []byte) error { n += len(key) + len(value); return nil }
	var forms []byte
	for _, tt := range []struct {
		name string
		walk func() error
	}{
		{"Members", func() error { return Members(typical, member) }},
		{"AppendMembers", func() (err error) {
			forms, err = AppendMembers(forms[:0], nasty, func(key, _, form []byte) error { n += len(key) + len(form); return nil })
			return err
		}},
		{"Outline", func() error { return Outline(typical, func(value []byte) { n += len(value) }, member) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if allocs := testing.AllocsPerRun(200, func() {
				if err := tt.walk(); err != nil {
					t.Fatal(err)
				}
			}); allocs != 0 {
				t.Errorf("%s allocates %v times, want 0", tt.name, allocs)
			}
		})
	}
}

func TestAppendValueDoesNotAllocate(t *testing.T) {
	for _, tt := range []struct {
		name  string
		value any
	}{
		{"ten properties", tenProperties()},
		{"many properties", manyEntries(40)},
		{"map of strings", map[string]string{"a": "b", "c": "d"}},
		{"map of ints", map[string]int{"1": 1, "b": 2}},
		{"nested", map[string]any{"m": map[string]any{"a": 1}, "l": []any{1, "b", []string{"c"}}, "f": []float64{1.5}, "s": []map[string]any{{"b": true}}}},
		{"time and raw", map[string]any{"t": time.Now(), "r": json.RawMessage(`{"a":1}`), "n": json.Number("1.50"), "d": time.Second}},
		{"named map", anyMap{"a": 1, "b": namedString("c"), "d": namedInt(5)}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dst := make([]byte, 0, 1<<16)
			if n := testing.AllocsPerRun(200, func() { dst, _ = AppendValue(dst[:0], tt.value) }); n != 0 {
				t.Errorf("AppendValue allocates %v times, want 0", n)
			}
		})
	}
}
