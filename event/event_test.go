package event_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hookferry/analytics"
	"github.com/hookferry/analytics/event"
)

// encode returns the event of a call in JSON.
func encode(call string, env event.Envelope) (event.Event, error) {
	encoder, err := event.NewEncoder(env)
	if err != nil {
		return event.Event{}, err
	}
	return encoder.Encode(event.JSON(call))
}

// sized returns a call of n bytes.
func sized(n int) string {
	const open, end = `{"type":"track","userId":"u","event":"`, `"}`
	return open + strings.Repeat("e", n-len(open)-len(end)) + end
}

func TestEncodeRefusesWrongCalls(t *testing.T) {
	const (
		malformed = event.CodeMalformed
		missing   = event.CodeMissing
		wrongType = event.CodeWrongType
	)
	deep := strings.Repeat("[", 1000) + strings.Repeat("]", 1000)
	for _, tt := range []struct {
		name  string
		call  string
		env   event.Envelope
		field string
		code  event.Code
	}{
		{name: "nothing", call: ``, code: malformed},
		{name: "white space", call: " \n", code: malformed},
		{name: "cut off", call: `{"type":"track"`, code: malformed},
		{name: "more after the call", call: `{"type":"identify","userId":"u"}{}`, code: malformed},
		{name: "too deep", call: `{"type":"identify","userId":"u","traits":{"a":` + deep + `}}`, code: malformed},
		{name: "too deep in an unknown member", call: `{"type":"identify","userId":"u","x":` + deep + `}`, code: malformed},
		{name: "an array", call: ` [ ] `, code: wrongType},
		{name: "an array cut off", call: `[1,`, code: malformed},
		{name: "an unknown word", call: `nil`, code: malformed},
		{name: "an array too deep", call: "[" + deep + "]", code: malformed},
		{name: "two strings", call: `"a" "b"`, code: malformed},
		{name: "a string", call: ` "track"`, code: wrongType},
		{name: "null", call: `null`, code: wrongType},
		{name: "too large", call: sized(analytics.MaxCallSize + 1), code: event.CodeTooLarge},

		{name: "no type", call: `{"userId":"u"}`, field: "type", code: event.CodeType},
		{name: "null type", call: `{"type":null,"userId":"u"}`, field: "type", code: event.CodeType},
		{name: "unknown type", call: `{"type":"Track","userId":"u","event":"e"}`, field: "type", code: event.CodeType},
		{name: "delete is no call", call: `{"type":"delete","userId":"u"}`, field: "type", code: event.CodeType},
		{name: "type is a number", call: `{"type":1,"userId":"u"}`, field: "type", code: wrongType},
		{name: "unknown type of envelope", call: `{"type":"track","userId":"u","event":"e"}`, env: event.Envelope{Type: "tracks"}, field: "type", code: event.CodeType},

		{name: "identify: no identity", call: `{"type":"identify"}`, field: "userId", code: missing},
		{name: "identify: empty identity", call: `{"type":"identify","userId":"","anonymousId":null}`, field: "userId", code: missing},
		{name: "page: no identity", call: `{"type":"page"}`, field: "userId", code: missing},
		{name: "screen: no identity", call: `{"type":"screen"}`, field: "userId", code: missing},
		{name: "track: no identity", call: `{"type":"track","event":"e"}`, field: "userId", code: missing},
		{name: "track: no event", call: `{"type":"track","userId":"u"}`, field: "event", code: missing},
		{name: "track: empty event", call: `{"type":"track","userId":"u","event":""}`, field: "event", code: missing},
		{name: "track: Event is not event", call: `{"type":"track","userId":"u","Event":"e"}`, field: "event", code: missing},
		{name: "track: UserId is not userId", call: `{"type":"track","UserId":"u","event":"e"}`, field: "userId", code: missing},
		{name: "group: no identity", call: `{"type":"group","groupId":"g"}`, field: "userId", code: missing},
		{name: "group: no group", call: `{"type":"group","userId":"u"}`, field: "groupId", code: missing},
		{name: "alias: no user", call: `{"type":"alias","previousId":"p","anonymousId":"a"}`, field: "userId", code: missing},
		{name: "alias: no previous", call: `{"type":"alias","userId":"u","anonymousId":"a"}`, field: "previousId", code: missing},
		{name: "the last duplicate counts", call: `{"type":"identify","userId":"u","userId":""}`, field: "userId", code: missing},

		{name: "userId true", call: `{"type":"identify","userId":true}`, field: "userId", code: wrongType},
		{name: "userId object", call: `{"type":"identify","userId":{}}`, field: "userId", code: wrongType},
		{name: "userId over the range", call: `{"type":"identify","userId":1e999}`, field: "userId", code: wrongType},
		{name: "anonymousId array", call: `{"type":"identify","userId":"u","anonymousId":[]}`, field: "anonymousId", code: wrongType},
		{name: "previousId object", call: `{"type":"alias","userId":"u","previousId":{}}`, field: "previousId", code: wrongType},
		{name: "groupId false", call: `{"type":"group","userId":"u","groupId":false}`, field: "groupId", code: wrongType},
		{name: "messageId object", call: `{"type":"identify","userId":"u","messageId":{}}`, field: "messageId", code: wrongType},
		{name: "event number", call: `{"type":"track","userId":"u","event":7}`, field: "event", code: wrongType},
		{name: "name object", call: `{"type":"page","userId":"u","name":{}}`, field: "name", code: wrongType},
		{name: "category number", call: `{"type":"page","userId":"u","category":1}`, field: "category", code: wrongType},
		{name: "traits array", call: `{"type":"identify","userId":"u","traits":[0]}`, field: "traits", code: wrongType},
		{name: "properties string", call: `{"type":"track","userId":"u","event":"e","properties":"{}"}`, field: "properties", code: wrongType},
		{name: "context number", call: `{"type":"track","userId":"u","event":"e","context":1}`, field: "context", code: wrongType},
		{name: "integrations bool", call: `{"type":"track","userId":"u","event":"e","integrations":false}`, field: "integrations", code: wrongType},
		{name: "batch context array", call: `{"type":"identify","userId":"u"}`, env: event.Envelope{Context: []byte(`[{}]`)}, field: "context", code: wrongType},
		{name: "batch context of two objects", call: `{"type":"identify","userId":"u"}`, env: event.Envelope{Context: []byte(`{"a":1},"userId":{"b":2}`)}, field: "context", code: malformed},
		{name: "batch context cut off", call: `{"type":"identify","userId":"u"}`, env: event.Envelope{Context: []byte(`{"a":`)}, field: "context", code: malformed},
		{name: "batch context too deep", call: `{"type":"identify","userId":"u"}`, env: event.Envelope{Context: []byte(`{"a":` + deep + `}`)}, field: "context", code: malformed},
		{name: "batch context too deep in the body", call: `{"type":"identify","userId":"u"}`, env: event.Envelope{Context: []byte(`{"a":` + deep[1:len(deep)-1] + `}`)}, field: "context", code: malformed},
		{name: "batch integrations string", call: `{"type":"identify","userId":"u"}`, env: event.Envelope{Integrations: []byte(`"All"`)}, field: "integrations", code: wrongType},

		{name: "messageId of 100", call: `{"type":"identify","userId":"u","messageId":"` + strings.Repeat("m", 100) + `"}`, field: "messageId", code: event.CodeMessageID},
		{name: "messageId of 100 beyond ASCII", call: `{"type":"identify","userId":"u","messageId":"` + strings.Repeat("é", 100) + `"}`, field: "messageId", code: event.CodeMessageID},
	} {
		e, err := encode(tt.call, tt.env)
		var ce *event.CallError
		if !errors.As(err, &ce) || ce.Field != tt.field || ce.Code != tt.code {
			t.Errorf("%s: Encode = %+v, %v, want field %q, code %q", tt.name, e, err, tt.field, tt.code)
			continue
		}
		if ce.Problem == "" || !strings.Contains(ce.Error(), ce.Message()) || !strings.HasPrefix(ce.Message(), ce.Field) {
			t.Errorf("%s: the error is %q, want a problem, and a message that begins with the field", tt.name, ce)
		}
		if tt.env.Type == "" && tt.env.Context == nil && tt.env.Integrations == nil {
			if b, err := event.JSON(tt.call).AppendJSON([]byte("x")); err == nil || err.Error() != ce.Error() || string(b) != "x" {
				t.Errorf("%s: AppendJSON = %q, %v, want %v", tt.name, b, err, ce)
			}
		}
	}
}

