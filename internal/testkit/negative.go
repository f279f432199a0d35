package testkit

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// Negative checks a rule that holds for all configurations: a negative number in a field is
// refused with an error that names the field. A field listed in unlimited may be -1, which
// means no bound. The argument base is a valid configuration. The argument use is the
// function under test, which must check the configuration that it gets.
func Negative[C any](t *testing.T, base C, use func(C) error, unlimited ...string) {
	t.Helper()
	if err := use(base); err != nil {
		t.Fatalf("the valid configuration is refused: %v", err)
	}
	checked := 0
	for i := range reflect.TypeFor[C]().NumField() {
		field := reflect.TypeFor[C]().Field(i)
		if !field.IsExported() || field.Type.Kind() != reflect.Int && field.Type.Kind() != reflect.Int64 {
			continue
		}
		checked++
		for _, n := range []int64{-1, -2} {
			c := base
			reflect.ValueOf(&c).Elem().Field(i).SetInt(n)
			err := use(c)
			if n == -1 && slices.Contains(unlimited, field.Name) {
				if err != nil {
					t.Errorf("%s of -1: %v, want none", field.Name, err)
				}
			} else if err == nil || !strings.Contains(err.Error(), field.Name) {
				t.Errorf("%s of %d: error %q, want one that names the field", field.Name, n, fmt.Sprint(err))
			}
		}
	}
	if checked == 0 {
		t.Errorf("%T has no field with a number", base)
	}
}
