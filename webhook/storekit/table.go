package storekit

import "hash/maphash"

// shards is how many parts a table has: one grows at a time, so that no Add waits
// for all keys to move.
const shards = 256

// A table is a set of keys. A key takes 16 bytes, and about as much again for free slots.
// Most keys that are looked for are new. A table finds that out with one access to memory,
// a map with two or more; these cache misses are most of the time of an Add.
type table struct {
	seed   maphash.Seed // random, so that nobody can choose ids that collide
	shards [shards]shard
	len    int
}

// A shard is a hash table with linear probing. A Key of zeros marks a free slot.
type shard struct {
	slots []Key // its length is a power of two, or 0
	len   int
	zero  bool // the Key of zeros is there
}

// newTable returns an empty table with room for size keys.
func newTable(size int) *table {
	t := &table{seed: maphash.MakeSeed()}
	if each := size / shards; each > 0 {
		n := minSlots
		for 3*n < 4*(each+each/8) { // keys are spread unevenly over shards
			n *= 2
		}
		for i := range t.shards {
			t.shards[i].slots = make([]Key, n)
		}
	}
	return t
}

const minSlots = 8

// find returns the shard of k, and a hash whose low bits are the first slot for k there.
func (t *table) find(k *Key) (s *shard, hash uint64) {
	hash = maphash.Bytes(t.seed, k[:])
	return &t.shards[hash%shards], hash / shards
}

func (t *table) has(k *Key) bool {
	s, hash := t.find(k)
	if *k == (Key{}) {
		return s.zero
	}
	_, ok := s.slot(k, hash)
	return ok
}

// add adds k, which is not there.
func (t *table) add(k *Key) {
	s, hash := t.find(k)
	t.len++
	if *k == (Key{}) {
		s.zero = true
		return
	}
	if 4*(s.len+1) > 3*len(s.slots) {
		t.grow(s)
	}
	i, _ := s.slot(k, hash)
	s.slots[i] = *k
	s.len++
}

// remove takes k out, if it is there.
func (t *table) remove(k *Key) {
	s, hash := t.find(k)
	if *k == (Key{}) {
		if s.zero {
			s.zero = false
			t.len--
		}
		return
	}
	i, ok := s.slot(k, hash)
	if !ok {
		return
	}
	t.len--
	s.len--
	// A later key moves into the free slot i if its first slot is not after i, as a search
	// for it would end at i.
	mask := len(s.slots) - 1
	for j := (i + 1) & mask; s.slots[j] != (Key{}); j = (j + 1) & mask {
		_, hash := t.find(&s.slots[j])
		if first := int(hash) & mask; (j-first)&mask >= (j-i)&mask {
			s.slots[i] = s.slots[j]
			i = j
		}
	}
	s.slots[i] = Key{}
}

// grow doubles the slots.
func (t *table) grow(s *shard) {
	old := s.slots
	s.slots = make([]Key, max(minSlots, 2*len(old)))
	for i := range old {
		if k := &old[i]; *k != (Key{}) {
			_, hash := t.find(k)
			j, _ := s.slot(k, hash)
			s.slots[j] = *k
		}
	}
}

// slot returns the slot of k, or else the free slot where k would go. At least a quarter
// of the slots is free, so the search ends; a shard without slots has no key.
func (s *shard) slot(k *Key, hash uint64) (i int, ok bool) {
	if len(s.slots) == 0 {
		return 0, false
	}
	mask := len(s.slots) - 1
	for i = int(hash) & mask; ; i = (i + 1) & mask {
		at := &s.slots[i]
		if *at == *k {
			return i, true
		}
		if *at == (Key{}) {
			return i, false
		}
	}
}
