package analytics

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hookferry/analytics/internal/esjson"
)

var update = flag.Bool("update", false, "rewrite the golden files")

var longID = strings.Repeat("i", MaxMessageID)

func TestValidateAndAppendJSONReturnTheSameErrors(t *testing.T) {
	for _, test := range []struct {
		name  string
		m     Message
		field string // the field that the error names; empty if there is no error
		text  string
	}{
		{"identify by user", &Identify{UserId: "u"}, "", ""},
		{"identify by anonymous id", &Identify{AnonymousId: "a"}, "", ""},
		{"identify without an id", &Identify{}, "UserId", "analytics: identify: UserId or AnonymousId is required"},
		{"identify nil", (*Identify)(nil), "message", "analytics: identify: message is nil"},
		{"track", &Track{UserId: "u", Event: "e"}, "", ""},
		{"track without an event", &Track{UserId: "u"}, "Event", "analytics: track: Event is required"},
		{"track without event and id", &Track{}, "Event", "analytics: track: Event is required"},
		{"track without an id", &Track{Event: "e"}, "UserId", "analytics: track: UserId or AnonymousId is required"},
		{"track nil", (*Track)(nil), "message", "analytics: track: message is nil"},
		{"page by user", &Page{UserId: "u"}, "", ""},
		{"page by anonymous id", &Page{AnonymousId: "a"}, "", ""},
		{"page without an id", &Page{Name: "n"}, "UserId", "analytics: page: UserId or AnonymousId is required"},
		{"page with properties", &Page{UserId: "u", Properties: map[string]any{"url": "/"}}, "", ""},
		{"page with both names", &Page{UserId: "u", Properties: map[string]any{}, Traits: map[string]any{}}, "Traits", "analytics: page: Traits is set in addition to Properties, but is only another name of it"},
		{"page nil", (*Page)(nil), "message", "analytics: page: message is nil"},
		{"screen", &Screen{AnonymousId: "a"}, "", ""},
		{"screen without an id", &Screen{Name: "n"}, "UserId", "analytics: screen: UserId or AnonymousId is required"},
		{"screen nil", (*Screen)(nil), "message", "analytics: screen: message is nil"},
		{"group", &Group{UserId: "u", GroupId: "g"}, "", ""},
		{"group without GroupId", &Group{UserId: "u"}, "GroupId", "analytics: group: GroupId is required"},
		{"group without a user", &Group{GroupId: "g"}, "UserId", "analytics: group: UserId or AnonymousId is required"},
		{"group nil", (*Group)(nil), "message", "analytics: group: message is nil"},
		{"alias", &Alias{UserId: "u", PreviousId: "p"}, "", ""},
		{"alias without UserId", &Alias{PreviousId: "p", AnonymousId: "a"}, "UserId", "analytics: alias: UserId is required"},
		{"alias without PreviousId", &Alias{UserId: "u"}, "PreviousId", "analytics: alias: PreviousId is required"},
		{"alias nil", (*Alias)(nil), "message", "analytics: alias: message is nil"},
		{"longest message id", &Identify{UserId: "u", MessageId: longID}, "", ""},
		{"characters count, not bytes", &Identify{UserId: "u", MessageId: strings.Repeat("é", MaxMessageID)}, "", ""},
		{"message id too long", &Alias{UserId: "u", PreviousId: "p", MessageId: longID + "i"}, "MessageId", "analytics: alias: MessageId is longer than 99 characters"},
		{"timestamp", &Page{UserId: "u", Timestamp: "2015-2-02T00:30:08.276+0100"}, "", ""},
		{"timestamp malformed", &Page{UserId: "u", Timestamp: "yesterday"}, "Timestamp", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			err := test.m.Validate()
			dst, appendErr := test.m.AppendJSON([]byte("before"))
			if test.field == "" {
				if err != nil || appendErr != nil {
					t.Fatalf("Validate() = %v, AppendJSON() = %v, want no errors", err, appendErr)
				}
				return
			}
			for _, err := range []error{err, appendErr} {
				var field *FieldError
				if !errors.As(err, &field) || field.Field != test.field {
					t.Fatalf("got error %v, want a *FieldError about %s", err, test.field)
				}
				if test.text != "" && err.Error() != test.text {
					t.Errorf("got error %q, want %q", err, test.text)
				}
			}
			if string(dst) != "before" {
				t.Errorf("AppendJSON left %q, want dst unchanged", dst)
			}
		})
	}
}

