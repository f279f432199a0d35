//lint:file-ignore SA5008,U1000 The tests are about invalid tags and about fields that nothing reads.

package esjson

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/big"
	"net/netip"
	"strings"
	"testing"
	"time"
)

type (
	upper            string // has MarshalText on the value
	point            struct{ X, Y int }
	pointerMarshaler struct{ s string } // has MarshalJSON on the pointer
	panicking        struct{}
	failing          struct{}
	invalid          struct{}
	raw              string
	keyed            int // has MarshalText, as a map key
	bytesNamed       []byte
	digits           []digit
	digit            byte // has MarshalText on the value
	coloured         byte // has MarshalText on the pointer
	recursive        []recursive
	selfPointer      *selfPointer
	anyMap           map[string]any
	nameMap          map[namedString]int
	floats           []namedFloat
	onOff            bool
	sameText         int // has MarshalText, which returns the same text for all keys
	size             uint32
)

var errFailing = errors.New("no luck")

func (u upper) MarshalText() ([]byte, error) { return []byte(strings.ToUpper(string(u))), nil }
func (p *pointerMarshaler) MarshalJSON() ([]byte, error) {
	return fmt.Appendf(nil, `{ "s" : %q }`, p.s), nil
}
func (panicking) MarshalJSON() ([]byte, error)   { panic("out of order") }
func (failing) MarshalText() ([]byte, error)     { return nil, errFailing }
func (invalid) MarshalJSON() ([]byte, error)     { return []byte(`{"a":}`), nil }
func (r raw) MarshalJSON() ([]byte, error)       { return []byte(r), nil }
func (k keyed) MarshalText() ([]byte, error)     { return fmt.Appendf(nil, "key %d", int(k)), nil }
func (sameText) MarshalText() ([]byte, error)    { return []byte("same"), nil }
func (d digit) MarshalText() ([]byte, error)     { return []byte{'0' + byte(d)}, nil }
func (c *coloured) MarshalText() ([]byte, error) { return fmt.Appendf(nil, "#%d", *c), nil }

func ptr[T any](v T) *T { return &v }