func TestEncodeAcceptsUnusualCalls(t *testing.T) {
	for _, tt := range []struct {
		name string
		call string
		env  event.Envelope
		want map[string]any // some members of the body
	}{
		{"the largest call", sized(analytics.MaxCallSize), event.Envelope{}, nil},
		{"white space around", " \n{\"type\":\"identify\",\"userId\":\"u\"}\r\n", event.Envelope{}, nil},
		{"the deepest call", `{"type":"identify","userId":"u","traits":{"a":` + strings.Repeat("[", 998) + strings.Repeat("]", 998) + `}}`, event.Envelope{}, nil},
		{"the envelope's type counts", `{"type":"track","userId":"u"}`, event.Envelope{Type: "page"}, map[string]any{"type": "page"}},
		{"the envelope's type suffices", `{"type":7,"userId":"u"}`, event.Envelope{Type: "page"}, map[string]any{"type": "page"}},
		{"a number as userId", `{"type":"identify","userId":7}`, event.Envelope{}, map[string]any{"userId": "7"}},
		{"a large number as userId", `{"type":"identify","userId":1E21}`, event.Envelope{}, map[string]any{"userId": "1e+21"}},
		{"an integer that no double holds as userId", `{"type":"identify","userId":9007199254740993}`, event.Envelope{}, map[string]any{"userId": "9007199254740993"}},
		{"a negative integer that no double holds as anonymousId", `{"type":"identify","anonymousId":-9007199254740993}`, event.Envelope{}, map[string]any{"anonymousId": "-9007199254740993"}},
		{"an integer over the range of doubles as userId", `{"type":"identify","userId":1` + strings.Repeat("0", 400) + `}`, event.Envelope{}, map[string]any{"userId": "1" + strings.Repeat("0", 400)}},
		{"an integer with a fraction as userId", `{"type":"identify","userId":9007199254740993.0}`, event.Envelope{}, map[string]any{"userId": "9007199254740992"}},
		{"long integers as the ids of a group", `{"type":"group","userId":12345678901234567890,"groupId":12345678901234567891}`, event.Envelope{}, map[string]any{"userId": "12345678901234567890", "groupId": "12345678901234567891"}},
		{"minus zero as userId", `{"type":"identify","userId":-0}`, event.Envelope{}, map[string]any{"userId": "0"}},
		{"anonymousId alone", `{"type":"identify","anonymousId":"a"}`, event.Envelope{}, map[string]any{"userId": nil, "anonymousId": "a"}},
		{"numbers as the ids of an alias", `{"type":"alias","userId":1,"previousId":2.50}`, event.Envelope{}, map[string]any{"User ID": "1", "Previous ID": "2.5"}},
		{"the last duplicate", `{"type":"identify","userId":"","userId":"u"}`, event.Envelope{}, map[string]any{"userId": "u"}},
		{"messageId of 99 characters", `{"type":"identify","userId":"u","messageId":"` + strings.Repeat("é", 99) + `"}`, event.Envelope{}, map[string]any{"messageId": strings.Repeat("é", 99)}},
		{"members of other types", `{"type":"identify","userId":"u","event":"e","properties":{"a":1},"name":"n"}`, event.Envelope{}, map[string]any{"event": nil, "properties": nil, "name": nil}},
		{"wrong members of other types", `{"type":"identify","userId":"u","event":1,"properties":[],"name":{},"category":true,"groupId":[],"previousId":{}}`, event.Envelope{}, nil},
		{"wrong members of other types: track", `{"type":"track","userId":"u","event":"e","traits":7,"name":7,"groupId":{}}`, event.Envelope{}, nil},
	} {
		e, err := encode(tt.call, tt.env)
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		checkBody(t, e)
		m := body(t, e)
		for key, want := range tt.want {
			if diff := cmp.Diff(want, m[key]); diff != "" {
				t.Errorf("%s: %s (-want +got):\n%s", tt.name, key, diff)
			}
		}
	}
}

