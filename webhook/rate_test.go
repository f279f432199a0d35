package webhook

import (
	"math"
	"testing"
	"time"

	"github.com/hookferry/analytics/check"
)

func TestCheckRate(t *testing.T) {
	for _, tt := range []struct {
		name     string
		rate     float64
		burst    int
		interval time.Duration
		want     int
		field    string // the field that the error names; "" for no error
	}{
		{"no rate", 0, 0, 0, 0, ""},
		{"ten a second", 10, 0, 100 * time.Millisecond, 1, ""},
		{"a thousand a second", 1000, 0, time.Millisecond, 100, ""},
		{"three a second, with a burst", 3, 7, 333333334, 7, ""},
		{"one a day", 1 / 86400., 0, 24 * time.Hour, 1, ""},
		{"one in two days", 1 / 172800., 0, 0, 0, "MaxRate"},
		{"negative", -1, 0, 0, 0, "MaxRate"},
		{"not a number", math.NaN(), 0, 0, 0, "MaxRate"},
		{"infinite", math.Inf(1), 0, 0, 0, "MaxRate"},
		{"above the limit", 1e6 + 1, 0, 0, 0, "MaxRate"},
		{"negative burst", 1, -1, 0, 0, "MaxBurst"},
		{"burst without a rate", 0, 1, 0, 0, "MaxBurst"},
		{"burst above a day of the rate", 1, 86401, 0, 0, "MaxBurst"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var wrong check.Faults
			interval, burst := checkRate(tt.rate, tt.burst, &wrong)
			if tt.field != "" {
				if len(wrong) != 1 || wrong[0].Field != tt.field {
					t.Errorf("checkRate(%v, %d) finds %v, want a fault of the field %s", tt.rate, tt.burst, wrong, tt.field)
				}
			} else if interval != tt.interval || burst != tt.want || wrong != nil {
				t.Errorf("checkRate(%v, %d) = %v, %d, with %v; want %v, %d", tt.rate, tt.burst, interval, burst, wrong, tt.interval, tt.want)
			}
		})
	}
}
