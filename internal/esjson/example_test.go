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

func ExampleAppendMembers() {
	_, err := esjson.AppendMembers(nil, []byte(`{ "name" : [ 1.0, 2 ] }`), func(key, value, form []byte) error {
		fmt.Printf("%s is %s, which is written %s\n", key, value, form)
		return nil
	})
	fmt.Println(err)
	// Output:
	// name is [ 1.0, 2 ], which is written [1,2]
	// <nil>
}

func ExampleOutline() {
	err := esjson.Outline([]byte(`{"batch":[ {"type":"track"}, {"type":"page"} ],"sentAt":1}`), func(element []byte) {
		fmt.Printf("element %s\n", element)
	}, func(key, value []byte) error {
		fmt.Printf("%s of %d bytes\n", key, len(value))
		return nil
	})
	fmt.Println(err)
	// Output:
	// element {"type":"track"}
	// element {"type":"page"}
	// batch of 37 bytes
	// sentAt of 1 bytes
	// <nil>
}

func ExampleErrDepth() {
	loop := map[string]any{}
	loop["self"] = loop
	_, err := esjson.AppendValue(nil, loop)
	fmt.Println(errors.Is(err, esjson.ErrDepth))
	// Output: true
}
