// Package random draws the random numbers of waits and names. They are those of math/rand/v2, unless
// a test replaces their source. Do not use them for secrets.
package random

import "math/rand/v2"

// draw is the source. Only Replace changes it.
var draw = rand.Uint64

var numbers = rand.New(source{})

type source struct{}

func (source) Uint64() uint64 { return draw() }

// Uint64 returns a random number.
func Uint64() uint64 { return draw() }

// N returns a random number that is at least 0 and less than n. It panics if n is not more than 0.
func N[T ~int | ~int64](n T) T { return T(numbers.Int64N(int64(n))) }

// Replace makes all random numbers come from source, which may be called concurrently, until the
// function undo is called. Nothing else may use this package during the calls of Replace and undo.
func Replace(source func() uint64) (undo func()) {
	before := draw
	draw = source
	return func() { draw = before }
}
