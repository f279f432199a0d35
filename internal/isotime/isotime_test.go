package isotime_test

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/hookferry/analytics/internal/isotime"
)

func at(year, month, day, hour, minute, second, nano int) time.Time {
	return time.Date(year, time.Month(month), day, hour, minute, second, nano, time.UTC)
}

func TestParse(t *testing.T) {
	for _, tt := range []struct {
		name, s string
		want    time.Time
	}{
		{"seconds", "2006-01-02T15:04:05Z", at(2006, 1, 2, 15, 4, 5, 0)},
		{"milliseconds", "2006-01-02T15:04:05.678Z", at(2006, 1, 2, 15, 4, 5, 678e6)},
		{"one digit of a fraction", "2006-01-02T15:04:05.6Z", at(2006, 1, 2, 15, 4, 5, 600e6)},
		{"nanoseconds", "2006-01-02T15:04:05.123456789Z", at(2006, 1, 2, 15, 4, 5, 123456789)},
		{"zeros of a fraction", "2006-01-02T15:04:05.000000001Z", at(2006, 1, 2, 15, 4, 5, 1)},
		{"offset", "2006-01-02T15:04:05+01:30", at(2006, 1, 2, 13, 34, 5, 0)},
		{"offset without a colon", "2006-01-02T15:04:05+0130", at(2006, 1, 2, 13, 34, 5, 0)},
		{"negative offset", "2006-01-02T15:04:05.5-08:00", at(2006, 1, 2, 23, 4, 5, 500e6)},
		{"negative offset without a colon", "2006-01-02T23:04:05-0800", at(2006, 1, 3, 7, 4, 5, 0)},
		{"zero offset", "2006-01-02T15:04:05-00:00", at(2006, 1, 2, 15, 4, 5, 0)},
		{"largest offset", "2006-01-02T15:04:05+23:59", at(2006, 1, 1, 15, 5, 5, 0)},
		{"one-digit month", "2015-2-02T00:00:00Z", at(2015, 2, 2, 0, 0, 0, 0)},
		{"one-digit day", "2015-02-2T00:00:00Z", at(2015, 2, 2, 0, 0, 0, 0)},
		{"one-digit month and day", "2015-2-2T00:00:00.000Z", at(2015, 2, 2, 0, 0, 0, 0)},
		{"leap day", "2024-02-29T23:59:59Z", at(2024, 2, 29, 23, 59, 59, 0)},
		{"leap day of a century", "2000-02-29T00:00:00Z", at(2000, 2, 29, 0, 0, 0, 0)},
		{"first time", "0001-01-01T00:00:00Z", at(1, 1, 1, 0, 0, 0, 0)},
		{"first time, in another zone", "0001-01-01T01:00:00+01:00", at(1, 1, 1, 0, 0, 0, 0)},
		{"last time", "9999-12-31T23:59:59.999999999Z", at(9999, 12, 31, 23, 59, 59, 999999999)},
		{"date alone", "2006-01-02", at(2006, 1, 2, 0, 0, 0, 0)},
		{"date alone with one-digit month and day", "2015-2-2", at(2015, 2, 2, 0, 0, 0, 0)},
		{"no zone", "2006-01-02T15:04:05", at(2006, 1, 2, 15, 4, 5, 0)},
		{"no zone after a fraction", "2006-01-02T15:04:05.1", at(2006, 1, 2, 15, 4, 5, 100e6)},
		{"before 1970", "1969-12-31T23:59:59.9Z", at(1969, 12, 31, 23, 59, 59, 900e6)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := isotime.Parse(tt.s)
			if err != nil || got != tt.want {
				t.Errorf("Parse(%q) = %v, %v; want %v", tt.s, got, err, tt.want)
			}
			got, err = isotime.ParseJSON([]byte(`"` + tt.s + `"`))
			if err != nil || got != tt.want {
				t.Errorf("ParseJSON(%q in quotes) = %v, %v; want %v", tt.s, got, err, tt.want)
			}
		})
	}
}