// fullMessages returns messages of every type with every field set.
func fullMessages() []Message {
	const at = "2024-02-29T12:34:56.789+01:00"
	traits := map[string]any{"name": "Ada <ada@example.com>", "plan": "team", "seats": 12, "ratio": 0.5, "vip": true, "none": nil}
	context := map[string]any{"ip": "192.0.2.1", "app": map[string]any{"name": "shop", "version": "1.2"}}
	integrations := map[string]any{"All": false, "Webhooks": true}
	return []Message{
		&Identify{UserId: "u-1", AnonymousId: "a-1", Traits: traits, Context: context, Integrations: integrations, Timestamp: at, MessageId: "m-identify"},
		&Track{UserId: "u-1", AnonymousId: "a-1", Event: "Order Completed", Properties: map[string]any{"cart": []any{map[string]any{"sku": "s\u2028", "price": 39.95}}}, Context: context, Integrations: integrations, Timestamp: at, MessageId: "m-track"},
		&Page{UserId: "u-1", AnonymousId: "a-1", Category: "Docs", Name: "Pricing", Traits: map[string]any{"url": "https://example.com/?a=1&b=2"}, Context: context, Integrations: integrations, Timestamp: at, MessageId: "m-page"},
		&Screen{UserId: "u-1", AnonymousId: "a-1", Name: "Home", Properties: map[string]any{"dark": true}, Context: context, Integrations: integrations, Timestamp: at, MessageId: "m-screen"},
		&Group{UserId: "u-1", AnonymousId: "a-1", GroupId: "g-1", Traits: traits, Context: context, Integrations: integrations, Timestamp: at, MessageId: "m-group"},
		&Alias{UserId: "u-1", AnonymousId: "a-1", PreviousId: "p-1", Context: context, Integrations: integrations, Timestamp: at, MessageId: "m-alias"},
	}
}

func TestWireFormOfMessages(t *testing.T) {
	var b bytes.Buffer
	for _, m := range fullMessages() {
		text, err := m.AppendJSON(nil)
		if err != nil {
			t.Fatalf("%T.AppendJSON: %v", m, err)
		}
		fmt.Fprintf(&b, "%s\n", text)
	}
	golden(t, "messages.jsonl", b.Bytes())
}

func TestPagePropertiesAreSentLikeTraits(t *testing.T) {
	object := map[string]any{"url": "/pricing"}
	var texts [2]string
	for i, m := range []*Page{{UserId: "u", MessageId: "m", Timestamp: "2024-02-29T12:34:56Z", Properties: object}, {UserId: "u", MessageId: "m", Timestamp: "2024-02-29T12:34:56Z", Traits: object}} {
		b, err := m.AppendJSON(nil)
		if err != nil {
			t.Fatal(err)
		}
		texts[i] = string(b)
	}
	if texts[0] != texts[1] || !strings.Contains(texts[0], `"properties":{"url":"/pricing"}`) {
		t.Errorf("got %s with Properties and %s with Traits, want the same, with the properties", texts[0], texts[1])
	}
}

