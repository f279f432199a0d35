package check_test

import (
	"slices"
	"testing"
	"time"

	"github.com/hookferry/analytics/check"
)

func TestNumbersGetDefaultsOrFaults(t *testing.T) {
	for _, tt := range []struct {
		given, least, most, byDefault, want time.Duration
		problem                             string
	}{
		{0, time.Second, time.Hour, time.Minute, time.Minute, ""},
		{time.Second, time.Second, time.Hour, time.Minute, time.Second, ""},
		{time.Hour, time.Second, time.Hour, time.Minute, time.Hour, ""},
		{1, time.Second, time.Hour, time.Minute, time.Minute, "is 1ns; 1s to 1h0m0s is allowed"},
		{time.Hour + 1, time.Second, time.Hour, time.Minute, time.Minute, "is 1h0m0.000000001s; 1s to 1h0m0s is allowed"},
		{time.Hour, time.Second, 0, time.Minute, time.Hour, ""},
		{-1, -1, 0, time.Minute, -1, ""},
		{-2, -1, 0, time.Minute, time.Minute, "is -2ns; -1ns or more is allowed"},
		{1, time.Second, 0, time.Minute, time.Minute, "is 1ns; 1s or more is allowed"},
	} {
		var wrong check.Faults
		value := tt.given
		if tt.most == 0 {
			check.Least(&wrong, "F", &value, tt.least, tt.byDefault)
		} else {
			check.Range(&wrong, "F", &value, tt.least, tt.most, tt.byDefault)
		}
		var want check.Faults
		want.Add("F", tt.problem)
		if value != tt.want || !slices.Equal(wrong, want) {
			t.Errorf("%v from %v to %v: %v with %v, want %v with %v", tt.given, tt.least, tt.most, value, wrong, tt.want, want)
		}
	}
}

func TestErrHasAllFaultsInTheOrderOfTheFields(t *testing.T) {
	type config struct{ A, B, C int }
	var wrong, inner check.Faults
	if err := wrong.Err("p"); err != nil {
		t.Errorf("Err() without faults = %v, want nil", err)
	}
	inner.Refuse(true, "X", "is %d", 1)
	inner.Refuse(false, "Y", "is fine")
	wrong.Add("C.D", "is wrong")
	wrong.Add("A", "")
	wrong = append(wrong, inner.Under("B[1]")...)
	wrong.Sort(config{})
	if got, want := wrong.Err("p").Error(), "p: B[1].X: is 1\np: C.D: is wrong"; got != want {
		t.Errorf("Err() = %q, want %q", got, want)
	}
}