func TestEventIDFollowsMessageID(t *testing.T) {
	call := func(id string) []byte {
		return fmt.Appendf(nil, `{"type":"identify","userId":"u"%s}`, id)
	}
	for _, tt := range []struct{ name, member, want string }{
		{"text", `,"messageId":"m1"`, "m1"},
		{"number", `,"messageId":1.2e3`, "1200"},
		{"escapes", `,"messageId":"\u006d\n\ud83d\ude00"`, "m\n\U0001F600"},
		{"more than 255 bytes", `,"messageId":"` + strings.Repeat("\U0001F600", 99) + `"`, "sha256:"},
	} {
		e, err := encode(string(call(tt.member)), event.Envelope{})
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		if len(e.ID) > 255 {
			t.Errorf("%s: ID has %d bytes, want at most 255", tt.name, len(e.ID))
		}
		if strings.HasPrefix(tt.want, "sha256:") {
			again, err := encode(string(call(tt.member)), event.Envelope{})
			if err != nil || again.ID != e.ID || len(e.ID) != len("sha256:")+64 {
				t.Errorf("%s: ID = %q, then %q, %v, want the same digest twice", tt.name, e.ID, again.ID, err)
			}
		} else if e.ID != tt.want {
			t.Errorf("%s: ID = %q, want %q", tt.name, e.ID, tt.want)
		}
	}

	// Ids that a receiver can tell apart make different IDs.
	byID := map[string]string{}
	emoji := strings.Repeat("\U0001F600", 80)
	for _, id := range []string{
		`9007199254740992`, `9007199254740993`, `-9007199254740993`, `12345678901234567890123456789012345678901`, `12345678901234567890123456789012345678902`,
		`"\ud800"`, `"\ud801"`, `"\ufffd"`, `"\udc00\ud800"`, `"\ud800\udc00"`, `"\\ud800"`, `"\\ud800\ufffd"`, `"\\ud801\ufffd"`,
		`"\ud800` + emoji + `"`, `"\ud801` + emoji + `"`, `"\"\\ud800` + emoji + `\""`, `"` + emoji + `"`,
	} {
		e, err := encode(string(call(`,"messageId":`+id)), event.Envelope{})
		if err != nil {
			t.Fatal(err)
		}
		if other, ok := byID[e.ID]; ok {
			t.Errorf("messageId %s has the ID %q, as messageId %s has", id, e.ID, other)
		}
		byID[e.ID] = id
		again, err := encode(string(call(`,"messageId":`+strings.ReplaceAll(id, `\ud8`, `\uD8`))), event.Envelope{})
		if err != nil || again.ID != e.ID && !strings.Contains(id, `\\ud8`) {
			t.Errorf("messageId %s: ID = %q, and %q with escapes in capitals, %v, want the same", id, e.ID, again.ID, err)
		}
	}

	seen := map[string]bool{}
	for _, member := range []string{``, `,"messageId":null`, `,"messageId":""`} {
		for range 100 {
			e, err := encode(string(call(member)), event.Envelope{})
			if err != nil {
				t.Fatal(err)
			}
			if m := body(t, e); m["messageId"] != e.ID {
				t.Fatalf("the body has the messageId %v, want the ID %q", m["messageId"], e.ID)
			}
			if id := e.ID; seen[id] || len(id) != 36 || id[14] != '4' || !strings.ContainsRune("89ab", rune(id[19])) {
				t.Fatalf("the ID of a call without messageId is %q, want a new random UUID of version 4", id)
			}
			seen[e.ID] = true
		}
	}
}