func TestParseErrors(t *testing.T) {
	const (
		form     = "not an RFC 3339 time, such as 2006-01-02T15:04:05Z"
		fraction = "a fraction of a second has 1 to 9 digits"
		month    = "month out of range"
		day      = "day out of range"
		clock    = "time of day out of range"
		offset   = "time zone offset out of range"
		year     = "year out of range: want 0001 to 9999 in UTC"
	)
	for _, tt := range []struct{ name, s, want string }{
		{"empty", "", form},
		{"words", "yesterday", form},
		{"month alone", "2006-01", form},
		{"date and T", "2006-01-02T", form},
		{"date and zone", "2006-01-02Z", form},
		{"no zone, and no seconds", "2006-01-02T15:04", form},
		{"date alone, of day 30 of February", "2006-02-30", day},
		{"no seconds", "2006-01-02T15:04Z", form},
		{"space for T", "2006-01-02 15:04:05Z", form},
		{"lower-case t", "2006-01-02t15:04:05Z", form},
		{"lower-case z", "2006-01-02T15:04:05z", form},
		{"space before", " 2006-01-02T15:04:05Z", form},
		{"space after", "2006-01-02T15:04:05Z ", form},
		{"zone twice", "2006-01-02T15:04:05ZZ", form},
		{"two-digit year", "06-01-02T15:04:05Z", form},
		{"five-digit year", "12006-01-02T15:04:05Z", form},
		{"signed year", "+2006-01-02T15:04:05Z", form},
		{"expanded year", "+002006-01-02T15:04:05Z", form},
		{"three-digit month", "2006-001-02T15:04:05Z", form},
		{"three-digit day", "2006-01-002T15:04:05Z", form},
		{"one-digit hour", "2006-01-02T5:04:05Z", form},
		{"one-digit minute", "2006-01-02T15:4:05Z", form},
		{"one-digit second", "2006-01-02T15:04:5Z", form},
		{"slashes", "2006/01/02T15:04:05Z", form},
		{"dots", "2006-01-02T15.04.05Z", form},
		{"no separators", "20060102T150405Z", form},
		{"comma before a fraction", "2006-01-02T15:04:05,5Z", form},
		{"empty fraction", "2006-01-02T15:04:05.Z", fraction},
		{"ten digits of a fraction", "2006-01-02T15:04:05.1234567890Z", fraction},
		{"short offset", "2006-01-02T15:04:05+01", form},
		{"one-digit offset", "2006-01-02T15:04:05+1:00", form},
		{"three-digit offset", "2006-01-02T15:04:05+100", form},
		{"offset with seconds", "2006-01-02T15:04:05+01:00:00", form},
		{"offset without a sign", "2006-01-02T15:04:0501:00", form},
		{"time.Time.String", "2006-01-02 15:04:05 +0000 UTC", form},
		{"RFC 1123", "Mon, 02 Jan 2006 15:04:05 GMT", form},
		{"digits", "1136214245", form},
		{"other digits", "２００６-01-02T15:04:05Z", form},
		{"zero byte", "2006-01-02T15:04:05Z\x00", form},
		{"year 0", "0000-01-01T00:00:00Z", year},
		{"year 0 in UTC", "0001-01-01T00:00:00+00:01", year},
		{"year 10000 in UTC", "9999-12-31T23:59:59-00:01", year},
		{"month 0", "2006-00-02T15:04:05Z", month},
		{"month 13", "2006-13-02T15:04:05Z", month},
		{"day 0", "2006-01-00T15:04:05Z", day},
		{"day 32", "2006-01-32T15:04:05Z", day},
		{"day 31 of a short month", "2006-04-31T15:04:05Z", day},
		{"leap day of another year", "2023-02-29T00:00:00Z", day},
		{"leap day of another century", "1900-02-29T00:00:00Z", day},
		{"hour 24", "2006-01-02T24:00:00Z", clock},
		{"minute 60", "2006-01-02T15:60:00Z", clock},
		{"leap second", "2016-12-31T23:59:60Z", clock},
		{"offset of 24 hours", "2006-01-02T15:04:05+24:00", offset},
		{"offset of 60 minutes", "2006-01-02T15:04:05+01:60", offset},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got, err := isotime.Parse(tt.s); err == nil || err.Error() != tt.want {
				t.Errorf("Parse(%q) = %v, %v; want the error %q", tt.s, got, err, tt.want)
			}
		})
	}
}

