//lint:file-ignore SA5008,U1000 The tests are about invalid tags and about fields that nothing reads.

package esjson

import (
	"encoding/json"
	"math/big"
	"net/netip"
	"testing"
	"time"
)

type (
	options struct {
		Omitted     string                     `json:"omitted,omitempty"`
		NoList      []int                      `json:",omitempty"`
		NoMap       map[string]int             `json:",omitempty"`
		NoArray     [0]int                     `json:",omitempty"`
		NoPointer   *int                       `json:",omitempty"`
		NoInterface any                        `json:",omitempty"`
		Struct      point                      `json:"struct,omitempty"` // a struct is never empty
		ZeroStruct  point                      `json:"zeroStruct,omitzero"`
		ZeroTime    time.Time                  `json:"zeroTime,omitzero"`
		ZeroPointer *point                     `json:"zeroPointer,omitzero"`
		ZeroAddr    netip.Addr                 `json:"zeroAddr,omitzero"`
		Minus       zeroMinus                  `json:"minus,omitzero"`
		MinusByPtr  zeroMinusPtr               `json:"minusByPtr,omitzero"`
		Either      interface{ IsZero() bool } `json:"either,omitzero"`
		Skipped     chan int                   `json:"-"`
		Dash        int                        `json:"-,"`
		Int         int64                      `json:"int,string"`
		Uint        uint64                     `json:"uint,string"`
		Float       float64                    `json:"float,string"`
		Bool        bool                       `json:"bool,string,omitempty"`
		Text        string                     `json:"text,string"`
		IntPtr      *int                       `json:"intPtr,string"`
		NilPtr      *int                       `json:"nilPtr,string"`
		NumberText  json.Number                `json:"number,string"`
		Upper       upper                      `json:"upper,string"` // MarshalText takes precedence over the option
		Ignored     []int                      `json:"ignored,string"`
		unexported  int
	}
	zeroMinus    int
	zeroMinusPtr int
	zeroPanics   struct{}
	chain        struct{ Next *chain }

	inner    struct{ A, B int }
	Exported struct {
		B string
		C int `json:"c"`
	}
	number int
	Number int
	loop   struct {
		*loop
		L int
	}
	left   struct{ shared }
	right  struct{ shared }
	shared struct {
		S int
		deepest
	}
	deepest     struct{ D int }
	plainTwice  struct{ X int }
	taggedTwice struct {
		Y int `json:"X"`
	}
	marshalLeft  struct{ time.Time }
	marshalRight struct{ *big.Int }
)

func (z zeroMinus) IsZero() bool     { return z == -1 }
func (z *zeroMinusPtr) IsZero() bool { return *z == -1 }
func (zeroPanics) IsZero() bool      { panic("out of order") }