// values are values that AppendValue writes like encoding/json followed by Append. The test
// compares with both and with want.
var values = []struct {
	name  string
	value any
	want  string
}{
	{"nil", nil, `null`},
	{"bool", true, `true`},
	{"string", "Grüße \"<b>\" \u2028", "\"Grüße \\\"<b>\\\" \u2028\""},
	{"int", -42, `-42`},
	{"int8", int8(-128), `-128`},
	{"int16", int16(-32768), `-32768`},
	{"int32", int32(math.MinInt32), `-2147483648`},
	{"int64", int64(math.MaxInt64), `9223372036854776000`},
	{"int64 that is exact", int64(1 << 53), `9007199254740992`},
	{"int64 that rounds to even", int64(1<<53 + 1), `9007199254740992`},
	{"int64 that rounds to even, below zero", int64(-1<<53 - 1), `-9007199254740992`},
	{"uint64 that rounds to even", uint64(1<<53 + 1), `9007199254740992`},
	{"uint", uint(42), `42`},
	{"uint8", uint8(255), `255`},
	{"uint16", uint16(65535), `65535`},
	{"uint32", uint32(math.MaxUint32), `4294967295`},
	{"uint64", uint64(math.MaxUint64), `18446744073709552000`},
	{"uintptr", uintptr(7), `7`},
	{"float64", 1e21, `1e+21`},
	{"float64 that is an integer", 3.0, `3`},
	{"minus zero", math.Copysign(0, -1), `0`},
	{"float32", float32(0.1), `0.1`},
	{"float32, large", float32(math.MaxFloat32), `3.4028235e+38`},
	{"float32, small", float32(1e-7), `1e-7`},
	{"float32 that is an integer", float32(16777216), `16777216`},
	{"float32 that is a large integer", float32(123456789), `123456790`},
	{"float32 zero", float32(math.Copysign(0, -1)), `0`},
	{"json.Number", json.Number("1.50"), `1.5`},
	{"json.Number that is canonical", json.Number("150"), `150`},
	{"json.Number over the range", json.Number("1e999"), `null`},
	{"json.Number that is empty", json.Number(""), `0`},
	{"json.RawMessage", json.RawMessage(` { "b" : 1.0 , "1" : "\u003c" } `), `{"1":"<","b":1}`},
	{"json.RawMessage that is nil", json.RawMessage(nil), `null`},
	{"duration", 1500 * time.Millisecond, `1500000000`},
	{"bytes", []byte("bytes\xff"), `"Ynl0ZXP/"`},
	{"bytes that are nil", []byte(nil), `null`},

	{"map", map[string]any{"b": 1, "a": "x", "10": nil, "9": true, "": 1.5, "é": 0, "B": 2}, `{"9":true,"10":null,"":1.5,"B":2,"a":"x","b":1,"é":0}`},
	{"map that is nil", map[string]any(nil), `null`},
	{"map that is empty", map[string]any{}, `{}`},
	{"map of keys with one prefix", map[string]any{"property_b": 1, "property_a": 2, "property_": 3, "property": 4, "property\x00": 5}, `{"property":4,"property\u0000":5,"property_":3,"property_a":2,"property_b":1}`},
	{"map of keys around array indices", map[string]any{"4294967295": 1, "4294967294": 2, "00": 3, "0": 4, "-1": 5, "1.5": 6, "12345678": 7}, `{"0":4,"12345678":7,"4294967294":2,"-1":5,"00":3,"1.5":6,"4294967295":1}`},
	{"map of low keys", map[string]any{"": 1, "\x00": 2, "\x00\x00": 3, "\x00\x00\x00\x00\x00\x00\x00\x01": 4, "\x00\x00\x00\x00\x00\x00\x00\x00": 5, "1": 6}, `{"1":6,"":1,"\u0000":2,"\u0000\u0000":3,"\u0000\u0000\u0000\u0000\u0000\u0000\u0000\u0000":5,"\u0000\u0000\u0000\u0000\u0000\u0000\u0000\u0001":4}`},
	{"map of strings", map[string]string{"b": "<", "a": "", "1": "x"}, `{"1":"x","a":"","b":"<"}`},
	{"map of strings that is nil", map[string]string(nil), `null`},
	{"map of bools", map[string]bool{"Webhooks": true, "All": false}, `{"All":false,"Webhooks":true}`},
	{"map of ints", map[string]int{"b": 1, "a": -1}, `{"a":-1,"b":1}`},
	{"map of int64s", map[string]int64{"b": 1, "a": -1}, `{"a":-1,"b":1}`},
	{"map of floats", map[string]float64{"b": 1, "a": -1.5}, `{"a":-1.5,"b":1}`},
	{"map of lists", map[string][]string{"b": {"x", "y"}, "a": nil}, `{"a":null,"b":["x","y"]}`},
	{"map of maps", map[string]any{"b": map[string]any{"d": map[string]any{"f": 1, "e": 2}, "c": 3}, "a": map[string]int{"2": 1, "1": 2}}, `{"a":{"1":2,"2":1},"b":{"c":3,"d":{"e":2,"f":1}}}`},
	{"map of a named type", anyMap{"b": 1, "a": anyMap{"d": 1, "c": 2}}, `{"a":{"c":2,"d":1},"b":1}`},
	{"map of named keys", nameMap{"b": 1, "a": 2}, `{"a":2,"b":1}`},
	{"map of structs", map[string]point{"b": {1, 2}, "a": {}}, `{"a":{"X":0,"Y":0},"b":{"X":1,"Y":2}}`},
	{"map with int keys", map[int]string{10: "ten", 9: "nine", -1: "minus"}, `{"9":"nine","10":"ten","-1":"minus"}`},
	{"map with uint keys", map[uint8]int{10: 10, 9: 9}, `{"9":9,"10":10}`},
	{"map with int keys that is nil", map[int]string(nil), `null`},
	{"map with keys that marshal", map[keyed]int{2: 2, 1: 1}, `{"key 1":1,"key 2":2}`},
	{"map with string keys that marshal", map[upper]int{"b": 2, "a": 1}, `{"a":1,"b":2}`},
	{"map of many", manyEntries(100), ""},

	{"list", []any{1, "a", nil, []any{}, map[string]any{}}, `[1,"a",null,[],{}]`},
	{"list that is nil", []any(nil), `null`},
	{"list of maps", []map[string]any{{"b": 1, "a": 2}, nil}, `[{"a":2,"b":1},null]`},
	{"list of strings", []string{"a", "<"}, `["a","<"]`},
	{"list of strings that is nil", []string(nil), `null`},
	{"list of bools", []bool{true, false}, `[true,false]`},
	{"list of ints", []int{3, 1}, `[3,1]`},
	{"list of int64s", []int64{1 << 60}, `[1152921504606847000]`},
	{"list of floats", []float64{1, 0.5}, `[1,0.5]`},
	{"list of named floats", floats{1, 0.1}, `[1,0.1]`},
	{"list of structs", []point{{1, 2}}, `[{"X":1,"Y":2}]`},
	{"list of named bytes", bytesNamed("abc"), `"YWJj"`},
	{"list of bytes that marshal", digits{1, 2}, `["1","2"]`},
	{"list of bytes that marshal by pointer", []coloured{1, 2}, `["#1","#2"]`},
	{"list of pointer receivers", []pointerMarshaler{{"a"}, {"b"}}, `[{"s":"a"},{"s":"b"}]`},
	{"list of lists", [][]int{{1}, nil, {}}, `[[1],null,[]]`},
	{"list of pointers", []*int{ptr(1), nil}, `[1,null]`},
	{"list of a type of itself", recursive{{}, {{}}, nil}, `[[],[[]],null]`},
	{"array", [3]int{1, 2, 3}, `[1,2,3]`},
	{"array of bytes", [3]byte{1, 2, 3}, `[1,2,3]`},
	{"array of pointer receivers", [1]pointerMarshaler{{"a"}}, `[{}]`},
	{"array of pointer receivers by pointer", &[1]pointerMarshaler{{"a"}}, `[{"s":"a"}]`},

	{"pointer to string", ptr("a"), `"a"`},
	{"pointer to bool", ptr(true), `true`},
	{"pointer to int", ptr(1), `1`},
	{"pointer to int64", ptr(int64(1)), `1`},
	{"pointer to float64", ptr(1.5), `1.5`},
	{"pointer to int8", ptr(int8(1)), `1`},
	{"pointer to map", &map[string]any{"a": 1}, `{"a":1}`},
	{"pointer to pointer", ptr(ptr("a")), `"a"`},
	{"pointer to interface", ptr(any([]int{1})), `[1]`},
	{"pointer to nil interface", ptr(any(nil)), `null`},
	{"pointer to pointer to struct", ptr(&point{1, 2}), `{"X":1,"Y":2}`},
	{"nil pointers", []any{(*string)(nil), (*bool)(nil), (*int)(nil), (*int64)(nil), (*float64)(nil), (*time.Time)(nil), (*point)(nil), (*pointerMarshaler)(nil), (*netip.Addr)(nil), ptr((*int)(nil))}, `[null,null,null,null,null,null,null,null,null,null]`},

	{"named basic types", []any{namedString("a"), namedInt(1), namedFloat(0.1), time.Tuesday, ptr(namedString("b")), onOff(true), size(7)}, `["a",1,0.1,2,"b",true,7]`},
	{"struct", point{1, 2}, `{"X":1,"Y":2}`},
	{"struct with tags", struct {
		B string  `json:"b,omitempty"`
		C float64 `json:"2"`
		A *int    `json:"1"`
		D string  `json:"-"`
	}{C: 1e21}, `{"1":null,"2":1e+21}`},
	{"struct with a pointer receiver", struct{ P pointerMarshaler }{pointerMarshaler{"a"}}, `{"P":{}}`},
	{"struct with a pointer receiver by pointer", &struct{ P pointerMarshaler }{pointerMarshaler{"a"}}, `{"P":{"s":"a"}}`},
	{"Marshaler", &pointerMarshaler{"é"}, `{"s":"é"}`},
	{"Marshaler in a form of its own", raw(`{"b":1.0,"b":2,"1":"\u003c"}`), `{"1":"<","b":2}`},
	{"big integer", new(big.Int).Lsh(big.NewInt(1), 70), `1.1805916207174113e+21`},
	{"TextMarshaler", upper("grüße"), `"GRÜßE"`},
	{"TextMarshaler of the library", netip.MustParseAddr("203.0.113.7"), `"203.0.113.7"`},
}