func TestIntegrationsSwitchEventsOff(t *testing.T) {
	for _, tt := range []struct {
		name       string
		own, batch string
		want       bool
	}{
		{"none", ``, ``, false},
		{"null", `null`, `null`, false},
		{"own off", `{"Webhooks":false}`, ``, true},
		{"own all off", `{"All":false}`, ``, true},
		{"own all off but Webhooks", `{"All":false,"Webhooks":true}`, ``, false},
		{"batch off", ``, `{"Webhooks":false}`, true},
		{"batch all off", `{}`, `{"All":false}`, true},
		{"own wins", `{"Webhooks":true}`, `{"Webhooks":false}`, false},
		{"own wins off", `{"Webhooks":false}`, `{"Webhooks":true}`, true},
		{"own all, batch's own", `{"All":false}`, `{"Webhooks":true}`, false},
		{"own all wins", `{"All":true}`, `{"All":false}`, false},
		{"options count as on", `{"Webhooks":{}}`, `{"All":false}`, false},
		{"another case", `{"webhooks":false,"all":false}`, ``, false},
	} {
		call := `{"type":"identify","userId":"u"`
		if tt.own != "" {
			call += `,"integrations":` + tt.own
		}
		e, err := encode(call+"}", event.Envelope{Integrations: []byte(tt.batch)})
		if err != nil || e.Off != tt.want || (e.Body == nil) != tt.want {
			t.Errorf("%s: Encode = Off %v, body %s, %v, want Off %v", tt.name, e.Off, e.Body, err, tt.want)
		}
		if strings.Contains(string(e.Body), "integrations") {
			t.Errorf("%s: the body has the integrations: %s", tt.name, e.Body)
		}
	}
}

