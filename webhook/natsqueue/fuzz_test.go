package natsqueue

import (
	"reflect"
	"strings"
	"testing"
)

// FuzzStored reads any bytes as a chunk, a record, a member and a subject. What it can read, it writes
// and reads again without a difference.
func FuzzStored(f *testing.F) {
	f.Add((&chunk{node: "n", number: 7, records: [][]byte{[]byte("a"), nil}}).append(nil))
	f.Add((&record{node: "n", serial: 1, cursor: 2, ends: []ref{{1, 2}, {1, 3}, {1 << 60, 0}}, chunk: chunk{noDedup: true}}).append(nil))
	f.Add([]byte("7"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if c, err := parseChunk(b); err == nil {
			if again, err := parseChunk(c.append(nil)); err != nil || !reflect.DeepEqual(c, again) {
				t.Errorf("chunk %+v is read as %+v, %v", c, again, err)
			}
		}
		if r, err := parseRecord(b); err == nil {
			again, err := parseRecord((&record{r.node, r.serial, r.cursor, r.ends, r.chunk}).append(nil))
			if err != nil || len(again.ends) != len(r.ends) || !reflect.DeepEqual(r.chunk, again.chunk) {
				t.Errorf("record %+v is read as %+v, %v", r, again, err)
			}
		}
		memberOf(&stored{subject: "S.member.vip.u", data: b})
		if name, err := lastToken("S." + string(b)); err == nil && !strings.HasSuffix("."+string(b), "."+token(name)) {
			t.Errorf("token %q stands for %q, for which %q stands", b, name, token(name))
		}
	})
}

// FuzzToken turns any name into a token of a subject and back.
func FuzzToken(f *testing.F) {
	for _, name := range []string{"", "crm", "=", "a.b", "*", ">", " ", "\x00\xff", strings.Repeat("ü", 127)} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		text := token(name)
		if got, err := lastToken("S.x." + text); err != nil || got != name {
			t.Errorf("the token %q of %q is read as %q, %v", text, name, got, err)
		}
		if text == "" || strings.ContainsAny(text, ".*> \t\r\n\x00") {
			t.Errorf("%q is no token", text)
		}
	})
}
