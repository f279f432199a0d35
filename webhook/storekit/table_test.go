package storekit

import (
	"math/rand/v2"
	"testing"

	"github.com/hookferry/analytics/internal/soak"
)

// A table does the same as a map, for any order of adding and removing.
func TestTable(t *testing.T) {
	for seed := range soak.Seeds(t, 1) {
		checkTable(t, seed)
	}
}

func checkTable(t *testing.T, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 0))
	got, want := newTable(0), map[Key]bool{}
	const keys = 40 * shards
	for i := range 100_000 {
		// The Key of zeros is one of them.
		k := key(r.IntN(keys))
		if have := got.has(&k); have != want[k] {
			t.Fatalf("seed %d, step %d: has(%x) = %t", seed, i, k, have)
		}
		switch {
		case r.IntN(3) == 0:
			got.remove(&k)
			delete(want, k)
		case !want[k]:
			got.add(&k)
			want[k] = true
		}
		if got.len != len(want) {
			t.Fatalf("seed %d, step %d: %d keys, want %d", seed, i, got.len, len(want))
		}
	}
	for i := range keys {
		k := key(i)
		got.remove(&k)
	}
	if got.len != 0 {
		t.Fatalf("seed %d: %d keys are left of none", seed, got.len)
	}
	for i := range got.shards {
		if s := &got.shards[i]; s.len != 0 || s.zero {
			t.Fatalf("seed %d: a shard has %d keys of none", seed, s.len)
		}
	}
}

// A table does not grow before it has the size that it was made for.
func TestTableRoom(t *testing.T) {
	const size = 100_000
	table := newTable(size)
	slots := len(table.shards[0].slots)
	for i := range size {
		k := key(i)
		table.add(&k)
	}
	for i := range table.shards {
		if s := &table.shards[i]; len(s.slots) != slots {
			t.Errorf("shard %d has %d slots, had %d, with %d keys", i, len(s.slots), slots, s.len)
		}
	}
}
