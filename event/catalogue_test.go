package event_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hookferry/analytics/event"
)

func TestCatalogueRefusesWrongTypes(t *testing.T) {
	for name, types := range map[string][]event.Type{
		"no type":         {{Example: 1}},
		"twice":           {{Type: "a.b"}, {Type: "a.b"}},
		"tracking call":   {{Type: "track"}},
		"not JSON":        {{Type: "a", Example: func() {}}},
		"too long a body": {{Type: "a", Example: strings.Repeat("x", event.MaxBody)}},
	} {
		if _, err := event.NewCatalogue(types...); err == nil {
			t.Errorf("%s: NewCatalogue has no error", name)
		}
	}
	c, err := event.NewCatalogue(event.Type{Type: "invoice.paid"})
	if err != nil {
		t.Fatal(err)
	}
	for kind, known := range map[string]bool{"invoice.paid": true, "invoice.pay": false, "track": true, "delete": true, "": false} {
		err := c.Check(kind)
		if _, refused := errors.AsType[*event.CallError](err); refused == known {
			t.Errorf("Check(%q) = %v, want known %v", kind, err, known)
		}
	}
	if err := (*event.Catalogue)(nil).Check("invoice.pay"); err != nil {
		t.Errorf("Check of no catalogue = %v, want nil", err)
	}
}

// A receiver of the earlier example may rely on each of its fields and their types.
func TestCompatibleFindsLostFields(t *testing.T) {
	for _, tt := range []struct {
		name, was, now string
		want           []string
	}{
		{"the same", `{"a":1,"b":[{"c":"x"}],"d":null}`, `{"a":1,"b":[{"c":"x"}],"d":null}`, nil},
		{"more", `{"a":1,"b":[],"d":null}`, `{"a":2.5,"b":[1],"d":{},"e":true}`, nil},
		{"lost", `{"a":{"b":1,"c":2},"d":null}`, `{"a":{"c":2}}`, []string{"data.a.b is missing", "data.d is missing"}},
		{"other types", `{"a":1,"b":[true],"c":{},"d":"x"}`, `{"a":"1","b":[null],"c":[],"d":null}`,
			[]string{"data.a was a number, and is a string", "data.b[0] was a boolean, and is null", "data.c was an object, and is an array", "data.d was a string, and is null"}},
		{"no object", `1`, `{}`, []string{"data was a number, and is an object"}},
	} {
		c, err := event.NewCatalogue(event.Type{Type: "x", Example: json.RawMessage(tt.now)})
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		if err := c.Compatible([]byte(`[{"type":"x","example":` + tt.was + `}]`)); err != nil {
			got = err.Error()
		}
		var want []string
		for _, line := range tt.want {
			want = append(want, "event: x: "+line)
		}
		if got != strings.Join(want, "\n") {
			t.Errorf("%s: Compatible = %q, want %q", tt.name, got, want)
		}
	}
	c, err := event.NewCatalogue()
	if err != nil {
		t.Fatal(err)
	}
	for _, earlier := range []string{`[{"type":"x","example":1}]`, `{`, ``} {
		if err := c.Compatible([]byte(earlier)); err == nil {
			t.Errorf("Compatible(%q) of an empty catalogue has no error", earlier)
		}
	}
}

func ExampleCatalogue() {
	type invoice struct {
		ID   string    `json:"id"`
		Paid time.Time `json:"paid"`
	}
	catalogue, err := event.NewCatalogue(event.Type{
		Type: "invoice.paid", Description: "An invoice was paid in full.",
		Example: invoice{ID: "inv-7", Paid: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)},
	})
	if err != nil {
		panic(err)
	}
	text, err := json.Marshal(catalogue)
	if err != nil {
		panic(err)
	}
	fmt.Println(string(text))
	fmt.Println(catalogue.Compatible([]byte(`[{"type":"invoice.paid","example":{"id":7,"amount":1}}]`)))
	// Output:
	// [{"type":"invoice.paid","description":"An invoice was paid in full.","example":{"id":"inv-7","paid":"2026-03-01T12:00:00.000Z"}}]
	// event: invoice.paid: data.amount is missing
	// event: invoice.paid: data.id was a number, and is a string
}