// TestParseAgreesWithPackageTime compares Parse with the parser of package time, on valid and
// invalid dates. Only package time accepts a comma before the fraction, so the test has none.
func TestParseAgreesWithPackageTime(t *testing.T) {
	for year := 1; year < 10000; year += 7 {
		for month := 0; month <= 13; month++ {
			for _, day := range []int{0, 1, 28, 29, 30, 31, 32} {
				s := time.Date(year, 1, 1, 0, 0, 0, 0, time.UTC).Format("2006") +
					"-" + two(month) + "-" + two(day) + "T01:02:03.04-05:06"
				want, wantErr := time.Parse(time.RFC3339, s)
				got, err := isotime.Parse(s)
				if (err == nil) != (wantErr == nil) || !got.Equal(want) {
					t.Fatalf("Parse(%q) = %v, %v; want %v, %v, as package time returns", s, got, err, want, wantErr)
				}
			}
		}
	}
}

// two returns the two decimal digits of n.
func two(n int) string { return string([]byte{'0' + byte(n/10), '0' + byte(n%10)}) }

func TestParseJSON(t *testing.T) {
	for _, tt := range []struct {
		name, raw string
		want      time.Time
	}{
		{"zero", "0", at(1970, 1, 1, 0, 0, 0, 0)},
		{"minus zero", "-0", at(1970, 1, 1, 0, 0, 0, 0)},
		{"seconds", "1136214245", at(2006, 1, 2, 15, 4, 5, 0)},
		{"milliseconds", "1136214245678", at(2006, 1, 2, 15, 4, 5, 678e6)},
		{"seconds before 1970", "-1", at(1969, 12, 31, 23, 59, 59, 0)},
		{"milliseconds before 1970", "-100000000000", at(1966, 10, 31, 14, 13, 20, 0)},
		{"largest seconds", "99999999999", at(5138, 11, 16, 9, 46, 39, 0)},
		{"smallest milliseconds", "100000000000", at(1973, 3, 3, 9, 46, 40, 0)},
		{"seconds with a fraction", "1136214245.25", at(2006, 1, 2, 15, 4, 5, 250e6)},
		{"seconds with a whole fraction", "1136214245.0", at(2006, 1, 2, 15, 4, 5, 0)},
		{"seconds with many digits of a fraction", "1136214245.1234567899999999999999", at(2006, 1, 2, 15, 4, 5, 123456789)},
		{"milliseconds with a fraction", "1136214245678.5", at(2006, 1, 2, 15, 4, 5, 678500000)},
		{"seconds before 1970 with a fraction", "-1.25", at(1969, 12, 31, 23, 59, 58, 750e6)},
		{"milliseconds before 1970 with a fraction", "-100000000000.5", at(1966, 10, 31, 14, 13, 19, 999500000)},
		{"last millisecond", "253402300799999", at(9999, 12, 31, 23, 59, 59, 999e6)},
		{"first second", "-62135596800", at(1, 1, 1, 0, 0, 0, 0)},
		{"first millisecond", "-62135596800000", at(1, 1, 1, 0, 0, 0, 0)},
		{"escaped plus", `"2006-01-02T15:04:05\u002B01:00"`, at(2006, 1, 2, 14, 4, 5, 0)},
		{"all escaped", `"` + escaped("2006-01-02T15:04:05.123456789+01:00") + `"`, at(2006, 1, 2, 14, 4, 5, 123456789)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got, err := isotime.ParseJSON([]byte(tt.raw)); err != nil || got != tt.want {
				t.Errorf("ParseJSON(%s) = %v, %v; want %v", tt.raw, got, err, tt.want)
			}
		})
	}
}

// escaped returns the ASCII text s as JSON escape sequences.
func escaped(s string) string {
	const hex = "0123456789abcdef"
	var b strings.Builder
	for _, c := range []byte(s) {
		b.WriteString(`\u00`)
		b.WriteByte(hex[c>>4])
		b.WriteByte(hex[c&15])
	}
	return b.String()
}

