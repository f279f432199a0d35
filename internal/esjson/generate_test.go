package esjson

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"
)

// A generator makes JSON texts and Go values that are hard to encode.
type generator struct {
	*rand.Rand
	// plain restricts Go values to those that encoding/json writes in the same way. They have
	// only valid UTF-8, and no times.
	plain bool
}

func (g *generator) pick(from ...string) string { return from[g.IntN(len(from))] }

func (g *generator) space(b []byte) []byte {
	for g.IntN(8) == 0 {
		b = append(b, g.pick(" ", "\n", "\t", "\r", "    ")...)
	}
	return b
}

// text appends a JSON text. Its strings may hold invalid UTF-8.
func (g *generator) text(b []byte, depth int) []byte {
	b = g.space(b)
	kind := g.IntN(9)
	if depth == 0 {
		kind = g.IntN(5)
	}
	switch kind {
	case 0:
		b = append(b, g.pick("null", "true", "false")...)
	case 1, 2:
		b = g.number(b)
	case 3, 4:
		b = g.literal(b)
	case 5, 6:
		b = append(b, '[')
		for i := range g.IntN(5) {
			if i > 0 {
				b = append(b, ',')
			}
			b = g.text(b, depth-1)
		}
		b = append(g.space(b), ']')
	default:
		n := g.IntN(7)
		if g.IntN(10) == 0 {
			n = 10 + g.IntN(30)
		}
		b = append(b, '{')
		for i := range n {
			if i > 0 {
				b = append(b, ',')
			}
			b = append(g.space(g.key(g.space(b))), ':')
			b = g.text(b, depth-1)
		}
		b = append(g.space(b), '}')
	}
	return g.space(b)
}

// key appends a string literal from a small set, so that duplicates occur.
func (g *generator) key(b []byte) []byte {
	switch g.IntN(5) {
	case 0:
		return append(b, g.pick(`"4294967294"`, `"4294967295"`, `"4294967296"`, `"00"`, `"-1"`, `"\u0031"`, `"1\u0030"`, `"__proto__"`, `"1.0"`)...)
	case 1:
		return strconv.AppendQuote(b, strconv.Itoa(g.IntN(30)))
	case 2:
		return append(b, g.pick(`"a"`, `"\u0061"`, `"é"`, `"\u00e9"`, `"\ud800"`, `"\uD800"`, `"\ud83d\ude00"`, `"😀"`, `"�"`, "\"\xff\"", "\"\xe2\x82\"", `""`, `"\n"`, `"\u000a"`, `"\/"`, `"/"`)...)
	case 3:
		return append(b, g.pick(`"property_one"`, `"property_two"`, `"property_one_more"`, `"property_two_more"`)...)
	}
	return g.literal(b)
}

// literal appends a random string literal.
func (g *generator) literal(b []byte) []byte {
	b = append(b, '"')
	for g.IntN(6) != 0 {
		switch g.IntN(8) {
		case 0:
			b = append(b, g.pick(`\n`, `\t`, `\b`, `\f`, `\r`, `\"`, `\\`, `\/`)...)
		case 1:
			b = fmt.Appendf(b, g.pick(`\u%04x`, `\u%04X`), g.IntN(0x10000))
		case 2:
			b = fmt.Appendf(b, g.pick(`\u%04x`, `\u%04X`), 0xd800+g.IntN(0x800))
		case 3:
			b = fmt.Appendf(b, `\u%04x`, g.IntN(0x90))
		case 4:
			b = append(b, string(rune(0x80+g.IntN(0x10ff7f)))...)
		case 5:
			if g.IntN(3) == 0 {
				for range 1 + g.IntN(4) {
					b = append(b, byte(0x80+g.IntN(0x80)))
				}
			}
		default:
			b = append(b, g.pick("a", "plain text", "longer plain text, more than eight bytes", "<&>", "\u2028", "\x7f", "'", "0")...)
		}
	}
	return append(b, '"')
}

// float32 returns a finite float32. Values at which the printed form changes are more
// frequent.
func (g *generator) float32() float32 {
	for {
		var f float32
		switch g.IntN(3) {
		case 0:
			f = math.Float32frombits(g.Uint32())
		case 1:
			f = float32(g.IntN(100000)) / float32(math.Pow10(g.IntN(12)))
		case 2:
			f = float32(math.Pow10(g.IntN(40) - 15))
			for range g.IntN(3) {
				f = math.Nextafter32(f, float32(math.Inf(g.IntN(2)*2-1)))
			}
		}
		if g.IntN(2) == 0 {
			f = -f
		}
		if abs := math.Abs(float64(f)); abs <= math.MaxFloat32 {
			return f
		}
	}
}

// float returns a finite float64. Values at which the printed form changes are more
// frequent.
func (g *generator) float() float64 {
	for {
		var f float64
		switch g.IntN(5) {
		case 0:
			f = math.Float64frombits(g.Uint64())
		case 1:
			f = math.Ldexp(float64(g.Int64N(1<<53)), -g.IntN(80))
		case 2:
			f = float64(g.IntN(100000)) / math.Pow10(g.IntN(12))
		case 3:
			f = float64(g.Uint64()) * math.Pow10(g.IntN(5))
		case 4:
			f = math.Pow10(g.IntN(40) - 15)
			for range g.IntN(3) {
				f = math.Nextafter(f, math.Inf(g.IntN(2)*2-1))
			}
		}
		if g.IntN(2) == 0 {
			f = -f
		}
		if !math.IsInf(f, 0) && !math.IsNaN(f) {
			return f
		}
	}
}

