//go:build race

package testkit

// Race reports whether the race detector is on. With the race detector, a test cannot
// count allocations, because sync.Pool drops objects at random. Tests with random seeds
// use fewer seeds then, because each run takes ten times as long.
const Race = true
