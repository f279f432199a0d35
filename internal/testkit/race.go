//go:build race

package testkit

// Race reports whether the race detector is on. Then counting allocations is useless,
// because sync.Pool drops objects at random. Tests with random seeds use fewer seeds,
// because each run takes ten times as long.
const Race = true