// number appends a JSON number in a random notation.
func (g *generator) number(b []byte) []byte {
	switch g.IntN(7) {
	case 0:
		return strconv.AppendInt(b, int64(g.IntN(200)-100), 10)
	case 1:
		return strconv.AppendInt(b, g.Int64()>>g.IntN(60), 10)
	case 2:
		return strconv.AppendFloat(b, g.float(), "efg"[g.IntN(3)], g.IntN(22), 64)
	case 3:
		return strconv.AppendFloat(b, g.float(), "efg"[g.IntN(3)], -1, 64)
	case 4: // around maxDigits, the number of digits that are always exact
		b = strconv.AppendInt(b, g.Int64N(int64(math.Pow10(g.IntN(17)))), 10)
		b = append(b, '.')
		for range g.IntN(10) {
			b = append(b, '0')
		}
		return strconv.AppendInt(b, g.Int64N(int64(math.Pow10(g.IntN(17)))), 10)
	case 5:
		b = strconv.AppendInt(b, g.Int64()>>g.IntN(60), 10)
		b = append(b, g.pick("e", "E", "e+", "e-", "E-", "e0")...)
		return strconv.AppendInt(b, int64(g.IntN(330)), 10)
	}
	return append(b, g.pick("0", "-0", "0.0", "1e400", "-1e400", "1e-400", "9007199254740993", "1e21", "1e-7")...)
}

// mutated returns a copy of text with one or two changes, which usually make it invalid.
func (g *generator) mutated(text []byte) []byte {
	b := append([]byte(nil), text...)
	for range 1 + g.IntN(2) {
		i := g.IntN(len(b) + 1)
		switch g.IntN(3) {
		case 0:
			b = append(b[:i], append([]byte(g.pick(`"`, `\`, ",", ":", "{", "}", "[", "]", "0", "-", ".", "e", "\x00", "\xff", "\n", " ")), b[i:]...)...)
		case 1:
			b = b[:i]
		case 2:
			if i < len(b) {
				b = append(b[:i], b[i+1:]...)
			}
		}
	}
	return b
}

// goString returns a random string. The string is valid UTF-8 if g.plain is set.
func (g *generator) goString() string {
	var b []byte
	for g.IntN(5) != 0 {
		switch g.IntN(4) {
		case 0:
			b = append(b, byte(g.IntN(256)))
		case 1:
			b = append(b, string(rune(g.IntN(0x110000)))...)
		default:
			b = append(b, g.pick("a", "1", "12", "plain", "more than eight bytes", "\n", "\"", "<", "\u2028", "\xe2\x82")...)
		}
	}
	if g.plain {
		return strings.ToValidUTF8(string(b), "?")
	}
	return string(b)
}

func (g *generator) goKey() string {
	switch g.IntN(3) {
	case 0:
		return strconv.FormatInt(g.Int64N(1<<(1+g.IntN(34))), 10)
	case 1:
		if !g.plain {
			return g.pick("\xff", "\xfe", "\xe2\x82", "�")
		}
		return g.pick("�", "a", "b", "", "__proto__", "01")
	}
	return g.goString()
}

type (
	namedMap    map[string]any
	namedString string
	namedInt    int
	namedFloat  float32
	aStruct     struct {
		A string         `json:"a"`
		B map[string]any `json:"1,omitempty"`
		C float64
		D *int `json:"0"`
	}
)

// value returns a random Go value that has a JSON form.
func (g *generator) value(depth int) any {
	n := 22
	if depth == 0 {
		n = 14
	}
	switch g.IntN(n) {
	case 0:
		return nil
	case 1:
		return g.IntN(2) == 0
	case 2:
		return g.goString()
	case 3:
		return int(g.Int64() >> g.IntN(64))
	case 4:
		return g.Uint64() >> g.IntN(64)
	case 5:
		return g.float()
	case 6:
		return g.float32()
	case 7:
		return json.Number(g.number(nil))
	case 8:
		return json.RawMessage(g.text(nil, 2))
	case 9:
		if g.plain {
			return time.Duration(g.Int64())
		}
		return time.UnixMilli(g.Int64N(4e12) - 1e12)
	case 10:
		return []byte(g.goString())
	case 11:
		return namedString(g.goString())
	case 12:
		return namedInt(g.Int())
	case 13:
		return namedFloat(g.Float32())
	case 14, 15:
		m := map[string]any{}
		for range g.IntN(8) {
			m[g.goKey()] = g.value(depth - 1)
		}
		return m
	case 16:
		s := []any{}
		for range g.IntN(5) {
			s = append(s, g.value(depth-1))
		}
		return s
	case 17:
		return map[string]string{g.goKey(): g.goString(), g.goKey(): g.goString()}
	case 18:
		return namedMap{g.goKey(): g.value(depth - 1), g.goKey(): g.value(depth - 1)}
	case 19:
		return map[int]any{g.IntN(100): g.value(depth - 1), -g.IntN(100): 1, g.Int(): 2}
	case 20:
		s := []any{g.value(depth - 1)}
		return &s
	}
	n = g.IntN(100)
	return []aStruct{{A: g.goString(), B: map[string]any{g.goKey(): g.goString(), g.goKey(): 1.5}, C: g.float(), D: &n}}
}