func manyEntries(n int) map[string]any {
	m := map[string]any{}
	for i := range n {
		m[fmt.Sprint(i*i)] = i
		m[fmt.Sprintf("key %d", i)] = i
		m[fmt.Sprintf("a long key with its number %d at the end", i)] = i
	}
	return m
}

func TestAppendValue(t *testing.T) {
	for _, tt := range values {
		t.Run(tt.name, func(t *testing.T) {
			got, err := AppendValue([]byte("x"), tt.value)
			if err != nil {
				t.Fatalf("AppendValue(%#v): %v", tt.value, err)
			}
			if tt.want != "" && string(got) != "x"+tt.want {
				t.Errorf("AppendValue(%#v) = %s\nwant x and %s", tt.value, got, tt.want)
			}
			if want := standard(t, tt.value); string(got) != "x"+want {
				t.Errorf("AppendValue(%#v) = %s\nwant, as encoding/json writes, x and %s", tt.value, got, want)
			}
		})
	}
}

// standard returns the JSON of encoding/json in the canonical form of Append.
func standard(t *testing.T, v any) string {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	text, err = Append(nil, text)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// checkValues checks that AppendValue writes values like encoding/json followed by Append.
func checkValues(t *testing.T, g *generator) {
	g.plain = true
	for range 500 {
		v := g.value(5)
		got, err := AppendValue(nil, v)
		if err != nil {
			t.Fatalf("AppendValue(%#v): %v", v, err)
		}
		if want := standard(t, v); string(got) != want {
			t.Fatalf("AppendValue(%#v) = %s\nwant %s", v, got, want)
		}
	}
}

// TestAppendValueWhereEncodingJSONDiffers tests values that encoding/json writes differently, or
// differently in different Go releases.
func TestAppendValueWhereEncodingJSONDiffers(t *testing.T) {
	noon := time.Date(2024, 5, 6, 12, 0, 0, 123456789, time.FixedZone("", 2*3600))
	for _, tt := range []struct {
		name  string
		value any
		want  string
	}{
		{"time", noon, `"2024-05-06T10:00:00.123Z"`},
		{"pointer to time", &noon, `"2024-05-06T10:00:00.123Z"`},
		{"times in a map", map[string]any{"at": noon, "times": []time.Time{noon}}, `{"at":"2024-05-06T10:00:00.123Z","times":["2024-05-06T10:00:00.123Z"]}`},
		{"pointer to pointer to time", ptr(&noon), `"2024-05-06T10:00:00.123Z"`},
		{"zero time", time.Time{}, `"0001-01-01T00:00:00.000Z"`},
		{"times in a struct", struct{ T, P any }{noon, &noon}, `{"T":"2024-05-06T10:00:00.123Z","P":"2024-05-06T10:00:00.123Z"}`},
		{"time in a struct by pointer", &struct{ T time.Time }{noon}, `{"T":"2024-05-06T10:00:00.123Z"}`},
		{"tag with an invalid name", struct {
			A int `json:"a\\b"`
		}{1}, `{"A":1}`},
		{"number as a string", struct {
			N json.Number `json:",string"`
		}{"1.50"}, `{"N":"1.5"}`},
		{"minus zero as a string", struct {
			F float64 `json:",string"`
		}{math.Copysign(0, -1)}, `{"F":"0"}`},
		{"markup as a string", struct {
			S string `json:",string"`
		}{"<"}, `{"S":"\"<\""}`},
		{"keys that marshal to the same text", map[sameText]int{1: 1, 2: 1}, `{"same":1}`},
		{"invalid UTF-8", "a\xe2\x82b", "\"a\ufffdb\""},
		{"keys that become one", map[string]any{"\xfe": 1, "\xff": 2, "a": 3, "\xff\x00": 4}, "{\"a\":3,\"\ufffd\":2,\"\ufffd\\u0000\":4}"},
		{"keys that become one, as long as before", map[string]int{"\xf0\x90\x80": 1, "\ufffd": 2}, "{\"\ufffd\":1}"},
		{"keys that become one, inside", []any{map[string]string{"\xfe": "1", "\xff": "2"}}, "[{\"\ufffd\":\"2\"}]"},
		{"lone surrogate", json.RawMessage(`"\uD800"`), `"\ud800"`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := AppendValue([]byte("x"), tt.value)
			if err != nil || string(got) != "x"+tt.want {
				t.Errorf("AppendValue(%#v) = %s, %v\nwant x and %s", tt.value, got, err, tt.want)
			}
		})
	}
}

