package natsqueue

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
)

// FuzzStored reads any bytes as a record, a deed, a member, an origin and a subject of a
// stream. Whatever it can read, it writes as the same bytes.
func FuzzStored(f *testing.F) {
	f.Add(appendRecord(nil, []uint64{1, 2, 1 << 60}))
	f.Add([]byte(`{"node":"n","name":"host/1","settled":"AQE="}`))
	f.Add([]byte("7 claim"))
	f.Add([]byte("12 34"))
	f.Add([]byte("q.crm"))
	f.Add([]byte("w.=AAE.1a-2"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if seqs, err := parseRecord(b); err == nil {
			again, err := parseRecord(appendRecord(nil, slices.Clone(seqs)))
			if err != nil || !slices.Equal(seqs, again) {
				t.Errorf("record %v is read as %v, %v", seqs, again, err)
			}
		}
		parseDeed(b)
		text := string(b)
		if m, err := parseMember("S.member.vip.u", b); err == nil && !bytes.Equal(m.text(), b) {
			t.Errorf("member %q is written as %q", b, m.text())
		}
		if o, ok, err := originOf(nats.Header{headerFrom: {text}}); ok && err == nil && o.String() != text {
			t.Errorf("origin %q is written as %q", text, o)
		}
		if name, err := untoken(text); err == nil && token(name) != text {
			t.Errorf("token %q stands for %q, for which %q stands", text, name, token(name))
		}
		if name, err := destinationOf(text); err == nil && !strings.Contains(text, token(name)) {
			t.Errorf("subject %q is of %q", text, name)
		}
	})
}

// FuzzToken turns any name into a token of a subject, and back.
func FuzzToken(f *testing.F) {
	for _, name := range []string{"", "crm", "=", "a.b", "*", ">", " ", "\x00\xff", strings.Repeat("ü", 127)} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		text := token(name)
		if got, err := untoken(text); err != nil || got != name {
			t.Errorf("the token %q of %q is read as %q, %v", text, name, got, err)
		}
		if text == "" || strings.ContainsAny(text, ".*> \t\r\n\x00") {
			t.Errorf("%q is no token", text)
		}
		now := time.Now()
		for _, due := range []time.Duration{-time.Hour, 0, soon + 1, 4 * time.Hour} {
			s := subjects{"N"}
			subject := s.delivery(3, text, now.Add(due), now)
			rest, ok := strings.CutPrefix(subject, s.partition(3))
			if got, err := destinationOf(rest); !ok || err != nil || got != name {
				t.Errorf("the subject %q of %q due in %v is of %q, %v", subject, name, due, got, err)
			}
		}
	})
}
