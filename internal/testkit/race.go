//go:build race

package testkit

// Race says whether the race detector is on. Tests of allocations mean nothing then, as
// sync.Pool drops objects at random, and models run few seeds, as each takes ten times as long.
const Race = true
