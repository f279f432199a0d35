package esjson

import (
	"bytes"
	"math"
	"strconv"
	"testing"
)

func TestAppendFloat(t *testing.T) {
	for _, tt := range []struct {
		name string
		f    float64
		want string
	}{
		{"zero", 0, "0"},
		{"minus zero", math.Copysign(0, -1), "0"},
		{"integer", -42, "-42"},
		{"last exact integer", 1<<53 - 1, "9007199254740991"},
		{"integer past 2^53", 1 << 60, "1152921504606847000"},
		{"just below 1e21", 999999999999999900000, "999999999999999900000"},
		{"1e21", 1e21, "1e+21"},
		{"fraction", 39.95, "39.95"},
		{"1e-6", 1e-6, "0.000001"},
		{"just below 1e-6", math.Nextafter(1e-6, 0), "9.999999999999997e-7"},
		{"1e-7", -1e-7, "-1e-7"},
		{"1e-10", 1e-10, "1e-10"},
		{"largest", math.MaxFloat64, "1.7976931348623157e+308"},
		{"smallest", math.SmallestNonzeroFloat64, "5e-324"},
		{"not a number", math.NaN(), "null"},
		{"infinite", math.Inf(1), "null"},
		{"infinite below", math.Inf(-1), "null"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := string(AppendFloat(nil, tt.f)); got != tt.want {
				t.Errorf("AppendFloat(%v) = %s, want %s", tt.f, got, tt.want)
			}
		})
	}
}

// checkCanonicalNumbers checks that every number which skipNumber calls canonical is in
// canonical form.
func checkCanonicalNumbers(t *testing.T, g *generator) {
	canonical := 0
	for range 10_000 {
		n := g.number(nil)
		end, ok, err := skipNumber(n, 0)
		if err != nil || end != len(n) {
			t.Fatalf("skipNumber(%s) = %d, %v, want %d", n, end, err, len(n))
		}
		want := appendNumber(nil, n)
		if ok && !bytes.Equal(n, want) {
			t.Errorf("skipNumber reports %s as canonical, but the canonical form is %s", n, want)
		}
		if ok {
			canonical++
		}
	}
	if canonical < 1000 {
		t.Errorf("skipNumber reported %d generated numbers as canonical, want at least 1000", canonical)
	}
}

// skipNumber must recognize typical numbers as canonical, because they then take the fast path.
func TestSkipNumberReportsTypicalNumbersAsCanonical(t *testing.T) {
	for _, n := range []string{"0", "7", "-7", "1234567890", "999999999999999", "0.5", "-0.5", "39.95", "0.000001", "123456789.012345", "1716986889010"} {
		if _, ok, _ := skipNumber([]byte(n), 0); !ok {
			t.Errorf("skipNumber reports %s as not canonical, want canonical", n)
		}
	}
}

// checkIntegers checks that appendInt and appendUint write integers like appendNumber, which rounds
// them to the nearest double.
func checkIntegers(t *testing.T, g *generator) {
	for range 3000 {
		i := g.Int64() >> g.IntN(63) * int64(1-2*g.IntN(2))
		want := string(appendNumber(nil, strconv.AppendInt(nil, i, 10)))
		if got := string(appendInt(nil, i)); got != want {
			t.Errorf("appendInt(%d) = %s, want %s", i, got, want)
		}
		u := g.Uint64() >> g.IntN(64)
		want = string(appendNumber(nil, strconv.AppendUint(nil, u, 10)))
		if got := string(appendUint(nil, u)); got != want {
			t.Errorf("appendUint(%d) = %s, want %s", u, got, want)
		}
	}
}

func TestAppendFloat32(t *testing.T) {
	below := math.Nextafter32(1e-6, 0)
	for _, tt := range []struct {
		name string
		f    float32
		want string
	}{
		{"fraction", 0.1, "0.1"},
		{"1e-6", 1e-6, "0.000001"},
		{"minus 1e-6", -1e-6, "-0.000001"},
		{"just below 1e-6", below, "9.999999e-7"},
		{"just below 1e21", math.Nextafter32(1e21, 0), "999999950000000000000"},
		{"1e21", 1e21, "1e+21"},
		{"largest", math.MaxFloat32, "3.4028235e+38"},
		{"smallest", math.SmallestNonzeroFloat32, "1e-45"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := AppendValue(nil, tt.f)
			if err != nil || string(got) != tt.want {
				t.Errorf("AppendValue(float32(%v)) = %s, %v, want %s", tt.f, got, err, tt.want)
			}
			if again, err := Append(nil, got); err != nil || string(again) != string(got) {
				t.Errorf("Append(%s) = %s, %v, want it unchanged", got, again, err)
			}
		})
	}
}

// checkFewDecimals tests the fast path of AppendFloat, which is for numbers with few decimals. It
// also tests the neighbours of these numbers, which have many decimals.
func checkFewDecimals(t *testing.T, g *generator) {
	quick := 0
	for range 5000 {
		scale := math.Pow10(g.IntN(9))
		f := float64(g.Int64()>>(13+g.IntN(50))) / scale
		for _, f := range []float64{f, -f, math.Nextafter(f, 0), math.Nextafter(f, 2*f)} {
			if f == math.Trunc(f) {
				continue
			}
			want := string(appendFloat(nil, f, 64))
			if got := string(AppendFloat(nil, f)); got != want {
				t.Fatalf("AppendFloat(%g) = %s, want %s", f, got, want)
			}
			if abs := math.Abs(f); 1e-6 <= abs && abs < 1e9 && len(want) < 10 {
				quick++
			}
		}
	}
	if quick < 500 {
		t.Errorf("%d numbers had few decimals, want at least 500", quick)
	}
}
