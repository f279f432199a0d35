package main

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// grouped is a number with commas: 12,345.
func grouped[T int | int64](n T) string {
	digits := strconv.FormatInt(int64(n), 10)
	sign := ""
	if n < 0 {
		sign, digits = "-", digits[1:]
	}
	var b strings.Builder
	for i, d := range digits {
		if i > 0 && (len(digits)-i)%3 == 0 {
			b.WriteByte(',')
		}
		b.WriteRune(d)
	}
	return sign + b.String()
}

// counted is a number of things: "1 dead letter", "2 dead letters".
func counted[T int | int64](n T, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	if stem, ok := strings.CutSuffix(thing, "y"); ok {
		return grouped(n) + " " + stem + "ies"
	}
	return grouped(n) + " " + thing + "s"
}

// rate is a number, with a digit behind the point where it is small and not
// whole, as those per second are.
func rate(n float64) string {
	switch {
	case n == math.Trunc(n) || n >= 100:
		return grouped(int64(math.Round(n)))
	case n < 0.05:
		return "<0.1"
	}
	return strconv.FormatFloat(n, 'f', 1, 64)
}

// megabytes is a number of bytes, in units of 1,000,000.
func megabytes(bytes float64) string {
	return strconv.FormatFloat(bytes/1e6, 'f', 1, 64) + " MB"
}

// millis is a time in milliseconds: "0.4ms", "12ms", "1.2s".
func millis(ms float64) string {
	switch {
	case ms < 9.95:
		return strconv.FormatFloat(ms, 'f', 1, 64) + "ms"
	case ms < 999.5:
		return strconv.FormatFloat(ms, 'f', 0, 64) + "ms"
	}
	return strconv.FormatFloat(ms/1000, 'f', 1, 64) + "s"
}

// spell is how long something is, by its two largest units: "3d4h", "12s".
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

// parseTime reads a time: RFC 3339, a date, or how long ago, such as 2h, "2h
// ago" or 7d.
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

// clock is a time as it is printed: in the zone of the machine.
func clock(t time.Time) string { return t.Local().Format(time.RFC3339) }
