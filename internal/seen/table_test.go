package seen

import (
	"math/rand/v2"
	"testing"
)

// A table does what a map does, whatever is added and removed in what order.
func TestTable(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	got, want := newTable(0), map[Key]bool{}
	const keys = 40 * shards
	for i := range 500_000 {
		// The Key of zeros is one of them.
		k := key(r.IntN(keys))
		if have := got.has(&k); have != want[k] {
			t.Fatalf("step %d: has(%x) = %t", i, k, have)
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
			t.Fatalf("step %d: %d keys, want %d", i, got.len, len(want))
		}
	}
	for i := range keys {
		k := key(i)
		got.remove(&k)
	}
	if got.len != 0 {
		t.Errorf("%d keys are left of none", got.len)
	}
	for i := range got.shards {
		if s := &got.shards[i]; s.len != 0 || s.zero {
			t.Errorf("a shard has %d keys of none", s.len)
		}
	}
}

// Room that was asked for is there: nothing grows.
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