var randomID = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}`)

func TestWireFormOfABatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, col := newTestClient(nil)
		for _, err := range []error{
			c.Identify(&Identify{UserId: "u-1"}),
			c.Track(&Track{UserId: "u-1", Event: "Order Completed", Properties: map[string]any{"total": 39.95}}),
			c.Page(&Page{AnonymousId: "a-1", Name: "Pricing"}),
			c.Screen(&Screen{UserId: "u-1", Name: "Home", MessageId: "m-1"}),
			c.Group(&Group{UserId: "u-1", GroupId: "g-1"}),
			c.Alias(&Alias{UserId: "u-1", PreviousId: "a-1"}),
		} {
			if err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(1234 * time.Millisecond)
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		r := col.got()[0]
		var b bytes.Buffer
		fmt.Fprintf(&b, "%s %s\n", r.method, r.url)
		for _, name := range []string{"Authorization", "Content-Type", "User-Agent", "X-Retry-Count"} {
			fmt.Fprintf(&b, "%s: %s\n", name, r.header.Get(name))
		}
		fmt.Fprintf(&b, "Content-Length: %d\n\n%s\n", r.length, randomID.ReplaceAll(r.body, []byte("(uuid)")))
		golden(t, "batch.http", b.Bytes())
		if ids := randomID.FindAll(r.body, -1); len(ids) != 6 {
			t.Errorf("the batch has %d random ids, want 5 of messages and its own", len(ids))
		}
	})
}

// golden compares got with a file in testdata.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	want = bytes.ReplaceAll(want, []byte("\r\n"), []byte("\n"))
	if d := cmp.Diff(string(want), string(got)); d != "" {
		t.Errorf("%s (-want +got):\n%s", path, d)
	}
}

func TestTimestampsAreSentInMilliseconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, test := range []struct{ name, in, want string }{
			{"none", "", "2000-01-01T00:00:00.000Z"}, // the time at which a bubble starts
			{"offset", "2024-05-06T07:08:09.123456789+02:00", "2024-05-06T05:08:09.123Z"},
			{"no fraction", "2024-05-06T07:08:09Z", "2024-05-06T07:08:09.000Z"},
			{"formatted", FormatTime(time.Date(2024, 5, 6, 7, 8, 9, 999999999, time.FixedZone("", -3600))), "2024-05-06T08:08:09.999Z"},
		} {
			text, err := (&Identify{UserId: "u", Timestamp: test.in}).AppendJSON(nil)
			var got struct{ Timestamp string }
			if err == nil {
				err = json.Unmarshal(text, &got)
			}
			if err != nil || got.Timestamp != test.want {
				t.Errorf("%s: timestamp %q is sent as %q, %v, want %q", test.name, test.in, got.Timestamp, err, test.want)
			}
		}
	})
}

func TestEncodingErrorsNameTheField(t *testing.T) {
	loop := map[string]any{}
	loop["again"] = loop
	deep := any("x")
	for range esjson.MaxDepth - 1 {
		deep = []any{deep}
	}
	for _, test := range []struct {
		name  string
		m     Message
		field string
	}{
		{"not a number", &Track{UserId: "u", Event: "e", Properties: map[string]any{"cart": []any{1, 2, 3, map[string]any{"price": math.NaN()}}}}, "Properties.cart[3].price"},
		{"infinite", &Group{UserId: "u", GroupId: "g", Traits: map[string]any{"size": math.Inf(1)}}, "Traits.size"},
		{"channel", &Identify{UserId: "u", Context: map[string]any{"c": make(chan int)}}, "Context.c"},
		{"key with a space", &Identify{UserId: "u", Traits: map[string]any{"a key": func() {}}}, `Traits["a key"]`},
		{"function", &Page{UserId: "u", Integrations: map[string]any{"f": func() {}}}, "Integrations.f"},
		{"page traits", &Page{UserId: "u", Traits: map[string]any{"x": math.NaN()}}, "Traits.x"},
		{"page properties", &Page{UserId: "u", Properties: map[string]any{"x": math.NaN()}}, "Properties.x"},
		{"deeper than a message may be", &Screen{UserId: "u", Properties: map[string]any{"d": deep}}, "Properties"},
	} {
		t.Run(test.name, func(t *testing.T) {
			dst, err := test.m.AppendJSON([]byte("before"))
			var field *FieldError
			if !errors.As(err, &field) || field.Field != test.field {
				t.Errorf("AppendJSON: error %v, want one about %s", err, test.field)
			}
			if string(dst) != "before" {
				t.Errorf("AppendJSON left %d bytes, want dst unchanged", len(dst))
			}
		})
	}
	_, err := (&Track{UserId: "u", Event: "e", Properties: loop}).AppendJSON(nil)
	if !errors.Is(err, esjson.ErrDepth) {
		t.Errorf("AppendJSON of a cycle: error %v, want one that is ErrDepth", err)
	}
}

// A message may have as many levels of nesting as the collector accepts. Its own object and the
// object of its properties are two of them.
func TestAMessageMayBeNestedAsDeepAsTheCollectorAccepts(t *testing.T) {
	nested := func(n int) json.RawMessage {
		return json.RawMessage(strings.Repeat("[", n) + strings.Repeat("]", n))
	}
	for _, test := range []struct {
		name  string
		value any
		want  bool
	}{
		{"at the limit", nested(esjson.MaxDepth - 2), true},
		{"above the limit", nested(esjson.MaxDepth - 1), false},
		{"many side by side", json.RawMessage(`[` + strings.Repeat(`[],`, 2000) + `0]`), true},
		{"brackets in a string", strings.Repeat(`[\"{\\`, 2000), true},
	} {
		_, err := (&Track{UserId: "u", Event: "e", Properties: map[string]any{"p": test.value}}).AppendJSON(nil)
		if got := err == nil; got != test.want || !got && !errors.Is(err, esjson.ErrDepth) {
			t.Errorf("%s: AppendJSON: error %v, want success: %t", test.name, err, test.want)
		}
	}
}