func TestParseJSONErrors(t *testing.T) {
	const (
		kind   = "not a JSON string or number"
		number = "a number has to be seconds or milliseconds since 1970, without an exponent"
		form   = "not an RFC 3339 time, such as 2006-01-02T15:04:05Z"
		year   = "year out of range: want 0001 to 9999 in UTC"
	)
	for _, tt := range []struct{ name, raw, want string }{
		{"nothing", "", kind},
		{"null", "null", kind},
		{"bool", "true", kind},
		{"object", "{}", kind},
		{"array", "[1]", kind},
		{"space before", " 1", kind},
		{"space after", "1 ", number},
		{"minus alone", "-", kind},
		{"plus", "+1", kind},
		{"two minuses", "--1", kind},
		{"leading zero", "01", number},
		{"empty fraction", "1136214245.", number},
		{"two fractions", "1136214245.5.5", number},
		{"fraction alone", ".5", kind},
		{"fraction and exponent", "1.5e9", number},
		{"exponent", "1e9", number},
		{"hexadecimal", "0x10", number},
		{"microseconds", "1136214245678901", year},
		{"nanoseconds", "1136214245678901234", year},
		{"many digits", strings.Repeat("9", 400), year},
		{"millisecond of the year 10000", "253402300800000", year},
		{"second of the year 0", "-62135596801", year},
		{"millisecond of the year 0", "-62135596800001", year},
		{"string of digits", `"1136214245"`, form},
		{"empty string", `""`, form},
		{"space in the string", `" 2006-01-02T15:04:05Z"`, form},
		{"open string", `"2006-01-02T15:04:05Z`, kind},
		{"quote alone", `"`, kind},
		{"quote inside", `"2006"01"`, kind},
		{"more after the string", `"2006-01-02T15:04:05Z"x`, kind},
		{"bad escape", `"2006-01-02T15:04:05\x5a"`, kind},
		{"long string", `"` + strings.Repeat("2", 5000) + `"`, form},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got, err := isotime.ParseJSON([]byte(tt.raw)); err == nil || err.Error() != tt.want {
				t.Errorf("ParseJSON(%.60s) = %v, %v; want the error %q", tt.raw, got, err, tt.want)
			}
		})
	}
}

func TestAppend(t *testing.T) {
	for _, tt := range []struct {
		name string
		t    time.Time
		want string
	}{
		{"milliseconds", at(2006, 1, 2, 15, 4, 5, 678e6), "2006-01-02T15:04:05.678Z"},
		{"no milliseconds", at(2006, 11, 22, 0, 0, 0, 0), "2006-11-22T00:00:00.000Z"},
		{"truncated, not rounded", at(2006, 1, 2, 15, 4, 5, 999999999), "2006-01-02T15:04:05.999Z"},
		{"truncated before 1970", at(1969, 12, 31, 23, 59, 59, 999999999), "1969-12-31T23:59:59.999Z"},
		{"another zone", time.Date(2006, 1, 1, 1, 30, 0, 0, time.FixedZone("", 2*3600)), "2005-12-31T23:30:00.000Z"},
		{"zero", time.Time{}, "0001-01-01T00:00:00.000Z"},
		{"leap day", at(2000, 2, 29, 12, 0, 0, 0), "2000-02-29T12:00:00.000Z"},
		{"last", at(9999, 12, 31, 23, 59, 59, 999e6), "9999-12-31T23:59:59.999Z"},
		{"year 0", at(0, 1, 1, 0, 0, 0, 0), "0000-01-01T00:00:00.000Z"},
		{"year 10000", at(10000, 1, 1, 0, 0, 0, 0), "+010000-01-01T00:00:00.000Z"},
		{"year -1", at(-1, 12, 31, 0, 0, 0, 0), "-000001-12-31T00:00:00.000Z"},
		{"last time of ECMAScript", at(275760, 9, 13, 0, 0, 0, 0), "+275760-09-13T00:00:00.000Z"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := string(isotime.Append([]byte("at "), tt.t)); got != "at "+tt.want {
				t.Errorf("Append(%v) = %q, want %q", tt.t, got, "at "+tt.want)
			}
		})
	}
}

func TestAppendAgreesWithFormat(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 20_000 {
		sec := random.Int64N(253402300800+62135596800) - 62135596800
		tm := time.Unix(sec, random.Int64N(1e9)).In(time.FixedZone("", random.IntN(80000)-40000))
		want := tm.UTC().Format("2006-01-02T15:04:05.000Z")
		if got := string(isotime.Append(nil, tm)); got != want {
			t.Fatalf("Append(%v) = %q, want %q", tm, got, want)
		}
	}
}

