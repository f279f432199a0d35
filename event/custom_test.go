package event_test

import (
	"encoding/json"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/hookferry/analytics/event"
)

// An event of the program itself has the body that the Standard Webhooks specification recommends.
func TestCustomEvents(t *testing.T) {
	encoder, err := event.NewEncoder(event.Envelope{Source: "shop", ReceivedAt: envelope.ReceivedAt})
	if err != nil {
		t.Fatal(err)
	}
	type invoice struct {
		ID    string    `json:"id"`
		Total float64   `json:"total"`
		Note  string    `json:"note,omitempty"`
		Due   time.Time `json:"due"`
	}
	at := time.Date(2026, 3, 1, 12, 0, 0, 123_456_789, time.FixedZone("", 3600))
	got, err := encoder.Encode(&event.Custom{Type: "invoice.paid", ID: "inv-7", Time: at, User: "u1", Key: "customer-9", Data: invoice{ID: "<7>", Total: 1e21, Due: at}})
	want := event.Event{
		ID: "inv-7", Source: "shop", User: "u1", Key: "customer-9", Type: "invoice.paid", Received: envelope.ReceivedAt,
		Body: []byte(`{"type":"invoice.paid","timestamp":"2026-03-01T11:00:00.123Z","data":{"id":"<7>","total":1e+21,"due":"2026-03-01T11:00:00.123Z"}}`),
	}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreUnexported(event.Event{})); err != nil || diff != "" {
		t.Errorf("Encode: %v (-want +got)\n%s", err, diff)
	}
	for data, want := range map[any]string{nil: "null", 1: "1", "\u2028<": "\"\u2028<\""} {
		b, err := (&event.Custom{Type: "t", Data: data, Time: at}).AppendJSON([]byte("before "))
		if want := `before {"type":"t","timestamp":"2026-03-01T11:00:00.123Z","data":` + want + "}"; err != nil || string(b) != want {
			t.Errorf("AppendJSON with %v = %s, %v, want %s", data, b, err, want)
		}
	}
	b, err := (&event.Custom{Type: "t", Data: json.RawMessage(` {"b":1.0, "1":2} `), Time: at}).AppendJSON(nil)
	if want := `{"1":2,"b":1}}`; err != nil || !strings.HasSuffix(string(b), want) {
		t.Errorf("AppendJSON with JSON = %s, %v, want %s at its end", b, err, want)
	}
	var empty event.Encoder
	first, err1 := empty.Encode(&event.Custom{Type: "t"})
	second, err2 := empty.Encode(&event.Custom{Type: "t"})
	if first.ID == "" || first.ID == second.ID || first.Received.IsZero() || err1 != nil || err2 != nil {
		t.Errorf("Encode without an ID = %+v, %v and %+v, %v, want random IDs, and the time", first, err1, second, err2)
	}
}

// Each fault of an event is a CallError that names the field and the limit.
func TestCustomEventsAreRefused(t *testing.T) {
	long := strings.Repeat("x", 256)
	for _, tt := range []struct {
		name  string
		call  *event.Custom
		field string
		code  event.Code
		has   string
	}{
		{"nil", nil, "", event.CodeMalformed, "no call"},
		{"no type", &event.Custom{}, "type", event.CodeType, "required"},
		{"long type", &event.Custom{Type: long[:129]}, "type", event.CodeType, "128"},
		{"space", &event.Custom{Type: "a b"}, "type", event.CodeType, `"a b"`},
		{"letter beyond ASCII", &event.Custom{Type: "rechnung.bezählt"}, "type", event.CodeType, "letters"},
		{"type of a call", &event.Custom{Type: "track"}, "type", event.CodeType, "tracking call"},
		{"type of a deletion", &event.Custom{Type: "delete"}, "type", event.CodeType, "tracking call"},
		{"long id", &event.Custom{Type: "t", ID: long}, "id", event.CodeTooLarge, "255"},
		{"long user", &event.Custom{Type: "t", User: long}, "user", event.CodeTooLarge, "255"},
		{"long key", &event.Custom{Type: "t", Key: long}, "key", event.CodeTooLarge, "255"},
		{"function", &event.Custom{Type: "t", Data: func() {}}, "data", event.CodeMalformed, "JSON"},
		{"NaN", &event.Custom{Type: "t", Data: math.NaN()}, "data", event.CodeMalformed, "JSON"},
		{"large", &event.Custom{Type: "t", Data: strings.Repeat("x", event.MaxBody)}, "data", event.CodeTooLarge, "262144"},
	} {
		_, err := new(event.Encoder).Encode(tt.call)
		var ce *event.CallError
		if !errors.As(err, &ce) || ce.Field != tt.field || ce.Code != tt.code || !strings.Contains(ce.Error(), tt.has) {
			t.Errorf("%s: Encode: %v, want a CallError with field %q, code %q and %q", tt.name, err, tt.field, tt.code, tt.has)
		}
	}
	most := &event.Custom{Type: long[:128], ID: long[:255], User: long[:255], Key: long[:255]}
	frame, err := most.AppendJSON(nil)
	if err != nil {
		t.Fatal(err)
	}
	most.Data = strings.Repeat("x", event.MaxBody-len(frame)+len("null")-len(`""`))
	if e, err := new(event.Encoder).Encode(most); err != nil || len(e.Body) != event.MaxBody {
		t.Errorf("Encode of an event at all limits has %d bytes, %v, want %d", len(e.Body), err, event.MaxBody)
	}
}

