package isotime_test

import (
	"fmt"
	"time"

	"github.com/hookferry/analytics/internal/isotime"
)

func ExampleAppend() {
	t := time.Date(2024, 5, 6, 9, 8, 7, 654321000, time.FixedZone("", 2*3600))
	fmt.Println(string(isotime.Append(nil, t)))
	// Output: 2024-05-06T07:08:07.654Z
}

func ExampleParse() {
	for _, s := range []string{"2015-2-02T10:00:00+0100", "2015-02-02", "2015-02", "2015-02-30T10:00:00Z"} {
		t, err := isotime.Parse(s)
		fmt.Println(t, err)
	}
	// Output:
	// 2015-02-02 09:00:00 +0000 UTC <nil>
	// 2015-02-02 00:00:00 +0000 UTC <nil>
	// 0001-01-01 00:00:00 +0000 UTC not an RFC 3339 time, such as 2006-01-02T15:04:05Z
	// 0001-01-01 00:00:00 +0000 UTC day out of range
}

func ExampleParseJSON() {
	for _, raw := range []string{`"2024-05-06T07:08:09Z"`, `1714979289`, `1714979289500`, `"1714979289"`} {
		t, err := isotime.ParseJSON([]byte(raw))
		fmt.Println(t, err)
	}
	// Output:
	// 2024-05-06 07:08:09 +0000 UTC <nil>
	// 2024-05-06 07:08:09 +0000 UTC <nil>
	// 2024-05-06 07:08:09.5 +0000 UTC <nil>
	// 0001-01-01 00:00:00 +0000 UTC not an RFC 3339 time, such as 2006-01-02T15:04:05Z
}
