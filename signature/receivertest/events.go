package receivertest

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

const timestamp = `"timestamp":"2026-01-31T12:00:00.000Z"`

// track returns the body of a track.
func track(id string) []byte {
	return fmt.Appendf(nil, `{"version":1,"type":"track","userId":"test-user","event":"Test Event","properties":{"price":19.5},%s,"messageId":%q,"context":{}}`, timestamp, id)
}

// contractTypes has the bodies of the seven types, without messageIds.
var contractTypes = []struct{ name, body string }{
	{"page", `{"version":1,"type":"page","userId":"test-user","properties":{"path":"/","referrer":"","title":"Home","url":"https://www.example.com/"},` + timestamp + `}`},
	{"screen", `{"version":1,"type":"screen","userId":"test-user","name":"Home",` + timestamp + `,"context":{"device":{"model":"iPhone 7","type":"ios"},"os":{"name":"iOS","version":"10.2"},"app":{"version":"1.0","name":"Example","build":"1"}}}`},
	{"identify", `{"version":1,"type":"identify","userId":"test-user","traits":{"plan":"free","age":42,"vip_users":true},` + timestamp + `}`},
	{"track", `{"version":1,"type":"track","userId":"test-user","event":"Test Event","properties":{},` + timestamp + `}`},
	{"track of an unknown user", `{"version":1,"type":"track","userId":null,"event":"Test Event","properties":{},` + timestamp + `,"anonymousId":"test-visitor"}`},
	{"alias", `{"version":1,"type":"alias","Previous ID":"test-visitor","User ID":"test-user",` + timestamp + `}`},
	{"group", `{"version":1,"type":"group","userId":"test-user","groupId":"test-group","traits":{"employees":42},` + timestamp + `}`},
	{"delete", `{"type":"delete","userId":"test-user",` + timestamp + `}`},
}

// largeEvent is the size of the largest custom event, in bytes.
const largeEvent = 256 << 10

var eventChecks = []Check{
	// The bodies are as JSON.stringify writes them, so a receiver may verify the body that it makes
	// from the parsed one, as the contract of X-Signature allows. Encoders of other languages write
	// other bytes.
	{"the bytes that came are verified", true, 0, func(k *kit) {
		for _, properties := range []string{
			`"html":"<b>&amp;</b>","line":"` + "\u2028\u2029" + `","delete":"` + "\x7f" + `"`,
			`"text":"Größe 漢字 😀","escaped":"\b\f\n\r\t\"\\/\u0000\u001f"`,
			`"large":1e+21,"long":12345678901234567000,"small":1e-7,"ratio":0.1,"whole":1`,
			`"7":"an index comes first","z":1,"a":{"b":[[],{}]},"__proto__":null`,
		} {
			body := `{"version":1,"type":"track","userId":"test-user","event":"Test Event","properties":{` + properties + `},` + timestamp + `,"messageId":"` + newID() + `"}`
			k.accept("an event with the properties "+properties, k.request(newID(), body))
		}
	}},
	{"all types of calls are accepted", true, 0, func(k *kit) {
		for _, c := range contractTypes {
			id, body := newID(), c.body
			if c.name != "delete" {
				body = strings.TrimSuffix(body, "}") + `,"messageId":"` + id + `"}`
			}
			k.accept(c.name, k.request(id, body))
		}
	}},
	{"types and fields that the receiver does not know are accepted", true, 0, func(k *kit) {
		id := newID()
		k.accept("a custom event", k.request(id, `{"type":"test.invoice.paid",`+timestamp+`,"data":{"id":"`+id+`"}}`))
		id = newID()
		k.accept("an event with new fields", k.request(id, strings.TrimSuffix(string(k.Event(id)), "}")+`,"testField":{"new":[1,"two",null]}}`))
	}},
	{"a large event is accepted", true, 0, func(k *kit) {
		body := `{"type":"test.large",` + timestamp + `,"data":{"text":""}}`
		text := strings.Repeat("x", int(min(largeEvent, k.MaxBody))-len(body))
		k.accept(fmt.Sprintf("an event of %d bytes", len(body)+len(text)), k.request(newID(), strings.Replace(body, `""`, `"`+text+`"`, 1)))
	}},
	{"a body over the limit is refused", true, 0, func(k *kit) {
		body := `{"type":"test.too.large",` + timestamp + `,"data":{"text":"` + strings.Repeat("x", int(k.MaxBody)) + `"}}`
		switch a := k.send(k.request(newID(), body)); {
		case a.accepted():
			k.fault("a body of %d bytes: answered %d: whoever sends takes as much of the memory as it wants; want 413", len(body), a.status)
		case a.status != 0 && a.status != http.StatusRequestEntityTooLarge && !a.refused():
			// A receiver may also close the connection, which a sender takes for a failure.
			k.fault("a body of %d bytes: %v; want 413", len(body), a)
		}
	}},
	{"a body that comes slowly is accepted", true, 0, func(k *kit) {
		k.accept("an event whose second half comes later", k.event().with(func(r *request) {
			half := len(r.body) / 2
			r.change = func(h *http.Request) {
				setBody(h, io.MultiReader(strings.NewReader(r.body[:half]), lateReader{}, strings.NewReader(r.body[half:])), len(r.body))
			}
		}))
	}},
	{"a batch is accepted", true, batches, func(k *kit) {
		k.accept("a batch of three events", k.batch(k.event(), k.event(), k.event()))
		k.accept("a batch of one event", k.batch(k.event()))
	}},
}

// A lateReader has no bytes, and takes time to return io.EOF.
type lateReader struct{}

func (lateReader) Read([]byte) (int, error) {
	time.Sleep(20 * time.Millisecond)
	return 0, io.EOF
}
