package retryafter

import (
	"strings"
	"testing"
	"time"
)

func TestParse(t *testing.T) {
	now := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	for _, tt := range []struct {
		name, value string
		want        time.Duration
		ok          bool
	}{
		{"empty", "", 0, false},
		{"zero", "0", 0, true},
		{"seconds", "120", 2 * time.Minute, true},
		{"surrounding space", " 7\t", 7 * time.Second, true},
		{"leading zeros", "007", 7 * time.Second, true},
		{"more seconds than an int64 holds", strings.Repeat("9", 40), Max, true},
		{"more nanoseconds than an int64 holds", "9223372037", Max, true},
		{"negative", "-1", 0, false},
		{"fraction", "1.5", 0, false},
		{"unit", "5s", 0, false},
		{"signed", "+5", 0, false},
		{"IMF fixdate", "Wed, 04 Mar 2026 05:07:07 GMT", time.Minute, true},
		{"RFC 850", "Wednesday, 04-Mar-26 05:07:07 GMT", time.Minute, true},
		{"asctime", "Wed Mar  4 05:07:07 2026", time.Minute, true},
		{"past date", "Wed, 04 Mar 2026 05:06:06 GMT", 0, true},
		{"far date", "Fri, 31 Dec 9999 23:59:59 GMT", Max, true},
		{"neither number nor date", "tomorrow", 0, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, ok := Parse(tt.value, now)
			if got != tt.want || ok != tt.ok {
				t.Errorf("Parse(%q) = %v, %v; want %v, %v", tt.value, got, ok, tt.want, tt.ok)
			}
		})
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"", "0", "300", "99999999999999999999", "-3", "Wed, 04 Mar 2026 05:07:07 GMT"} {
		f.Add(s)
	}
	now := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	f.Fuzz(func(t *testing.T, s string) {
		got, ok := Parse(s, now)
		if got < 0 || got > Max || (!ok && got != 0) {
			t.Errorf("Parse(%q) = %v, %v, want 0 to %v, and 0 without ok", s, got, ok, Max)
		}
	})
}
