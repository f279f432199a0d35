package storekit

import "hash/maphash"

// shards is how many parts a table has: one grows at a time, so that no Add waits
// for all keys to move.
const shards = 256

// A table is a set of keys. It takes 16 bytes for a key and about as much for room. That
// a key is not there takes one look at memory, where a map takes two or more: most of the
// time of an Add, as nothing else has looked there lately.
type table struct {
	seed   maphash.Seed // so that nobody can choose ids that get into each other's way
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
		for 3*n < 4*(each+each/8) { // some get more than others
			n *= 2
		}
		for i := range t.shards {
			t.shards[i].slots = make([]Key, n)
		}
	}
	return t
}

const minSlots = 8

// find returns the shard of k, and the hash that says where in it k belongs.
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
	// What came behind it and belongs before moves up.
	mask := len(s.slots) - 1
	for j := (i + 1) & mask; s.slots[j] != (Key{}); j = (j + 1) & mask {
		_, hash := t.find(&s.slots[j])
		if home := int(hash) & mask; (j-home)&mask >= (j-i)&mask {
			s.slots[i] = s.slots[j]
			i = j
		}
	}
	s.slots[i] = Key{}
}

// grow makes room for twice as many.
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

// slot returns where k is, or else where it would be. There is always a free slot,
// but in a shard without any, where nothing is found.
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
