package docs_test

import (
	"bytes"
	"encoding/json"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hookferry/analytics/event"
)

// TestBodiesOfReceivers compares the bodies in receivers.md with those of package event.
func TestBodiesOfReceivers(t *testing.T) {
	at := time.Date(2026, 3, 1, 12, 0, 0, 250e6, time.UTC)
	encoder, err := event.NewEncoder(event.Envelope{ReceivedAt: at})
	check(err)
	var want []string
	for _, call := range []string{
		`"identify", "userId": "u1", "traits": {"email": "ann@example.com", "plan": "pro"}`,
		`"track", "userId": "u1", "event": "Order Completed", "properties": {"total": 39.5}`,
		`"page", "anonymousId": "a7", "name": "Prices", "properties": {"path": "/prices", "title": "Prices"}`,
		`"screen", "userId": "u1", "name": "Cart", "context": {"device": {"type": "ios"}}`,
		`"group", "userId": "u1", "groupId": "g5", "traits": {"name": "Initech"}`,
		`"alias", "previousId": "a7", "userId": "u1"`,
	} {
		kind := strings.Split(call, `"`)[1]
		_, e, err := encoder.Append(nil, []byte(`{"type": `+call+`, "messageId": "m-`+kind+`"}`))
		check(err)
		want = append(want, string(e.Body))
	}
	deletion, err := event.Delete("u1", at)
	check(err)
	want = append(want, string(deletion.Body))
	section := regexp.MustCompile("(?s)\n## The body\n.*?```json\n(.*?)```").FindStringSubmatch(readText(t, "receivers.md"))
	if section == nil {
		t.Fatalf("receivers.md has no section \"The body\" with the bodies:\n%s", strings.Join(want, "\n"))
	}
	var got []string
	for d := json.NewDecoder(strings.NewReader(section[1])); d.More(); {
		var body json.RawMessage
		if err := d.Decode(&body); err != nil {
			t.Fatal(err)
		}
		var line bytes.Buffer
		check(json.Compact(&line, body))
		got = append(got, line.String())
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("receivers.md (-want +got):\n%s", d)
	}
}