// TestEncoderMayBeReused shows that an Encoder makes the same event of a call, whatever it has
// encoded before, with Encode and with Append.
func TestEncoderMayBeReused(t *testing.T) {
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	calls := []string{
		`{"type":"identify","userId":"u","messageId":"m"}`,
		`{"type":"page","userId":"u","messageId":"m","context":{}}`,
		`{"type":"screen","userId":"u","name":"n","category":"c","messageId":"m","context":{ }}`,
		`{"type":"track","userId":"u","event":"e","messageId":"m","context":{"1":1,"z":2.0,"a":"own","direct":true},"integrations":{"Webhooks":true}}`,
		`{"type":"group","userId":"u","groupId":"g","messageId":"m","context":{"ip":"own","direct":false},"integrations":{"All":false}}`,
		typical,
	}
	for _, context := range []string{``, ` null `, `{}`, ` { "b" : 1.0, "a":"\u0061", "2":2, "a":3 } `, `{"direct":true}`, `{"ip":"batch","direct":true}`,
		`{"a":` + strings.Repeat("[", 998) + strings.Repeat("]", 998) + `}`} {
		for _, switches := range []string{``, `null`, `{}`, `{"Webhooks":false}`, `{"All":false,"Other":{"a":1}}`, `{"All":false,"Webhooks":{}}`, `{"All":true,"Webhooks":true,"Webhooks":false}`} {
			for _, browser := range []bool{false, true} {
				env := event.Envelope{ReceivedAt: at, SentAt: at, Context: []byte(context), Integrations: []byte(switches), IP: "192.0.2.1", Browser: browser}
				encoder, err := event.NewEncoder(env)
				if err != nil {
					t.Fatalf("NewEncoder(%.99q, %q): %v", context, switches, err)
				}
				for _, call := range calls {
					want, err := encode(call, env)
					if err != nil {
						t.Fatal(err)
					}
					clear(env.Context) // the caller may change the envelope after NewEncoder
					got, err := encoder.Encode(event.JSON(call))
					copy(env.Context, context)
					if diff := cmp.Diff(want, got, cmp.AllowUnexported(event.Event{})); err != nil || diff != "" {
						t.Errorf("context %.99q, switches %q, browser %v: %s: %v (-new Encoder +reused):\n%s", context, switches, browser, call, err, diff)
					}
					dst, appended, err := encoder.Append([]byte("kept"), []byte(call))
					if diff := cmp.Diff(want, appended, cmp.AllowUnexported(event.Event{})); err != nil || diff != "" || string(dst) != "kept"+string(want.Body) {
						t.Errorf("context %.99q, switches %q, browser %v: %s: %v, %.20q (-Encode +Append):\n%s", context, switches, browser, call, err, dst, diff)
					}
				}
			}
		}
	}
}

