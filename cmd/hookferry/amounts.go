package main

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/hookferry/analytics/webhook"
)

// grouped returns a number with commas: "12,345".
func grouped[T int | int64](n T) string {
	switch {
	case n < 0:
		return "-" + grouped(-n)
	case n < 1000:
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%s,%03d", grouped(n/1000), n%1000)
}

// counted returns a number with its noun: "1 dead letter", "2 deliveries".
func counted[T int | int64](n T, thing string) string {
	if stem, ok := strings.CutSuffix(thing, "y"); ok && n != 1 {
		return grouped(n) + " " + stem + "ies"
	}
	if n != 1 {
		thing += "s"
	}
	return grouped(n) + " " + thing
}

// rate formats a number per second. A small number that is not whole gets one decimal.
func rate(n float64) string {
	switch {
	case n == math.Trunc(n) || n >= 100:
		return grouped(int64(math.Round(n)))
	case n < 0.05:
		return "<0.1"
	}
	return fmt.Sprintf("%.1f", n)
}

// millis formats a duration: "0.4ms", "12ms", "1.2s".
func millis(d webhook.Millis) string {
	switch ms := d.Seconds() * 1000; {
	case ms < 9.95:
		return fmt.Sprintf("%.1fms", ms)
	case ms < 999.5:
		return fmt.Sprintf("%.0fms", ms)
	}
	return fmt.Sprintf("%.1fs", d.Seconds())
}

// spell formats a duration with its two largest units: "3d4h", "12s".
func spell(d time.Duration) string {
	d = max(d, 0).Round(time.Second)
	day := 24 * time.Hour
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%dm%ds", d/time.Minute, d%time.Minute/time.Second)
	case d < day:
		return fmt.Sprintf("%dh%dm", d/time.Hour, d%time.Hour/time.Minute)
	}
	return fmt.Sprintf("%dd%dh", d/day, d%day/time.Hour)
}

// parseTime parses a time in RFC 3339, a date, or a time ago, such as 2h, "2h ago" or 7d.
func parseTime(text string, now time.Time) (time.Time, error) {
	if t, err := time.Parse(time.RFC3339, text); err == nil {
		return t, nil
	}
	if t, err := time.ParseInLocation(time.DateOnly, text, now.Location()); err == nil {
		return t, nil
	}
	ago := strings.TrimSpace(strings.TrimSuffix(text, "ago"))
	if days, ok := strings.CutSuffix(ago, "d"); ok {
		if n, err := strconv.ParseFloat(days, 64); err == nil && n >= 0 && n < 100_000 {
			return now.Add(-time.Duration(n * 24 * float64(time.Hour))), nil
		}
	}
	d, err := time.ParseDuration(ago)
	if err != nil || d < 0 {
		return time.Time{}, fmt.Errorf("want a time such as 2026-01-31T12:00:00Z, 2026-01-31, 2h or 7d ago")
	}
	return now.Add(-d), nil
}

// ago says how long before now t was, or "-" if t is unknown.
func ago(t, now time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return spell(now.Sub(t)) + " ago"
}

func clock(t time.Time) string { return t.Local().Format(time.RFC3339) }
