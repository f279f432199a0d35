package signature_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hookferry/analytics/signature"
)

func TestEvents(t *testing.T) {
	one := func(body string) []signature.Event { return []signature.Event{{ID: "id", Body: json.RawMessage(body)}} }
	for _, tt := range []struct {
		name, body string
		want       []signature.Event // nil means an error
	}{
		{"one event", `{"type":"track"}`, one(`{"type":"track"}`)},
		{"not JSON", "hello", one("hello")},
		{"empty", "", one("")},
		{"a batch", ` [{"id":"a","event":{"b": [1]}},{"event":{},"id":"c~"}]`,
			[]signature.Event{{ID: "a", Body: json.RawMessage(`{"b": [1]}`)}, {ID: "c~", Body: json.RawMessage("{}")}}},
		{"an empty batch", "[]", []signature.Event{}},
		{"a batch that ends early", `[{"id":"a","event":{}}`, nil},
		{"bytes after a batch", `[{"id":"a","event":{}}]]`, nil},
		{"an event without an id", `[{"event":{}}]`, nil},
		{"an id with a full stop", `[{"id":"a.b","event":{}}]`, nil},
		{"an id with a space", `[{"id":"a b","event":{}}]`, nil},
		{"an id that is too long", `[{"id":"` + strings.Repeat("a", 1025) + `","event":{}}]`, nil},
		{"an id that is a number", `[{"id":1,"event":{}}]`, nil},
		{"no event", `[{"id":"a"}]`, nil},
		{"an event that is null", `[{"id":"a","event":null}]`, nil},
		{"an event that is a text", `[{"id":"a","event":"b"}]`, nil},
		{"an array of texts", `["a"]`, nil},
		{"too many events", "[" + strings.Repeat(`{"id":"a","event":{}},`, signature.MaxBatch) + `{"id":"a","event":{}}]`, nil},
	} {
		got, err := signature.Events("id", []byte(tt.body))
		if diff := cmp.Diff(tt.want, got); diff != "" || (err != nil) != (tt.want == nil) {
			t.Errorf("%s: error %v, want one: %t; events (-want +got):\n%s", tt.name, err, tt.want == nil, diff)
		}
	}
}

// Whatever the body, the events together are no larger, and each one of a batch is a JSON object.
func FuzzEvents(f *testing.F) {
	for _, body := range []string{`{}`, `[]`, `[{"id":"a","event":{"b":1}}]`, `[{"id":"a","event":{}},{"ID":"b","Event":{}}]`, `[null]`, "[", " ["} {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		events, err := signature.Events("id", body)
		if err != nil {
			return
		}
		size := 0
		for _, e := range events {
			size += len(e.Body)
			if e.ID != "id" && (!json.Valid(e.Body) || !bytes.HasPrefix(e.Body, []byte("{")) || strings.ContainsAny(e.ID, ". \n")) {
				t.Errorf("Events(%q) has the event %q of id %q", body, e.Body, e.ID)
			}
		}
		if size > len(body) {
			t.Errorf("Events(%q) has %d bytes of events, want at most %d", body, size, len(body))
		}
	})
}