func TestNewEncoderRefusesWrongEnvelopes(t *testing.T) {
	deep := strings.Repeat("[", 999) + strings.Repeat("]", 999)
	full := `{"a":"` + strings.Repeat("x", analytics.MaxCallSize-8) + `"}`
	for _, tt := range []struct {
		name, context, switches string
		field                   string
		code                    event.Code
		size                    int
	}{
		{"nothing", ``, ``, "", "", 0},
		{"the largest context", full, ``, "", "", analytics.MaxCallSize},
		{"a context that is too large", strings.Replace(full, "x", "xx", 1), ``, "context", event.CodeTooLarge, 0},
		{"a context that is too large once encoded", `{"a":[` + strings.Repeat("1e20,", 2000) + `1]}`, ``, "context", event.CodeTooLarge, 0},
		{"a context with much white space", ` {"a" : 1` + strings.Repeat(" ", 100_000) + `}`, ``, "", "", 7},
		{"a context with many duplicates", `{` + strings.Repeat(`"a":1,`, 10_000) + `"a":2}`, ``, "", "", 7},
		{"large switches", ``, `{"Webhooks":` + full + `}`, "", "", 0},
		{"context array", `[1]`, ``, "context", event.CodeWrongType, 0},
		{"context of two objects", `{"a":1},"userId":{"b":2}`, ``, "context", event.CodeMalformed, 0},
		{"context too deep in a body", `{"a":` + deep + `}`, ``, "context", event.CodeMalformed, 0},
		{"context that is even deeper", `{"a":[[` + deep + `]]}`, ``, "context", event.CodeMalformed, 0},
		{"switches string", ``, `"All"`, "integrations", event.CodeWrongType, 0},
		{"switches cut off", ``, `{"All":`, "integrations", event.CodeMalformed, 0},
	} {
		b, err := event.NewEncoder(event.Envelope{Context: []byte(tt.context), Integrations: []byte(tt.switches)})
		var ce *event.CallError
		switch {
		case tt.code == "":
			if err != nil || b.ContextSize() != tt.size {
				t.Errorf("%s: NewEncoder = %v, with a context of %d bytes, want %d", tt.name, err, b.ContextSize(), tt.size)
			}
		case !errors.As(err, &ce) || ce.Field != tt.field || ce.Code != tt.code || b != nil:
			t.Errorf("%s: NewEncoder = %v, want field %q, code %q", tt.name, err, tt.field, tt.code)
		}
	}
}

func TestReceivedIsReceivedAtOrNow(t *testing.T) {
	before := time.Now()
	e, err := encode(`{"type":"identify","userId":"u"}`, event.Envelope{})
	if err != nil {
		t.Fatal(err)
	}
	if e.Received.Before(before) || e.Received.After(time.Now()) {
		t.Errorf("Received = %v, want now", e.Received)
	}
	at := time.Date(2026, 1, 1, 1, 0, 0, 0, time.FixedZone("", 3600))
	e, err = encode(`{"type":"identify","userId":"u"}`, event.Envelope{ReceivedAt: at})
	if err != nil || !e.Received.Equal(at) {
		t.Errorf("Received = %v, %v, want %v", e.Received, err, at)
	}
	if got := body(t, e)["receivedAt"]; got != "2026-01-01T00:00:00.000Z" {
		t.Errorf("receivedAt = %v, want 2026-01-01T00:00:00.000Z", got)
	}
}

// TestBodyHasLittleSpareCapacity shows that a body that is far shorter than its call does not
// keep the memory of the call.
func TestBodyHasLittleSpareCapacity(t *testing.T) {
	for _, tt := range []struct{ name, call, context string }{
		{"typical", typical, ``},
		{"duplicates in the context", `{"type":"track","userId":"u","event":"e"}`, "{" + strings.Repeat(`"a":1,`, 5400) + `"a":1}`},
		{"white space in the call", `{"type":"track","userId":"u","event":"e","properties":{` + strings.Repeat(" ", 30000) + `}}`, ``},
		{"escapes in the call", `{"type":"track","userId":"u","event":"` + strings.Repeat(`\u0061`, 5000) + `"}`, ``},
	} {
		e, err := encode(tt.call, event.Envelope{Context: []byte(tt.context)})
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		// The size classes of the allocator waste up to an eighth, and a bit more for small bodies.
		if n := cap(e.Body); n > len(e.Body)*5/4+16 {
			t.Errorf("%s: a body of %d bytes has a capacity of %d, want at most a quarter more", tt.name, len(e.Body), n)
		}
	}
}

