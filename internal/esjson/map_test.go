package esjson

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// checkKeyOrder checks the order in which AppendValue writes the keys of a map. The encoder first
// compares the first eight bytes of two keys. If these are equal, it compares the complete keys.
func checkKeyOrder(t *testing.T, g *generator) {
	keys := []string{
		"", "\x00", "a", "a\x00", "a\x00\x00", "ab", "abc", "abcd", "abcde", "abcdef", "abcdefg", "abcdefgh", "abcdefghi",
		"abcdefg\x00", "abcdefg\x01", "abcdefgg", "abcdefgi", "product_id", "product_name", "product_price", "product_",
		"0", "1", "9", "10", "00", "01", "4294967294", "4294967295", "4294967296", "1a", "-1", "é", "éa", "\x7f", "~",
	}
	for n := range 80 {
		keys = append(keys, fmt.Sprintf("property number %d", n%40), fmt.Sprint(n*n*n))
	}
	slices.Sort(keys)
	keys = slices.Compact(keys)
	index := func(key string) int64 { return arrayIndex([]byte(key)) }
	for n := 0; n < len(keys); n += 1 + n/8 {
		for range 4 {
			m := map[string]any{}
			for range n {
				m[keys[g.IntN(len(keys))]] = 0
			}
			var want []string
			for key := range m {
				want = append(want, key)
			}
			slices.SortFunc(want, func(a, b string) int {
				if index(a) != index(b) {
					return cmp.Compare(index(a), index(b))
				}
				return strings.Compare(a, b)
			})
			text, err := AppendValue(nil, m)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			if err := Members(text, func(key, value []byte) error { got = append(got, string(key)); return nil }); err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(got, want) {
				t.Fatalf("keys in the order\n%q\nwant\n%q", got, want)
			}
		}
	}
}