func TestAppendValueErrors(t *testing.T) {
	cyclicMap := map[string]any{}
	cyclicMap["m"] = cyclicMap
	cyclicList := []any{nil}
	cyclicList[0] = cyclicList
	var cyclicPointer any
	cyclicPointer = &cyclicPointer
	cyclicStruct := new(chain)
	cyclicStruct.Next = cyclicStruct
	var self selfPointer
	self = &self
	for _, tt := range []struct {
		name          string
		value         any
		path, problem string
		is            error // the error that the result must match; nil: not checked
	}{
		{"NaN", math.NaN(), "", "not a number", nil},
		{"NaN of float32", float32(math.NaN()), "", "not a number", nil},
		{"infinite", map[string]any{"a": math.Inf(1)}, "a", "infinite", nil},
		{"infinite of a named type", map[string]any{"a": floats{1, namedFloat(math.Inf(-1))}}, "a[1]", "infinite", nil},
		{"deep inside", map[string]any{"cart": []any{0, 1, 2, map[string]any{"price": math.NaN()}}}, "cart[3].price", "not a number", nil},
		{"list in a list", []any{[]float64{0, math.NaN()}}, "[0][1]", "not a number", nil},
		{"map in a list of maps", []map[string]any{{}, {"a": map[string]float64{"b": math.NaN()}}}, "[1].a.b", "not a number", nil},
		{"key that needs quotes", map[string]any{"a.b c": map[int]float64{7: math.NaN()}}, `["a.b c"].7`, "not a number", nil},
		{"key that is empty", map[string]any{"": []any{math.NaN()}}, `[""][0]`, "not a number", nil},
		{"key that is long", map[string]any{"x" + strings.Repeat("é", 50): math.NaN()}, `["x` + strings.Repeat("é", 29) + `…"]`, "not a number", nil},
		{"channel", map[string]any{"c": make(chan int)}, "c", "unsupported type: chan int", nil},
		{"function", []any{func() {}}, "[0]", "unsupported type: func()", nil},
		{"complex number", map[string]any{"c": 1i}, "c", "unsupported type: complex128", nil},
		{"struct with NaN", map[string]any{"s": struct{ F float64 }{math.NaN()}}, "s.F", "not a number", nil},
		{"struct with NaN as a string", []any{&options{Float: math.NaN()}}, "[0].float", "not a number", nil},
		{"struct with a channel", struct{ C chan int }{}, "C", "unsupported type: chan int", nil},
		{"struct with a function", &struct {
			F func() `json:"f.g,omitempty"`
		}{}, `["f.g"]`, "unsupported type: func()", nil},
		{"struct with IsZero that panics", struct {
			Z zeroPanics `json:"z,omitzero"`
		}{}, "z", "IsZero: panic: out of order", nil},
		{"map with struct keys", map[string]any{"m": map[point]int{}}, "m", "unsupported type: map[esjson.point]int", nil},
		{"map with float keys", map[float64]int{}, "", "unsupported type: map[float64]int", nil},
		{"map with keys of any type", map[any]int{}, "", "unsupported type: map[interface {}]int", nil},
		{"map with keys that fail", map[string]any{"m": map[failing]int{{}: 1}}, "m", "MarshalText: no luck", errFailing},
		{"list of channels", []chan int{nil}, "[0]", "unsupported type: chan int", nil},
		{"year", map[string]any{"t": time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)}, "t", "time of a year outside 0 to 9999", nil},
		{"json.Number", map[string]any{"n": json.Number("1.")}, "n", "json.Number that is no number", nil},
		{"json.Number that is a word", json.Number("NaN"), "", "json.Number that is no number", nil},
		{"json.Number with more", json.Number("1 "), "", "json.Number that is no number", nil},
		{"json.RawMessage", map[string]any{"r": json.RawMessage(`{"a":}`)}, "r", "invalid JSON at byte 5: unexpected character", nil},
		{"json.RawMessage that is empty", json.RawMessage{}, "", "invalid JSON at byte 0: unexpected end", nil},
		{"Marshaler that panics", map[string]any{"m": panicking{}}, "m", "MarshalJSON: panic: out of order", nil},
		{"Marshaler that panics in a struct", map[string]any{"s": struct{ P panicking }{}}, "s.P", "MarshalJSON: panic: out of order", nil},
		{"Marshaler that fails", map[string]any{"m": failing{}}, "m", "MarshalText: no luck", errFailing},
		{"Marshaler that fails in a struct", map[string]any{"s": struct{ F failing }{}}, "s.F", "MarshalText: no luck", errFailing},
		{"Marshaler that gives no JSON", []any{invalid{}}, "[0]", "invalid JSON at byte 5: unexpected character", nil},
		{"cyclic map", cyclicMap, "m.m.m.…", "nested deeper than 1000 levels", ErrDepth},
		{"cyclic list", cyclicList, "[0][0][0]…", "nested deeper than 1000 levels", ErrDepth},
		{"cyclic pointer", map[string]any{"p": cyclicPointer}, "p", "nested deeper than 1000 levels", ErrDepth},
		{"cyclic struct", cyclicStruct, "Next.Next.…", "nested deeper than 1000 levels", ErrDepth},
		{"cyclic pointer of a type", map[string]any{"p": self}, "p", "nested deeper than 1000 levels", ErrDepth},
		{"raw message too deep", []any{json.RawMessage(nested("[", "", "]", MaxDepth))}, "[0]", "invalid JSON at byte 999: nested deeper than 1000 levels", ErrDepth},
		{"strings too deep", map[string]any{"d": deep([]string{})}, "d[0][0]…", "nested deeper than 1000 levels", ErrDepth},
		{"map of strings too deep", map[string]any{"d": deep(map[string]string{})}, "d[0][0]…", "nested deeper than 1000 levels", ErrDepth},
		{"named list too deep", map[string]any{"d": deep(floats{})}, "d[0][0]…", "nested deeper than 1000 levels", ErrDepth},
		{"struct too deep", map[string]any{"d": deep(point{})}, "d[0][0]…", "nested deeper than 1000 levels", ErrDepth},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := AppendValue([]byte("kept"), tt.value)
			if string(got) != "kept" {
				t.Errorf("AppendValue = %q, want dst unchanged", got)
			}
			var value *ValueError
			if !errors.As(err, &value) {
				t.Fatalf("AppendValue: %v, want a *ValueError", err)
			}
			samePath := value.Path == tt.path
			if begin, cut := strings.CutSuffix(tt.path, "…"); cut {
				samePath = strings.HasPrefix(value.Path, begin) && strings.HasSuffix(value.Path, "…") && len(value.Path) <= maxPath+len("…")
			}
			if !samePath || value.Problem != tt.problem {
				t.Errorf("AppendValue refuses %q because of %q\nwant %q because of %q", value.Path, value.Problem, tt.path, tt.problem)
			}
			if tt.is != nil && !errors.Is(err, tt.is) || tt.is != ErrDepth && errors.Is(err, ErrDepth) {
				t.Errorf("errors.Is(%v, %v) = false, or errors.Is(err, ErrDepth) is wrong", err, tt.is)
			}
		})
	}
}