// TestAppendReturnsNothingOnErrors shows that Append leaves its destination as it was if it
// refuses a call.
func TestAppendReturnsNothingOnErrors(t *testing.T) {
	var encoder event.Encoder
	for _, call := range []string{`{`, `{}`, `{"type":"page","userId":"u","context":0}`} {
		dst, e, err := encoder.Append([]byte("kept"), []byte(call))
		if diff := cmp.Diff(event.Event{}, e, cmp.AllowUnexported(event.Event{})); err == nil || string(dst) != "kept" || diff != "" {
			t.Errorf("Append(%q) = %q, %+v, %v, want kept, no event, and an error", call, dst, e, err)
		}
	}
}

// TestEncoderKeepsNothing shows that callers may change the call and the envelope after Encode.
func TestEncoderKeepsNothing(t *testing.T) {
	call := []byte(`{"type":"track","userId":"u","event":"e","messageId":"m","properties":{"a":1}}`)
	env := event.Envelope{Type: "track", ReceivedAt: time.Unix(1, 0), Context: []byte(`{"b":2}`)}
	e, err := encode(string(call), env)
	if err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("%+v %s", e, e.Body)
	for i := range call {
		call[i] = 'x'
	}
	clear(env.Context)
	for range 100 {
		if _, err := encode(`{"type":"page","userId":"another","messageId":"another"}`, event.Envelope{}); err != nil {
			t.Fatal(err)
		}
	}
	if got := fmt.Sprintf("%+v %s", e, e.Body); got != want {
		t.Errorf("the event changed to %s, want %s", got, want)
	}
}

func TestEncodeMessages(t *testing.T) {
	encoder, err := event.NewEncoder(event.Envelope{ReceivedAt: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)})
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name    string
		message event.Call
		want    string
	}{
		{
			"track", &analytics.Track{UserId: "u", Event: "e", Properties: map[string]any{"b": 1.0, "a": "<"}, MessageId: "m", Timestamp: "2026-01-01T00:00:00Z"},
			`{"version":1,"type":"track","userId":"u","event":"e","properties":{"a":"<","b":1},"timestamp":"2026-01-01T00:00:00.000Z","messageId":"m","context":{},"originalTimestamp":"2026-01-01T00:00:00.000Z","receivedAt":"2026-03-01T12:00:00.000Z"}`,
		},
		{
			"alias", &analytics.Alias{UserId: "u", PreviousId: "p", MessageId: "m", Timestamp: "2026-01-01T00:00:00Z"},
			`{"version":1,"type":"alias","Previous ID":"p","User ID":"u","timestamp":"2026-01-01T00:00:00.000Z","messageId":"m","context":{},"originalTimestamp":"2026-01-01T00:00:00.000Z","receivedAt":"2026-03-01T12:00:00.000Z"}`,
		},
		{
			"JSON", event.JSON(`{"type":"identify","userId":1,"messageId":"m"}`),
			`{"version":1,"type":"identify","userId":"1","traits":{},"timestamp":"2026-03-01T12:00:00.000Z","messageId":"m","context":{},"receivedAt":"2026-03-01T12:00:00.000Z"}`,
		},
	} {
		e, err := encoder.Encode(tt.message)
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		if diff := cmp.Diff(tt.want, string(e.Body)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
		checkBody(t, e)
	}

	var ce *event.CallError
	if _, err := encoder.Encode(nil); !errors.As(err, &ce) {
		t.Errorf("Encode(nil) = %v, want a CallError", err)
	}
	var fe *analytics.FieldError
	for _, m := range []analytics.Message{&analytics.Track{UserId: "u"}, (*analytics.Page)(nil)} {
		if _, err := encoder.Encode(m); !errors.As(err, &fe) {
			t.Errorf("Encode(%v) = %v, want a FieldError", m, err)
		}
	}
}