// Check looks at the body of an event that package event did not make.
func TestRawEvents(t *testing.T) {
	for body, code := range map[string]event.Code{
		`{"a":1}`: "", `{}`: "", "": event.CodeMalformed, "hello": event.CodeMalformed, `{"a":1.0}`: event.CodeMalformed,
		`{"a": 1}`: event.CodeMalformed, `{"b":1,"1":1}`: event.CodeMalformed, `{"a":1,"a":1}`: event.CodeMalformed,
		`[]`: event.CodeWrongType, `null`: event.CodeWrongType,
		`{"a":"` + strings.Repeat("x", event.MaxBody) + `"}`: event.CodeTooLarge,
	} {
		e, err := event.Raw("invoice.paid", []byte(body))
		var ce *event.CallError
		if code == "" && (err != nil || e.ID == "" || e.Check() != nil) || code != "" && (!errors.As(err, &ce) || ce.Code != code) {
			t.Errorf("Raw of %.30q = %v, want code %q", body, err, code)
		}
		if err := (&event.Event{ID: "1", Type: "invoice.paid", Body: []byte(body)}).Check(); (err == nil) != (code == "") {
			t.Errorf("Check of an event with the body %.30q = %v, want code %q", body, err, code)
		}
	}
	long := strings.Repeat("x", 256)
	for field, e := range map[string]event.Event{
		"id": {ID: long}, "user": {ID: "1", User: long}, "key": {ID: "1", Key: long}, "source": {ID: "1", Source: long}, "name": {ID: "1", Name: long},
	} {
		e.Type, e.Body = "t", []byte("{}")
		var ce *event.CallError
		if err := e.Check(); !errors.As(err, &ce) || ce.Field != field {
			t.Errorf("Check of a long %s: %v, want a CallError for it", field, err)
		}
	}
	var ce *event.CallError
	if err := (&event.Event{Type: "t", Body: []byte("{}")}).Check(); !errors.As(err, &ce) || ce.Field != "id" {
		t.Errorf("Check without an id: %v, want a CallError for it", err)
	}
}

// FuzzCustom checks that any JSON, as Data, gives a body that Check takes.
func FuzzCustom(f *testing.F) {
	for _, seed := range []string{`{}`, `[1e400]`, `{"b":{"2":1,"1":[]},"a":"\ud800"}`, `"\u2028"`, `-0`, `123456789012345678901`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		e, err := new(event.Encoder).Encode(&event.Custom{Type: "t", Data: json.RawMessage(data)})
		if err != nil {
			return
		}
		if err := (&event.Event{ID: e.ID, Type: e.Type, Body: e.Body}).Check(); err != nil {
			t.Errorf("Check of %q: %v", e.Body, err)
		}
		if !json.Valid(e.Body) {
			t.Errorf("the body %q is not JSON", e.Body)
		}
	})
}