// structs are values that AppendValue writes like encoding/json followed by Append, in every Go
// release.
var structs = []struct {
	name  string
	value any
	want  string
}{
	{"empty", struct{}{}, `{}`},
	{"unexported fields alone", struct{ a, b int }{1, 2}, `{}`},
	{"array indices come first", struct {
		B   int `json:"b"`
		Ten int `json:"10"`
		Two int `json:"2"`
		A   int `json:"a"`
	}{1, 2, 3, 4}, `{"2":3,"10":2,"b":1,"a":4}`},
	{"names with punctuation", struct {
		A int `json:"<a.b> & 'c'"`
		B int `json:"$é:1/2"`
	}{1, 2}, `{"A":1,"$é:1/2":2}`},
	{"options that do not apply", options{Int: 1<<63 - 1, Uint: 1<<64 - 1, Float: 1e21, Bool: true, Text: "a\"é", IntPtr: ptr(1), NumberText: "12", Upper: "up", Minus: 1, MinusByPtr: 1, Either: zeroMinus(1), NoInterface: 0},
		`{"NoInterface":0,"struct":{"X":0,"Y":0},"minus":1,"minusByPtr":1,"either":1,"-":0,"int":"9223372036854775807","uint":"18446744073709551615","float":"1e+21","bool":"true","text":"\"a\\\"é\"","intPtr":"1","nilPtr":null,"number":"12","upper":"UP","ignored":null}`},
	{"options by pointer", &options{Minus: -1, MinusByPtr: -1, Either: (*zeroMinusPtr)(nil), NoPointer: ptr(0), ZeroPointer: &point{}, NoMap: map[string]int{"a": 1}, NoList: []int{0}, Dash: 1},
		`{"NoList":[0],"NoMap":{"a":1},"NoPointer":0,"struct":{"X":0,"Y":0},"zeroPointer":{"X":0,"Y":0},"-":1,"int":"0","uint":"0","float":"0","text":"\"\"","intPtr":null,"nilPtr":null,"number":"0","upper":"","ignored":null}`},
	{"embedded", struct {
		inner
		*Exported
		A string
		number
		Number
	}{inner{1, 2}, &Exported{"x", 3}, "own", 4, 5}, `{"c":3,"A":"own","Number":5}`},
	{"embedded pointer that is nil", struct {
		*Exported
		*inner
	}{}, `{}`},
	{"embedded with a name", struct {
		inner    `json:"in"`
		Exported `json:"out"`
	}{inner{1, 2}, Exported{"x", 3}}, `{"in":{"A":1,"B":2},"out":{"B":"x","c":3}}`},
	{"embedded pointer with a name", &struct {
		*inner    `json:"in"`
		*Exported `json:"out"`
		None      *inner `json:"none"`
	}{inner: &inner{1, 2}}, `{"in":{"A":1,"B":2},"out":null,"none":null}`},
	{"embedded interface", struct{ error }{}, `{}`},
	{"embedded in itself", loop{&loop{nil, 1}, 2}, `{"L":2}`},
	{"embedded twice at one depth", struct {
		left
		right
		A int
	}{A: 1}, `{"D":0,"A":1}`},
	{"of two equal names at one depth, the one with a tag", struct {
		plainTwice
		taggedTwice
	}{plainTwice{1}, taggedTwice{2}}, `{"X":2}`},
	{"two equal names at one depth are both left out", struct {
		plainTwice
		Also struct{ X int } `json:"also"`
		Exported
		inner
	}{plainTwice{1}, struct{ X int }{2}, Exported{"x", 3}, inner{1, 2}}, `{"X":1,"also":{"X":2},"c":3,"A":1}`},
	{"two embedded methods at one depth", struct {
		marshalLeft
		marshalRight
	}{}, `{}`},
	{"interfaces and lists", struct {
		Any  any
		List []point
		Ptrs []*point
		Raw  json.RawMessage
		Map  map[string]point
	}{&point{1, 2}, []point{{3, 4}}, []*point{nil}, json.RawMessage(`{"b":1.0,"1":2}`), map[string]point{"a": {5, 6}}},
		`{"Any":{"X":1,"Y":2},"List":[{"X":3,"Y":4}],"Ptrs":[null],"Raw":{"1":2,"b":1},"Map":{"a":{"X":5,"Y":6}}}`},
	{"methods with a pointer receiver", struct {
		Value   pointerMarshaler
		Pointer *pointerMarshaler
		List    []pointerMarshaler
		Array   [1]pointerMarshaler
		Any     any
	}{pointerMarshaler{"a"}, &pointerMarshaler{"b"}, []pointerMarshaler{{"c"}}, [1]pointerMarshaler{{"d"}}, pointerMarshaler{"e"}},
		`{"Value":{},"Pointer":{"s":"b"},"List":[{"s":"c"}],"Array":[{}],"Any":{}}`},
	{"methods with a pointer receiver, by pointer", &struct {
		Value  pointerMarshaler
		Array  [1]pointerMarshaler
		Colour coloured `json:",string"`
		Inner  struct{ Value pointerMarshaler }
	}{Value: pointerMarshaler{"a"}, Array: [1]pointerMarshaler{{"d"}}, Colour: 3},
		`{"Value":{"s":"a"},"Array":[{"s":"d"}],"Colour":"#3","Inner":{"Value":{"s":""}}}`},
}

func TestAppendValueOfStructs(t *testing.T) {
	for _, tt := range structs {
		t.Run(tt.name, func(t *testing.T) {
			for range 2 { // the second call uses the cached fields
				got, err := AppendValue([]byte("x"), tt.value)
				if err != nil || string(got) != "x"+tt.want {
					t.Errorf("AppendValue(%#v) = %s, %v\nwant x and %s", tt.value, got, err, tt.want)
				}
			}
			if want := standard(t, tt.value); tt.want != want {
				t.Errorf("encoding/json and Append write %#v as\n%s\nbut this table has\n%s", tt.value, want, tt.want)
			}
		})
	}
}
