package esjson

import (
	"math"
	"strconv"
)

// maxDigits is how many significant decimal digits a double always keeps. Two different
// numbers of up to 15 digits are different doubles. So a number of up to 15 digits, without
// trailing zeros, is the shortest form of its double.
const maxDigits = 15

// skipNumber returns the end of the number that starts at src[i], which is a minus or a
// digit. If the result canonical is true, ECMAScript would print the number unchanged.
// Otherwise ECMAScript may print the number in another form, and the caller has to convert
// the number to a double to find out.
func skipNumber(src []byte, i int) (end int, canonical bool, err *SyntaxError) {
	start := i
	if src[i] == '-' {
		i++
	}
	whole := i
	for i < len(src) && isDigit(src[i]) {
		i++
	}
	digits := i - whole
	switch {
	case digits == 0:
		return i, false, unexpected(src, i)
	case src[whole] == '0' && digits > 1:
		return i, false, &SyntaxError{whole, "number with a leading zero"}
	}
	zero := src[whole] == '0'
	canonical = digits <= maxDigits && !(zero && whole > start)
	if i < len(src) && src[i] == '.' {
		i++
		point := i
		for i < len(src) && src[i] == '0' {
			i++
		}
		zeros := i - point
		for i < len(src) && isDigit(src[i]) {
			i++
		}
		if i == point {
			return i, false, unexpected(src, i)
		}
		// Below 1e-6 the canonical form has an exponent, so at most five zeros may follow
		// the point. The last digit must not be 0. A number with such a last digit is not
		// zero, so it may have a minus.
		digits += i - point
		if zero {
			digits -= 1 + zeros
		}
		canonical = digits <= maxDigits && src[i-1] != '0' && (!zero || zeros < 6)
	}
	if i < len(src) && src[i]|0x20 == 'e' {
		canonical = false
		i++
		if i < len(src) && (src[i] == '+' || src[i] == '-') {
			i++
		}
		exponent := i
		for i < len(src) && isDigit(src[i]) {
			i++
		}
		if i == exponent {
			return i, false, unexpected(src, i)
		}
	}
	return i, canonical, nil
}

func isDigit(c byte) bool { return c-'0' <= 9 }

// appendNumber appends a valid number as the double nearest to it.
func appendNumber(dst, number []byte) []byte {
	// The number is valid, so the only possible error is the range. Then f is infinite.
	f, _ := strconv.ParseFloat(string(number), 64)
	return AppendFloat(dst, f)
}

// AppendFloat appends f as Number::toString of ECMAScript prints it (ECMA-262, section
// 6.1.6.1.20). For an infinity or NaN it appends null, as JSON.stringify does.
func AppendFloat(dst []byte, f float64) []byte {
	abs := math.Abs(f)
	if n := int64(f); abs < 1<<53 && float64(n) == f {
		return strconv.AppendInt(dst, n, 10) // prints -0 as 0
	}
	if 1e-6 <= abs && abs < 1e9 {
		// A fast path for prices and similar numbers, which have few decimals. n is the
		// number of millionths. If the division n/1e6 gives abs, then abs is the double
		// nearest to the decimal number n/1e6. As n has at most maxDigits digits, no
		// shorter decimal number has the same nearest double.
		if n := uint64(abs*1e6 + 0.5); float64(n)/1e6 == abs {
			return appendMillionths(dst, n, f < 0)
		}
	}
	return appendFloat(dst, f, 64)
}

// appendMillionths appends n/1e6, which must not be an integer.
func appendMillionths(dst []byte, n uint64, negative bool) []byte {
	if negative {
		dst = append(dst, '-')
	}
	dst = strconv.AppendUint(dst, n/1e6, 10)
	fraction := n % 1e6
	decimals := 6
	if fraction%1e4 == 0 {
		fraction, decimals = fraction/1e4, 2
	}
	for fraction%10 == 0 {
		fraction, decimals = fraction/10, decimals-1
	}
	var text [7]byte
	text[0] = '.'
	for i := decimals; i > 0; i-- {
		text[i] = '0' + byte(fraction%10)
		fraction /= 10
	}
	return append(dst, text[:decimals+1]...)
}

// appendFloat appends f, a float of the given number of bits, with the fewest digits that
// distinguish it from all other floats of that size.
func appendFloat(dst []byte, f float64, bits int) []byte {
	abs := math.Abs(f)
	switch {
	case abs == 0:
		return append(dst, '0')
	case !(abs <= math.MaxFloat64):
		return append(dst, "null"...)
	case bits == 64 && 1e-6 <= abs && abs < 1e21,
		bits == 32 && 1e-6 <= float32(abs) && float32(abs) < 1e21: // 1e-6 is no float32: the nearest float32 is smaller
		return strconv.AppendFloat(dst, f, 'f', -1, bits)
	}
	dst = strconv.AppendFloat(dst, f, 'e', -1, bits)
	// strconv writes at least two digits of an exponent.
	if n := len(dst); dst[n-2] == '0' && (dst[n-3] == '-' || dst[n-3] == '+') {
		dst[n-2] = dst[n-1]
		dst = dst[:n-1]
	}
	return dst
}

func appendInt(dst []byte, n int64) []byte {
	if -maxExact <= n && n <= maxExact {
		return strconv.AppendInt(dst, n, 10)
	}
	return appendFloat(dst, float64(n), 64)
}

func appendUint(dst []byte, n uint64) []byte {
	if n <= maxExact {
		return strconv.AppendUint(dst, n, 10)
	}
	return appendFloat(dst, float64(n), 64)
}
