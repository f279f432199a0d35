package esjson_test

import (
	"errors"
	"fmt"
	"math"

	"github.com/hookferry/analytics/internal/esjson"
)

func ExampleAppend() {
	body, err := esjson.Append(nil, []byte(`{ "total" : 39.950, "2" : "b", "1" : "a", "path" : "\/caf\u00e9", "total" : 1E21 }`))
	fmt.Println(string(body), err)

	_, err = esjson.Append(nil, []byte(`{"total":039}`))
	fmt.Println(err)
	// Output:
	// {"1":"a","2":"b","total":1e+21,"path":"/café"} <nil>
	// invalid JSON at byte 9: number with a leading zero
}

func ExampleAppendValue() {
	body, err := esjson.AppendValue(nil, map[string]any{
		"revenue": 39.95,
		"items":   []string{"a<b", "c&d"},
		"10":      true,
		"9":       nil,
	})
	fmt.Println(string(body), err)

	_, err = esjson.AppendValue(nil, map[string]any{
		"cart": []any{map[string]any{"price": math.NaN()}},
	})
	fmt.Println(err)
	// Output:
	// {"9":null,"10":true,"items":["a<b","c&d"],"revenue":39.95} <nil>
	// cart[0].price: not a number
}

func ExampleAppendString() {
	fmt.Println(string(esjson.AppendString(nil, "<a href=\"x\">\n\xff")))
	// Output: "<a href=\"x\">\n�"
}

func ExampleAppendFloat() {
	for _, f := range []float64{1.0, 0.30000000000000004, 1e21, 1e-7, math.Inf(1)} {
		fmt.Print(string(esjson.AppendFloat(nil, f)), " ")
	}
	// Output: 1 0.30000000000000004 1e+21 1e-7 null
}

func ExampleAppendText() {
	text, err := esjson.AppendText(nil, []byte(`"caf\u00e9 \ud83d\ude00 \ud83d"`))
	fmt.Println(string(text), err)
	// Output: café 😀 � <nil>
}

func ExampleMembers() {
	err := esjson.Members([]byte(`{ "userId" : "u1", "n\u0061me" : [ 1.0, 2 ] }`), func(key, value []byte) error {
		fmt.Printf("%s is %s\n", key, value)
		return nil
	})
	fmt.Println(err)
	// Output:
	// userId is "u1"
	// name is [ 1.0, 2 ]
	// <nil>
}

func ExampleElements() {
	err := esjson.Elements([]byte(`[ {"type":"track"}, {"type":"page"} ]`), func(value []byte) error {
		fmt.Println(string(value))
		return nil
	})
	fmt.Println(err)
	// Output:
	// {"type":"track"}
	// {"type":"page"}
	// <nil>
}

func ExampleErrDepth() {
	loop := map[string]any{}
	loop["self"] = loop
	_, err := esjson.AppendValue(nil, loop)
	fmt.Println(errors.Is(err, esjson.ErrDepth))
	// Output: true
}
