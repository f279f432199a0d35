// Package isotime reads and writes the timestamps of the tracking API.
//
// Append writes a timestamp as ECMAScript's Date.prototype.toISOString does: UTC,
// milliseconds, Z. Parse reads RFC 3339 and a few other forms that clients of the API send.
// ParseJSON also reads numbers of seconds or milliseconds since 1970.
package isotime

import (
	"bytes"
	"encoding/json"
	"errors"
	"time"
)

// The errors of Parse and ParseJSON. Their texts do not contain the value.
var (
	errForm     = errors.New("not an RFC 3339 time, such as 2006-01-02T15:04:05Z")
	errFraction = errors.New("a fraction of a second has 1 to 9 digits")
	errMonth    = errors.New("month out of range")
	errDay      = errors.New("day out of range")
	errClock    = errors.New("time of day out of range")
	errOffset   = errors.New("time zone offset out of range")
	errYear     = errors.New("year out of range: want 0001 to 9999 in UTC")
	errKind     = errors.New("not a JSON string or number")
	errNumber   = errors.New("a number has to be seconds or milliseconds since 1970, without an exponent")
)

// The first second of the year 1, and the first second after the year 9999, in seconds
// since 1970.
const (
	minUnix = -62135596800
	maxUnix = 253402300800
)

// Append appends t in UTC in the form 2006-01-02T15:04:05.000Z, truncated to the
// millisecond. It allocates only to grow dst. For a year outside 0 to 9999 it uses the
// expanded form of ECMAScript, a sign and six digits, which Parse refuses.
func Append(dst []byte, t time.Time) []byte {
	t = t.UTC()
	year, month, day := t.Date()
	hour, minute, second := t.Clock()
	milli := uint(t.Nanosecond()) / uint(time.Millisecond)
	if uint(year) > 9999 {
		sign := byte('+')
		if year < 0 {
			sign, year = '-', -year
		}
		dst = append(dst, sign, tens(uint(year)/10000%100), ones(uint(year)/10000%100))
		year %= 10000
	}
	century, year2 := uint(year)/100, uint(year)%100
	return append(dst,
		tens(century), ones(century), tens(year2), ones(year2), '-',
		tens(uint(month)), ones(uint(month)), '-',
		tens(uint(day)), ones(uint(day)), 'T',
		tens(uint(hour)), ones(uint(hour)), ':',
		tens(uint(minute)), ones(uint(minute)), ':',
		tens(uint(second)), ones(uint(second)), '.',
		'0'+byte(milli/100), tens(milli%100), ones(milli%100), 'Z')
}

// tens and ones return the two digits of a number below 100.
func tens(n uint) byte { return '0' + uint8(n)/10 }
func ones(n uint) byte { return '0' + uint8(n)%10 }

// Parse reads an RFC 3339 time of the years 0001 to 9999. T and Z must be in upper case.
// The fraction may have 0 to 9 digits. The zone is Z, or an offset of the form +hh:mm or
// +hhmm, with a plus or a minus. A time without a zone, and a date alone, are in UTC. Month
// and day may have one digit, as in 2015-2-02, because the public examples of the API have
// such dates. The result is in UTC. The text of an error names the problem, but does not
// contain s.
//
// Parse refuses a leap second.
func Parse(s string) (time.Time, error) {
	p := parser{rest: s}
	var f [6]int // year, month, day, hour, minute, second
	for i, part := range [...]struct {
		least, most int // digits
		end         byte
	}{{4, 4, '-'}, {1, 2, '-'}, {1, 2, 'T'}, {2, 2, ':'}, {2, 2, ':'}, {2, 2, 0}} {
		n, ok := p.number(part.least, part.most)
		f[i] = n
		if ok && i == 2 && p.rest == "" { // a date alone
			break
		}
		if !ok || part.end != 0 && !p.byte(part.end) {
			return time.Time{}, errForm
		}
	}
	nano := 0
	if p.byte('.') {
		var ok bool
		if nano, ok = p.fraction(); !ok {
			return time.Time{}, errFraction
		}
	}
	offset, err := p.zone()
	t := time.Date(f[0], time.Month(f[1]), f[2], f[3], f[4], f[5], nano, time.UTC)
	switch {
	case err != nil:
		return time.Time{}, err
	case p.rest != "":
		return time.Time{}, errForm
	case f[0] < 1:
		return time.Time{}, errYear
	case f[1] < 1 || f[1] > 12:
		return time.Time{}, errMonth
	case f[3] > 23 || f[4] > 59 || f[5] > 59:
		return time.Time{}, errClock
	case t.Day() != f[2]: // time.Date has moved t into another month
		return time.Time{}, errDay
	}
	return inRange(t.Add(-offset))
}

// inRange refuses a time whose year in UTC is outside 1 to 9999.
func inRange(t time.Time) (time.Time, error) {
	if sec := t.Unix(); sec < minUnix || sec >= maxUnix {
		return time.Time{}, errYear
	}
	return t, nil
}