func TestACallMayHaveAtMostMaxCallSizeBytes(t *testing.T) {
	c, _ := newTestClient(nil)
	m := &Track{UserId: "u", Event: "", MessageId: "m", Timestamp: "2024-01-01T00:00:00Z"}
	m.Event = "e"
	text, err := m.AppendJSON(nil)
	if err != nil {
		t.Fatal(err)
	}
	m.Event = strings.Repeat("e", MaxCallSize-len(text)+1)
	if err := c.Track(m); err != nil {
		t.Errorf("Track of %d bytes: %v", MaxCallSize, err)
	}
	m.Event += "e"
	err = c.Track(m)
	var size *SizeError
	if !errors.As(err, &size) {
		t.Fatalf("Track of %d bytes: error %v, want a *SizeError", MaxCallSize+1, err)
	}
	if want := "analytics: track: the call has 32769 bytes, the limit is 32768"; err.Error() != want || size.Size != 32769 || size.Limit != MaxCallSize {
		t.Errorf("error %q, %+v, want %q", err, size, want)
	}
	for name, m := range map[string]*Track{
		"text":  {UserId: "u", Event: strings.Repeat("e", 10*maxMeasured)},
		"value": {UserId: "u", Event: "e", Properties: map[string]any{"p": strings.Repeat("e", 10*maxMeasured)}},
	} {
		err := c.Track(m)
		if want := "analytics: track: the call has more than 262144 bytes, the limit is 32768"; !errors.As(err, &size) || err.Error() != want || size.Size != 0 {
			t.Errorf("a long %s: error %q, want %q and no size", name, err, want)
		}
	}
	closeClient(t, c)
	checkStats(t, c, 1, 1, 0, 0)
}

// Every message type has the fields that are common to all. fullMessages sets all fields.
func TestEveryMessageTypeHasTheCommonFields(t *testing.T) {
	common := []string{"UserId", "AnonymousId", "Context", "Integrations", "Timestamp", "MessageId"}
	for _, m := range fullMessages() {
		v := reflect.ValueOf(m).Elem()
		for _, name := range common {
			if !v.FieldByName(name).IsValid() {
				t.Errorf("%s has no field %s", v.Type(), name)
			}
		}
		for i := range v.NumField() {
			if name := v.Type().Field(i).Name; v.Field(i).IsZero() && name != "Properties" { // a Page has Traits instead
				t.Errorf("fullMessages leaves %s of %s empty", name, v.Type())
			}
		}
	}
}

func FuzzTrack(f *testing.F) {
	f.Add("u", "Order Completed", "key", "value", "", "")
	f.Add("\x00", "\xff\u2028\"\\", "__proto__", "\ud7ff", "2024-01-01T00:00:00Z", "m")
	f.Add("", "e", "0", "<&>", "bad", strings.Repeat("m", 100))
	f.Fuzz(func(t *testing.T, user, event, key, value, timestamp, id string) {
		m := &Track{UserId: user, Event: event, Properties: map[string]any{key: value}, Timestamp: timestamp, MessageId: id}
		text, err := m.AppendJSON([]byte("["))
		if (err == nil) != (m.Validate() == nil) {
			if !errors.As(err, new(*SizeError)) {
				t.Fatalf("AppendJSON: %v, but Validate: %v", err, m.Validate())
			}
		}
		if err != nil {
			if string(text) != "[" {
				t.Fatalf("AppendJSON failed and left %q", text)
			}
			return
		}
		var got []struct {
			Type, MessageID, UserID, Event, Timestamp string
			Properties                                map[string]string
		}
		if err := json.Unmarshal(append(text, ']'), &got); err != nil {
			t.Fatalf("AppendJSON gave %q: %v", text, err)
		}
		valid := func(s string) string { return strings.ToValidUTF8(s, "\ufffd") }
		g := got[0]
		if g.Type != "track" || !sameText(g.UserID, valid(user)) || !sameText(g.Event, valid(event)) || len(g.Properties) != 1 {
			t.Fatalf("AppendJSON(%+v) = %s", m, text)
		}
	})
}

// sameText reports whether a and b are equal, if each run of U+FFFD counts as one.
func sameText(a, b string) bool {
	runs := regexp.MustCompile("\ufffd+")
	return runs.ReplaceAllString(a, "\ufffd") == runs.ReplaceAllString(b, "\ufffd")
}
