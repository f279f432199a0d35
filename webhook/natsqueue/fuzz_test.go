package natsqueue

import (
	"reflect"
	"strings"
	"testing"
)

// FuzzStored reads any bytes as a record, a dead letter's header and a subject. If the bytes are valid, writing the
// value and reading it again gives an equal value.
func FuzzStored(f *testing.F) {
	f.Add((&record{node: "n", serial: 7, records: []stored{{data: []byte("a")}, {}}}).append(nil))
	f.Add((&record{node: "n", serial: 1, cursor: 2, ends: []ref{{1, 2}, {1, 3}, {1 << 60, 0}}, records: []stored{{}, {noDedup: true}}}).append(nil))
	f.Add([]byte("7"))
	f.Add([]byte((&letter{died: -5, user: 1 << 31, size: 7}).header(1 << 62)))
	f.Fuzz(func(t *testing.T, b []byte) {
		if r, err := parseRecord(b); err == nil {
			if again, err := parseRecord(r.append(nil)); err != nil || !reflect.DeepEqual(r, again) {
				t.Errorf("record written and read again = %+v, %v; want %+v", again, err, r)
			}
		}
		if x, ok := parseLetter(string(b)); ok {
			if again, ok := parseLetter(x.letter.header(x.seq)); !ok || again.seq != x.seq || *again.letter != *x.letter {
				t.Errorf("dead letter written and read again = %+v, %t; want %+v", again, ok, x)
			}
		}
		if name, err := lastToken("S." + string(b)); err == nil && !strings.HasSuffix("."+string(b), "."+token(name)) {
			t.Errorf("lastToken(%q) = %q, want a name whose token is the last one: got %q", b, name, token(name))
		}
	})
}

// FuzzToken writes any name as a token of a subject, and reads the same name from the token.
func FuzzToken(f *testing.F) {
	for _, name := range []string{"", "crm", "=", "a.b", "*", ">", " ", "\x00\xff", strings.Repeat("ü", 127)} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		text := token(name)
		if got, err := lastToken("S.x." + text); err != nil || got != name {
			t.Errorf("lastToken of %q = %q, %v; want %q", text, got, err, name)
		}
		if text == "" || strings.ContainsAny(text, ".*> \t\r\n\x00") {
			t.Errorf("token(%q) = %q, want a valid token of a subject", name, text)
		}
	})
}