func TestHotPathsDoNotAllocate(t *testing.T) {
	now := time.Now()
	buf := make([]byte, 0, 64)
	raw := []byte(`"2006-01-02T15:04:05.678+01:00"`)
	number := []byte("1136214245678")
	for _, tt := range []struct {
		name string
		call func()
	}{
		{"Append", func() { buf = isotime.Append(buf[:0], now) }},
		{"Parse", func() { _, _ = isotime.Parse("2006-01-02T15:04:05.678+01:00") }},
		{"ParseJSON of a string", func() { _, _ = isotime.ParseJSON(raw) }},
		{"ParseJSON of a number", func() { _, _ = isotime.ParseJSON(number) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if n := testing.AllocsPerRun(100, tt.call); n != 0 {
				t.Errorf("%s allocates %v times, want 0", tt.name, n)
			}
		})
	}
}

// FuzzAppend checks that Parse returns the time that Append wrote, to the millisecond.
func FuzzAppend(f *testing.F) {
	f.Add(int64(0), int64(0), 0)
	f.Add(int64(-62135596800), int64(999999999), 3600)
	f.Add(int64(253402300799), int64(1), -3600)
	f.Fuzz(func(t *testing.T, sec, nano int64, offset int) {
		tm := time.Unix(sec, nano).In(time.FixedZone("", offset%86400))
		text := string(isotime.Append(nil, tm))
		got, err := isotime.Parse(text)
		if year := tm.UTC().Year(); year < 1 || year > 9999 {
			if err == nil {
				t.Fatalf("Parse(%q) = %v, want an error for the year %d", text, got, year)
			}
			return
		}
		if want := tm.UTC().Truncate(time.Millisecond); err != nil || !got.Equal(want) {
			t.Fatalf("Parse(%q) = %v, %v; want %v", text, got, err, want)
		}
		if again := string(isotime.Append(nil, got)); again != text {
			t.Fatalf("Append(Parse(%q)) = %q, want the same text", text, again)
		}
	})
}

// FuzzParseJSON checks that an accepted time is in range, and that Append and Parse keep it. If
// package time also accepts the text, both must return the same time.
func FuzzParseJSON(f *testing.F) {
	for _, raw := range []string{
		`"2006-01-02T15:04:05Z"`, `"2006-01-02T15:04:05.678+01:00"`, `"2015-2-2T00:00:00-0800"`, `"0001-01-01T00:00:00+00:01"`,
		`"2006-01-02T15:04:05\u002B01:00"`, "1136214245", "1136214245678", "-1", `""`, `"`, "null", `"2006-01-02T24:00:00Z"`,
	} {
		f.Add([]byte(raw))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		got, err := isotime.ParseJSON(raw)
		if err != nil {
			if len(err.Error()) > 100 || !got.IsZero() {
				t.Fatalf("ParseJSON(%q) = %v, %v, want the zero time and an error of at most 100 bytes", raw, got, err)
			}
			return
		}
		if year := got.Year(); year < 1 || year > 9999 || got.Location() != time.UTC {
			t.Fatalf("ParseJSON(%q) = %v, want the years 1 to 9999 and UTC", raw, got)
		}
		text := string(isotime.Append(nil, got))
		if again, err := isotime.Parse(text); err != nil || !again.Equal(got.Truncate(time.Millisecond)) {
			t.Fatalf("ParseJSON(%q) = %v, but Parse(%q) = %v, %v, want the same time", raw, got, text, again, err)
		}
		if std, err := time.Parse(`"`+time.RFC3339+`"`, string(raw)); err == nil && !std.Equal(got) {
			t.Fatalf("ParseJSON(%q) = %v, want %v, as package time returns", raw, got, std)
		}
	})
}

func BenchmarkAppend(b *testing.B) {
	now := time.Now()
	buf := make([]byte, 0, 64)
	b.ReportAllocs()
	for b.Loop() {
		buf = isotime.Append(buf[:0], now)
	}
}

func BenchmarkFormat(b *testing.B) {
	now := time.Now()
	buf := make([]byte, 0, 64)
	b.ReportAllocs()
	for b.Loop() {
		buf = now.UTC().AppendFormat(buf[:0], "2006-01-02T15:04:05.000Z")
	}
}

func BenchmarkParse(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		if _, err := isotime.Parse("2006-01-02T15:04:05.678Z"); err != nil {
			b.Fatal(err)
		}
	}
}
