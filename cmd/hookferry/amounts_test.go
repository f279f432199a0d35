package main

import (
	"testing"
	"time"

	"github.com/hookferry/analytics/webhook"
)

func TestAmounts(t *testing.T) {
	for _, tt := range []struct{ name, got, want string }{
		{"grouped", grouped(0), "0"},
		{"grouped", grouped(999), "999"},
		{"grouped", grouped(1000), "1,000"},
		{"grouped", grouped(-1234567), "-1,234,567"},
		{"counted", counted(1, "user"), "1 user"},
		{"counted", counted(1000, "user"), "1,000 users"},
		{"rate", rate(0), "0"},
		{"rate", rate(0.01), "<0.1"},
		{"rate", rate(99.94), "99.9"},
		{"rate", rate(12345.6), "12,346"},
		{"millis", millis(ms(0.44)), "0.4ms"},
		{"millis", millis(ms(9.99)), "10ms"},
		{"millis", millis(ms(999.4)), "999ms"},
		{"millis", millis(ms(999.6)), "1.0s"},
		{"spell", spell(-time.Second), "0s"},
		{"spell", spell(59900 * time.Millisecond), "1m0s"},
		{"spell", spell(23*time.Hour + 59*time.Minute), "23h59m"},
		{"spell", spell(49 * time.Hour), "2d1h"},
	} {
		if tt.got != tt.want {
			t.Errorf("%s = %q, want %q", tt.name, tt.got, tt.want)
		}
	}
}

func TestParseTime(t *testing.T) {
	zone := time.FixedZone("", -3*3600)
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, zone)
	for _, tt := range []struct {
		text string
		want time.Time // zero if parseTime returns an error
	}{
		{"2026-01-31T12:00:00Z", time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)},
		{"2026-01-31T12:00:00.5+01:00", time.Date(2026, 1, 31, 11, 0, 0, 5e8, time.UTC)},
		{"2026-01-31", time.Date(2026, 1, 31, 0, 0, 0, 0, zone)},
		{"2h", now.Add(-2 * time.Hour)},
		{"2h ago", now.Add(-2 * time.Hour)},
		{"1h30m ago", now.Add(-90 * time.Minute)},
		{"7d", now.Add(-7 * 24 * time.Hour)},
		{"1.5d ago", now.Add(-36 * time.Hour)},
		{text: "-2h"},
		{text: "-1d"},
		{text: "NaNd"},
		{text: "1e300d"},
		{text: "yesterday"},
		{text: "ago"},
		{text: ""},
	} {
		got, err := parseTime(tt.text, now)
		if (err != nil) != tt.want.IsZero() || !got.Equal(tt.want) {
			t.Errorf("parseTime(%q) = %v, %v, want %v", tt.text, got, err, tt.want)
		}
	}
}

// ms returns a duration of so many milliseconds.
func ms(n float64) webhook.Millis { return webhook.Millis(n * float64(time.Millisecond)) }
