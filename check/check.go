// Package check collects what is wrong with a configuration, so that one error reports all of it. All
// packages of this module with a Config use it, and stores of other modules may.
//
// A configuration is checked in the order of its fields:
//
//	var wrong check.Faults
//	wrong.Refuse(c.Store == nil, "Store", "is required")
//	check.Range(&wrong, "Claim", &c.Claim, time.Second, time.Hour, DefaultClaim)
//	return wrong.Err("pgqueue")
package check

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// A Fault is a field that cannot be used.
type Fault struct {
	Field   string // its path, such as "Endpoints[1].URL"
	Problem string // what is wrong, and what is allowed; has no secret
}

// Faults are the faults found so far, in the order of the fields.
type Faults []Fault

// Refuse adds a fault if wrong is true.
func (f *Faults) Refuse(wrong bool, field, format string, args ...any) {
	if wrong {
		*f = append(*f, Fault{field, fmt.Sprintf(format, args...)})
	}
}

// Add adds a fault unless problem is empty.
func (f *Faults) Add(field, problem string) { f.Refuse(problem != "", field, "%s", problem) }

// Under returns the faults with "field." before their Field.
func (f Faults) Under(field string) Faults {
	under := make(Faults, len(f))
	for i, fault := range f {
		under[i] = Fault{field + "." + fault.Field, fault.Problem}
	}
	return under
}

// Sort puts the faults into the order of the fields of a struct. The first part of each fault's
// Field is the name of a field of the struct.
func (f Faults) Sort(of any) {
	place := func(f Fault) int {
		name, _, _ := strings.Cut(f.Field, ".")
		name, _, _ = strings.Cut(name, "[")
		field, _ := reflect.TypeOf(of).FieldByName(name)
		return field.Index[0]
	}
	slices.SortStableFunc(f, func(a, b Fault) int { return place(a) - place(b) })
}

// As converts each fault to an error. It returns all of them in one error, made by errors.Join, or
// nil if there are no faults.
func (f Faults) As(convert func(Fault) error) error {
	all := make([]error, len(f))
	for i, fault := range f {
		all[i] = convert(fault)
	}
	return errors.Join(all...)
}

// Err does the same as As, for a package whose callers need only the text of the error.
func (f Faults) Err(pkg string) error {
	return f.As(func(f Fault) error { return fmt.Errorf("%s: %s: %s", pkg, f.Field, f.Problem) })
}

// IsToken reports whether s is a token (RFC 9110, section 5.6.2) of up to 256 bytes, such as the name
// of a header or a product.
func IsToken(s string) bool {
	const allowed = "!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
	return s != "" && len(s) <= 256 && strings.Trim(s, allowed) == ""
}

type number interface{ ~int | ~int64 | ~float64 }

// Least refuses a *value that is neither zero nor least or more, and gives a zero *value its default.
func Least[T number](f *Faults, field string, value *T, least, byDefault T) {
	wrong := *value != 0 && *value < least
	f.Refuse(wrong, field, "is %v; %v or more is allowed", *value, least)
	if wrong || *value == 0 {
		*value = byDefault
	}
}

// Range refuses a *value that is neither zero nor from least to most, and gives a zero *value its
// default.
func Range[T number](f *Faults, field string, value *T, least, most, byDefault T) {
	within := *value == 0 || least <= *value && *value <= most
	f.Refuse(!within, field, "is %v; %v to %v is allowed", *value, least, most)
	if !within || *value == 0 {
		*value = byDefault
	}
}