// A parser reads a timestamp from the front. rest is the remaining text.
type parser struct{ rest string }

func (p *parser) byte(c byte) bool {
	if p.rest == "" || p.rest[0] != c {
		return false
	}
	p.rest = p.rest[1:]
	return true
}

// number reads a decimal number. The arguments least and most bound how many digits it has.
func (p *parser) number(least, most int) (n int, ok bool) {
	i := 0
	for ; i < most && i < len(p.rest) && isDigit(p.rest[i]); i++ {
		n = n*10 + int(p.rest[i]-'0')
	}
	p.rest = p.rest[i:]
	return n, i >= least
}

// fraction reads 1 to 9 digits and returns them as nanoseconds.
func (p *parser) fraction() (nano int, ok bool) {
	i := 0
	for ; i < 9 && i < len(p.rest) && isDigit(p.rest[i]); i++ {
		nano = nano*10 + int(p.rest[i]-'0')
	}
	if i == 0 || i < len(p.rest) && isDigit(p.rest[i]) {
		return 0, false
	}
	p.rest = p.rest[i:]
	for ; i < 9; i++ {
		nano *= 10
	}
	return nano, true
}

func (p *parser) zone() (time.Duration, error) {
	if p.rest == "" || p.byte('Z') {
		return 0, nil
	}
	sign := time.Duration(1)
	if p.byte('-') {
		sign = -1
	} else if !p.byte('+') {
		return 0, errForm
	}
	hour, ok := p.number(2, 2)
	if !ok {
		return 0, errForm
	}
	p.byte(':')
	minute, ok := p.number(2, 2)
	if !ok {
		return 0, errForm
	}
	if hour > 23 || minute > 59 {
		return 0, errOffset
	}
	return sign * (time.Duration(hour)*time.Hour + time.Duration(minute)*time.Minute), nil
}

func isDigit(c byte) bool { return c-'0' <= 9 }

const (
	// maxText bounds a timestamp in a JSON string, in bytes. No valid timestamp exceeds
	// maxText, not even with every character escaped.
	maxText = 256
	// Numbers of at least maxSeconds, on either side of zero, are milliseconds. As
	// seconds, maxSeconds lies in the year 5138. As milliseconds, it lies in March 1973.
	maxSeconds = 100_000_000_000
)

// ParseJSON reads a timestamp from one JSON value, without white space around it. The value
// is a string in a form that Parse reads, or a number that counts the time since 1970, with
// or without a fraction. A number counts seconds if its absolute value is less than
// 100,000,000,000, and milliseconds otherwise. The year must be 0001 to 9999 in UTC, as for
// Parse. ParseJSON refuses a number with an exponent, and a string that holds a number.
func ParseJSON(raw []byte) (time.Time, error) {
	if len(raw) == 0 {
		return time.Time{}, errKind
	}
	if raw[0] == '"' {
		return parseString(raw)
	}
	negative := raw[0] == '-'
	digits := raw
	if negative {
		digits = raw[1:]
	}
	if len(digits) == 0 || !isDigit(digits[0]) {
		return time.Time{}, errKind
	}
	whole, fraction, hasFraction := bytes.Cut(digits, []byte("."))
	if whole[0] == '0' && len(whole) > 1 || hasFraction && len(fraction) == 0 {
		return time.Time{}, errNumber
	}
	var n, nano int64
	for i, c := range whole {
		if !isDigit(c) {
			return time.Time{}, errNumber
		}
		if i == 15 { // no year up to 9999 needs more digits
			return time.Time{}, errYear
		}
		n = n*10 + int64(c-'0')
	}
	unit := int64(time.Second)
	if n >= maxSeconds {
		unit = int64(time.Millisecond)
		n, nano = n/1000, n%1000*unit
	}
	for _, c := range fraction {
		if !isDigit(c) {
			return time.Time{}, errNumber
		}
		unit /= 10
		nano += int64(c-'0') * unit
	}
	if negative {
		n, nano = -n, -nano
	}
	return inRange(time.Unix(n, nano).UTC())
}

func parseString(raw []byte) (time.Time, error) {
	if len(raw) > maxText {
		return time.Time{}, errForm
	}
	if n := len(raw) - 2; n >= 0 && raw[n+1] == '"' && plain(raw[1:n+1]) {
		return Parse(string(raw[1 : n+1]))
	}
	// Some encoders write the plus of an offset as \u002B.
	var s string
	if json.Unmarshal(raw, &s) != nil {
		return time.Time{}, errKind
	}
	return Parse(s)
}

// plain reports whether b, a JSON string without its quotes, needs no decoding: it has
// no escape sequence, quote or control character.
func plain(b []byte) bool {
	for _, c := range b {
		if c == '"' || c == '\\' || c < ' ' {
			return false
		}
	}
	return true
}
