package storekit

import (
	"crypto/sha256"
	"time"
)

// A Key stands for one delivery: the first 128 bits of a SHA-256 of its
// destination and its id. Two deliveries among a billion share one with a
// probability of about 2^-69.
type Key [16]byte

// KeyOf returns the key of the delivery id of destination. It does not
// allocate for a destination and an id of up to 255 bytes each.
func KeyOf(destination, id string) Key {
	var buf [2*255 + 2]byte
	b := append(buf[:0], byte(len(destination)))
	b = append(b, destination...)
	b = append(b, 0)
	b = append(b, id...)
	sum := sha256.Sum256(b)
	return Key(sum[:16])
}

// A Window is a dedup window: it remembers keys, in two generations. When the newer
// generation holds half of the limit, or is as old as age, the next Add forgets the older
// one and begins another. So a key is remembered for at least age, or until at least half
// of the limit have come after it, whichever is sooner.
//
// A Window is not safe for concurrent use.
type Window struct {
	half  int
	age   time.Duration
	newer map[Key]struct{}
	older map[Key]struct{}
	began time.Time
}

// NewWindow returns an empty window of at most limit keys, at least 2.
func NewWindow(limit int, age time.Duration) *Window {
	return &Window{half: max(limit/2, 1), age: age, newer: make(map[Key]struct{})}
}

// Add remembers k from now on and reports whether it was new.
func (w *Window) Add(k Key, now time.Time) bool {
	w.turn(now, 0)
	if _, known := w.older[k]; known {
		return false
	}
	before := len(w.newer)
	w.newer[k] = struct{}{}
	return len(w.newer) > before
}

// Restore is Add for a key that was added at a time before the store was opened. It looks
// for k in the newer generation alone. left is how many keys are still to be restored, k
// included; it makes room for all of them at once.
func (w *Window) Restore(k Key, at time.Time, left int) {
	w.turn(at, left)
	w.newer[k] = struct{}{}
}

// turn begins another generation if the newer one is full or old, with room for size keys.
func (w *Window) turn(now time.Time, size int) {
	switch {
	case len(w.newer) == 0 && size == 0:
	case len(w.newer) == 0:
		w.newer = make(map[Key]struct{}, min(size, w.half))
	case len(w.newer) >= w.half || now.Sub(w.began) >= w.age:
		w.older = w.newer
		w.newer = make(map[Key]struct{}, min(size, w.half))
	default:
		return
	}
	w.began = now
}

// Remove forgets k.
func (w *Window) Remove(k Key) {
	delete(w.newer, k)
	delete(w.older, k)
}

// Len returns how many keys are remembered.
func (w *Window) Len() int { return len(w.newer) + len(w.older) }