func TestJSONAppendJSONAppendsTheCallUnchanged(t *testing.T) {
	const call = ` {"userId":9007199254740993,"type":"identify","x":{"2":0,"1":0}, "messageId":"m"} `
	got, err := event.JSON(call).AppendJSON([]byte("call="))
	if want := "call=" + call; err != nil || string(got) != want {
		t.Errorf("AppendJSON = %s, %v, want %s", got, err, want)
	}
}

// FuzzEncoder shows that for any input, the error is a CallError or the body is right.
func FuzzEncoder(f *testing.F) {
	for _, seed := range []string{
		`{"type":"track","userId":"u","event":"e","properties":{"1":1,"0":{"a":1,"a":2}},"context":{"ip":1,"direct":true},"timestamp":"2026-01-01T00:00:00Z"}`,
		`{"type":"alias","userId":1e3,"previousId":"\ud800","messageId":-0}`,
		`{"type":"screen","anonymousId":"a","name":"n","category":"c","properties":{},"sentAt":1}`,
		`{"type":"page","userId":"u","originalTimestamp":"9999-12-31T23:59:59Z","integrations":{"All":{}}}`,
		`{"type":"group","userId":"u","groupId":0.1,"traits":{"__proto__":[]}}`,
		`{"type":"identify","userId":"` + "\xff\u2028" + `"}`,
	} {
		f.Add([]byte(seed), "", []byte(`{"a":1}`), []byte(`{"Webhooks":1}`))
		f.Add([]byte(seed), "page", []byte(``), []byte(` null`))
	}
	f.Fuzz(func(t *testing.T, call []byte, kind string, ctx, switches []byte) {
		env := event.Envelope{Type: kind, Context: ctx, Integrations: switches, IP: "192.0.2.1", SentAt: time.Unix(1e9, 0), ReceivedAt: time.Unix(2e9, 0)}
		e, err := encode(string(call), env)
		var ce *event.CallError
		if err != nil {
			if !errors.As(err, &ce) || ce.Code == "" || ce.Problem == "" {
				t.Fatalf("Encode(%q): %#v, want a CallError with code and problem", call, err)
			}
			return
		}
		if e.ID == "" || len(e.ID) > 255 || e.Off != (e.Body == nil) {
			t.Fatalf("Encode(%q) = %+v, want an ID of 1 to 255 bytes, and a body unless the event is off", call, e)
		}
		if !e.Off {
			checkBody(t, e)
		}
		if _, err := event.JSON(call).AppendJSON(nil); kind == "" && err != nil {
			t.Fatalf("AppendJSON(%q): %v", call, err)
		}
	})
}

// typical is a call of about 450 bytes, as a server library sends it.
const typical = `{"type":"track","messageId":"6ba7b810-9dad-41d1-80b4-00c04fd430c8","timestamp":"2026-03-01T11:59:50.250Z","userId":"user-4711","event":"Order Completed","properties":{"orderId":"50314b8e9bcf000000000000","total":27.5,"currency":"EUR","coupon":"SUMMER","products":3,"first":false,"category":"Games","shipping":3,"tax":2.25,"referrer":"https://example.com/cart?step=3&from=mail"},"context":{"locale":"de-DE","timezone":"Europe/Berlin"},"integrations":{"All":true}}`

func BenchmarkEncoder(b *testing.B) {
	var call event.Call = event.JSON(typical)
	for _, bb := range []struct {
		name string
		env  event.Envelope
	}{
		{"envelope=bare", event.Envelope{ReceivedAt: envelope.ReceivedAt}},
		{"envelope=batch", event.Envelope{ReceivedAt: envelope.ReceivedAt, SentAt: envelope.SentAt, Context: envelope.Context}},
		{"envelope=full", envelope},
	} {
		b.Run(bb.name, func(b *testing.B) {
			encoder, err := event.NewEncoder(bb.env)
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			b.SetBytes(int64(len(typical)))
			for b.Loop() {
				if _, err := encoder.Encode(call); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
