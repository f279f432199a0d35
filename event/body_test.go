package event_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hookferry/analytics/event"
	"github.com/hookferry/analytics/internal/esjson"
	"github.com/hookferry/analytics/internal/testkit"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// envelope is the envelope of the golden bodies. The sender's clock is 1.5 s behind.
var envelope = event.Envelope{
	ReceivedAt:   time.Date(2026, 3, 1, 12, 0, 0, 500e6, time.UTC),
	SentAt:       time.Date(2026, 3, 1, 11, 59, 59, 0, time.UTC),
	Context:      []byte(`{"library":{"name":"analytics-go","version":"2.1.0"},"2":"batch"}`),
	Integrations: []byte(`{"All":false,"Webhooks":true}`),
	IP:           "198.51.100.7",
	Browser:      true,
}

// TestGoldenBodies encodes each testdata/bodies/NAME.call.json, and compares the body with
// NAME.body.json. Node's JSON.stringify(JSON.parse(body)) must return the same body.
func TestGoldenBodies(t *testing.T) {
	calls, err := filepath.Glob("testdata/bodies/*.call.json")
	if err != nil || len(calls) == 0 {
		t.Fatalf("no golden files: %v", err)
	}
	var bodies bytes.Buffer
	for _, path := range calls {
		name := strings.TrimSuffix(filepath.Base(path), ".call.json")
		call, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		e, err := encode(string(call), envelope)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		golden := strings.Replace(path, ".call.", ".body.", 1)
		if *update {
			if err := os.WriteFile(golden, append(e.Body, '\n'), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(golden)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(strings.TrimSuffix(string(want), "\n"), string(e.Body)); diff != "" {
			t.Errorf("%s (-golden +got):\n%s", name, diff)
		}
		if e.Type != strings.Split(name, "-")[0] {
			t.Errorf("%s: Type = %q, want the first part of the name", name, e.Type)
		}
		checkBody(t, e)
		bodies.Write(e.Body)
		bodies.WriteByte('\n')
	}

	t.Run("node", func(t *testing.T) {
		cmd := exec.Command(testkit.Program(t, "node", "apt-get install nodejs, or https://nodejs.org"), "testdata/stringify.js")
		cmd.Stdin = bytes.NewReader(bodies.Bytes())
		cmd.Stderr = os.Stderr
		out, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(strings.Split(bodies.String(), "\n"), strings.Split(string(out), "\n")); diff != "" {
			t.Errorf("JSON.stringify(JSON.parse(body)) (-body +node):\n%s", diff)
		}
	})
}

// keys has the members of the body of each type, in their order. A question mark marks an optional
// member, and an underscore stands for a space.
var keys = map[string]string{
	"page":     "version type userId properties name? category? timestamp messageId anonymousId? context originalTimestamp? receivedAt sentAt?",
	"screen":   "version type userId name? context category? properties? timestamp messageId anonymousId? originalTimestamp? receivedAt sentAt?",
	"identify": "version type userId traits timestamp messageId anonymousId? context originalTimestamp? receivedAt sentAt?",
	"track":    "version type userId event properties timestamp messageId anonymousId? context originalTimestamp? receivedAt sentAt?",
	"group":    "version type userId groupId traits timestamp messageId anonymousId? context originalTimestamp? receivedAt sentAt?",
	"alias":    "version type Previous_ID User_ID timestamp messageId anonymousId? context originalTimestamp? receivedAt sentAt?",
	"delete":   "type userId timestamp",
}

// checkBody checks the rules that hold for every body.
func checkBody(t *testing.T, e event.Event) {
	t.Helper()
	again, err := esjson.Append(nil, e.Body)
	if err != nil {
		t.Fatalf("body %q: %v", e.Body, err)
	}
	if !bytes.Equal(again, e.Body) {
		t.Errorf("encoding the body again changes it:\nbody  %s\nagain %s", e.Body, again)
	}
	var got []string
	err = esjson.Members(e.Body, func(key, value []byte) error {
		got = append(got, strings.ReplaceAll(string(key), " ", "_"))
		switch string(key) {
		case "version":
			if string(value) != "1" {
				t.Errorf("version %s, want 1", value)
			}
		case "type":
			if string(value) != `"`+e.Type+`"` {
				t.Errorf("type %s, want the Event.Type %q", value, e.Type)
			}
		case "context", "traits", "properties":
			if value[0] != '{' {
				t.Errorf("%s is %s, want an object", key, value)
			}
		case "timestamp", "receivedAt", "sentAt", "originalTimestamp":
			if _, err := time.Parse(`"2006-01-02T15:04:05.000Z"`, string(value)); err != nil {
				t.Errorf("%s: %v", key, err)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range strings.Fields(keys[e.Type]) {
		name, optional := strings.CutSuffix(want, "?")
		switch {
		case len(got) > 0 && got[0] == name:
			got = got[1:]
		case !optional:
			t.Errorf("%s: want the member %s next, got %v in %s", e.Type, name, got, e.Body)
			return
		}
	}
	if len(got) > 0 {
		t.Errorf("%s: members that are unknown or out of order: %v in %s", e.Type, got, e.Body)
	}
}

// body decodes the body of an event.
func body(t *testing.T, e event.Event) map[string]any {
	t.Helper()
	var m map[string]any
	if err := json.Unmarshal(e.Body, &m); err != nil {
		t.Fatal(err)
	}
	return m
}

func TestTimestampIsCorrectedBySentAt(t *testing.T) {
	received := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	const at = "2026-03-01T12:00:00.000Z"
	for _, tt := range []struct {
		name                  string
		call                  string // members
		sentAt                time.Time
		timestamp, orig, sent string
	}{
		{"no times", ``, time.Time{}, at, "", ""},
		{"sentAt alone", ``, received.Add(-time.Hour), at, "", "2026-03-01T11:00:00.000Z"},
		{"timestamp alone", `,"timestamp":"2020-01-02T03:04:05Z"`, time.Time{}, "2020-01-02T03:04:05.000Z", "2020-01-02T03:04:05.000Z", ""},
		{"originalTimestamp alone", `,"originalTimestamp":"2020-01-02T03:04:05Z"`, time.Time{}, "2020-01-02T03:04:05.000Z", "2020-01-02T03:04:05.000Z", ""},
		{"timestamp before originalTimestamp", `,"originalTimestamp":"2020-01-02T03:04:05Z","timestamp":"2019-01-02T03:04:05Z"`, time.Time{}, "2019-01-02T03:04:05.000Z", "2019-01-02T03:04:05.000Z", ""},
		{"clock behind by an hour", `,"timestamp":"2026-03-01T10:59:30Z"`, received.Add(-time.Hour), "2026-03-01T11:59:30.000Z", "2026-03-01T10:59:30.000Z", "2026-03-01T11:00:00.000Z"},
		{"clock ahead by an hour", `,"timestamp":"2026-03-01T12:59:30Z"`, received.Add(time.Hour), "2026-03-01T11:59:30.000Z", "2026-03-01T12:59:30.000Z", "2026-03-01T13:00:00.000Z"},
		{"clock at 1970", `,"timestamp":100`, time.Unix(130, 0), "2026-03-01T11:59:30.000Z", "1970-01-01T00:01:40.000Z", "1970-01-01T00:02:10.000Z"},
		{"historical import", `,"timestamp":"1999-12-31T23:59:59.999Z"`, received.Add(-2 * time.Second), "2000-01-01T00:00:01.999Z", "1999-12-31T23:59:59.999Z", "2026-03-01T11:59:58.000Z"},
		{"own sentAt before the batch's", `,"timestamp":"2026-03-01T11:00:00Z","sentAt":"2026-03-01T11:30:00Z"`, received, "2026-03-01T11:30:00.000Z", "2026-03-01T11:00:00.000Z", "2026-03-01T11:30:00.000Z"},
		{"fractions", `,"timestamp":"2026-03-01T11:00:00.0009Z","sentAt":"2026-03-01T11:00:00.0001Z"`, time.Time{}, at, "2026-03-01T11:00:00.000Z", "2026-03-01T11:00:00.000Z"},
		{"the year 1500", `,"timestamp":"1500-01-01T00:00:00Z"`, received.Add(-time.Second), "1500-01-01T00:00:01.000Z", "1500-01-01T00:00:00.000Z", "2026-03-01T11:59:59.000Z"},
		{"sentAt in the year 1", `,"timestamp":"2026-03-01T11:00:00Z","sentAt":"0001-01-01T00:00:01Z"`, time.Time{}, "2026-03-01T11:00:00.000Z", "2026-03-01T11:00:00.000Z", "0001-01-01T00:00:01.000Z"},
		{"corrected past year 9999", `,"timestamp":"9999-12-31T23:59:59Z"`, received.Add(-time.Hour), "9999-12-31T23:59:59.000Z", "9999-12-31T23:59:59.000Z", "2026-03-01T11:00:00.000Z"},
		{"corrected before year 1", `,"timestamp":"0001-01-01T00:30:00Z"`, received.Add(time.Hour), "0001-01-01T00:30:00.000Z", "0001-01-01T00:30:00.000Z", "2026-03-01T13:00:00.000Z"},
		{"Go's zero time", `,"timestamp":"0001-01-01T00:00:00Z"`, received, at, "", at},
		{"null", `,"timestamp":null,"originalTimestamp":null,"sentAt":null`, time.Time{}, at, "", ""},
		{"words", `,"timestamp":"yesterday","originalTimestamp":true,"sentAt":"now"`, time.Time{}, at, "", ""},
		{"an empty timestamp", `,"timestamp":"","sentAt":{}`, time.Time{}, at, "", ""},
		{"words before originalTimestamp", `,"timestamp":"2009-11-10 23:00:00 +0000 UTC","originalTimestamp":"2020-01-02"`, time.Time{}, "2020-01-02T00:00:00.000Z", "2020-01-02T00:00:00.000Z", ""},
		{"words before the batch's sentAt", `,"timestamp":1772362800.5,"sentAt":"now"`, received, "2026-03-01T11:00:00.500Z", "2026-03-01T11:00:00.500Z", at},
	} {
		call := `{"type":"identify","userId":"u"` + tt.call + `}`
		e, err := encode(call, event.Envelope{ReceivedAt: received, SentAt: tt.sentAt})
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		checkBody(t, e)
		m := body(t, e)
		for key, want := range map[string]string{"timestamp": tt.timestamp, "originalTimestamp": tt.orig, "sentAt": tt.sent, "receivedAt": at} {
			if got, _ := m[key].(string); got != want {
				t.Errorf("%s: %s = %q, want %q", tt.name, key, got, want)
			}
		}
	}
}

func TestContextMergesCallAndBatch(t *testing.T) {
	for _, tt := range []struct {
		name    string
		own     string
		batch   string
		ip      string
		browser bool
		want    string
	}{
		{"none", ``, ``, "", false, `{}`},
		{"null", `null`, `null`, "", false, `{}`},
		{"own", `{"a":1}`, ``, "", false, `{"a":1}`},
		{"batch", ``, `{"a":1}`, "", false, `{"a":1}`},
		{"both", `{"b":2}`, `{"a":1}`, "", false, `{"a":1,"b":2}`},
		{"empty own", `{ }`, `{"a":1}`, "", false, `{"a":1}`},
		{"empty batch", `{"b":2}`, " { } ", "", false, `{"b":2}`},
		{"own wins", `{"a":{"y":2}}`, `{"a":{"x":1},"b":3}`, "", false, `{"a":{"y":2},"b":3}`},
		{"own null wins", `{"a":null}`, `{"a":1}`, "", false, `{"a":null}`},
		{"own wins over an escaped name", `{"\u0061":2}`, `{"a":1}`, "", false, `{"a":2}`},
		{"indices of both in order", `{"1":"own","x":0}`, `{"2":"batch","y":0,"1":"batch"}`, "", false, `{"1":"own","2":"batch","y":0,"x":0}`},
		{"duplicates in both", `{"a":3,"a":4}`, `{"a":1,"a":2}`, "", false, `{"a":4}`},

		{"address of a server", `{"a":1}`, ``, "192.0.2.1", false, `{"a":1}`},
		{"address of a browser", `{"a":1}`, ``, "192.0.2.1", true, `{"ip":"192.0.2.1","a":1}`},
		{"address of a browser without context", ``, ``, "192.0.2.1", true, `{"ip":"192.0.2.1"}`},
		{"own address", `{"ip":"198.51.100.1"}`, ``, "192.0.2.1", true, `{"ip":"198.51.100.1"}`},
		{"batch's address", `{"a":1}`, `{"ip":"198.51.100.1"}`, "192.0.2.1", true, `{"ip":"198.51.100.1","a":1}`},
		{"own null address", `{"ip":null}`, ``, "192.0.2.1", true, `{"ip":null}`},
		{"direct", `{"direct":true}`, ``, "192.0.2.1", false, `{"ip":"192.0.2.1","direct":true}`},
		{"direct with an escape", `{"\u0064irect":true}`, ``, "192.0.2.1", false, `{"ip":"192.0.2.1","direct":true}`},
		{"direct deeper down", `{"a":{"direct":true}}`, ``, "192.0.2.1", false, `{"a":{"direct":true}}`},
		{"direct by the batch", `{"a":1}`, `{"direct":true}`, "192.0.2.1", false, `{"ip":"192.0.2.1","direct":true,"a":1}`},
		{"not direct", `{"direct":false}`, ``, "192.0.2.1", false, `{"direct":false}`},
		{"own not direct wins", `{"direct":false}`, `{"direct":true}`, "192.0.2.1", false, `{"direct":false}`},
		{"direct is a text", `{"direct":"true"}`, ``, "192.0.2.1", false, `{"direct":"true"}`},
		{"direct and an address", `{"direct":true,"ip":"198.51.100.1"}`, ``, "192.0.2.1", false, `{"ip":"198.51.100.1","direct":true}`},
		{"direct, address not known", `{"direct":true}`, ``, "", false, `{"direct":true}`},
	} {
		for _, kind := range []string{"track", "screen"} {
			call := `{"type":"` + kind + `","event":"e","userId":"u"`
			if tt.own != "" {
				call += `,"context":` + tt.own
			}
			e, err := encode(call+"}", event.Envelope{Context: []byte(tt.batch), IP: tt.ip, Browser: tt.browser})
			if err != nil {
				t.Errorf("%s: %v", tt.name, err)
				continue
			}
			checkBody(t, e)
			var got string
			esjson.Members(e.Body, func(key, value []byte) error {
				if string(key) == "context" {
					got = string(value)
				}
				return nil
			})
			if got != tt.want {
				t.Errorf("%s: %s: context = %s, want %s", tt.name, kind, got, tt.want)
			}
		}
	}
}