// deep nests v in MaxDepth-1 lists. If v is itself a level of nesting, a map that has the result
// exceeds MaxDepth.
func deep(v any) any {
	for range MaxDepth - 1 {
		v = []any{v}
	}
	return v
}

func TestAppendValueAcceptsTheSameDepthAsAppend(t *testing.T) {
	for _, v := range []any{deep([]string{}), deep(map[string]string{"a": ""}), deep(floats{1}), deep(point{}), deep([]any{map[string]any{"a": "b"}}).([]any)[0], json.RawMessage(nested("[", "", "]", MaxDepth))} {
		text, err := AppendValue(nil, v)
		if err != nil {
			t.Errorf("AppendValue: %v", err)
		}
		if _, err := Append(nil, text); err != nil {
			t.Errorf("Append: %v", err)
		}
	}
}

func TestAppendValueErrorText(t *testing.T) {
	_, err := AppendValue(nil, map[string]any{"cart": []any{math.NaN()}})
	if got, want := err.Error(), "cart[0]: not a number"; got != want {
		t.Errorf("the error is %q, want %q", got, want)
	}
	_, err = AppendValue(nil, math.NaN())
	if got, want := err.Error(), "not a number"; got != want {
		t.Errorf("the error is %q, want %q", got, want)
	}
}

// A released encoder holds no keys or values of its last call, whether that succeeded or failed.
func TestAReleasedEncoderKeepsNoEntries(t *testing.T) {
	e := new(encoder)
	for _, v := range []any{
		map[string]any{"a": "b", "c": map[string]any{"d": []any{map[string]string{"e": "f"}}}},
		map[string]any{"a": "b", "c": map[string]any{"d": math.NaN(), "e": "f"}},
		map[string]float64{"a": math.NaN(), "b": 1},
	} {
		_, _ = e.value(nil, v, 0)
		e.release()
		for i, entry := range e.entries[:cap(e.entries)] {
			if entry != (struct {
				key   string
				value any
			}{}) {
				t.Errorf("after encoding %v, entry %d is %v, want it empty", v, i, entry)
			}
		}
	}
}
