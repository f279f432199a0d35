package store

import (
	"crypto/sha256"
	"time"
)

// A Key identifies a delivery: it is the first 128 bits of a SHA-256 of the destination
// and the id. The probability that any two of a billion deliveries have the same Key is
// about 2^-69.
type Key [16]byte

// KeyOf returns the key of a delivery, by its destination and id. If both have at most
// 255 bytes, KeyOf does not allocate.
func KeyOf(destination, id string) Key {
	var buf [2*255 + 2]byte
	b := append(buf[:0], byte(len(destination)))
	b = append(b, destination...)
	b = append(b, 0)
	b = append(b, id...)
	sum := sha256.Sum256(b)
	return Key(sum[:16])
}

// A Window is a dedup window: it remembers keys, in two generations; see NewWindow for limit and
// age. When the newer generation has limit/2 keys, or is as old as age, the next Add drops the
// older generation and begins a new one. So a Window remembers a key at least for the duration age,
// or until limit/2 more keys were added, whichever is sooner.
//
// A Window is not safe for concurrent use.
type Window struct {
	half  int
	age   time.Duration
	newer map[Key]struct{}
	older map[Key]struct{}
	began time.Time
}

// NewWindow returns an empty window for at most limit keys. A limit below 2 counts as 2.
func NewWindow(limit int, age time.Duration) *Window {
	return &Window{half: max(limit/2, 1), age: age, newer: make(map[Key]struct{})}
}

// Add adds k to the window, and reports whether k was new.
func (w *Window) Add(k Key, now time.Time) bool {
	w.turn(now, 0)
	if _, known := w.older[k]; known {
		return false
	}
	before := len(w.newer)
	w.newer[k] = struct{}{}
	return len(w.newer) > before
}

// Has reports whether the window remembers k.
func (w *Window) Has(k Key) bool {
	_, newer := w.newer[k]
	_, older := w.older[k]
	return newer || older
}

// Restore puts back a key that was added before the store was opened. The argument at is the time
// of that Add. Restore adds k to the newer generation without looking for it in the older one. The
// argument left is how many keys are still to be restored, including k: Restore makes room for all
// of them at once.
func (w *Window) Restore(k Key, at time.Time, left int) {
	w.turn(at, left)
	w.newer[k] = struct{}{}
}

// turn begins a new generation, with room for size keys, if the newer one is full or too
// old.
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

// Remove removes k from the window.
func (w *Window) Remove(k Key) {
	delete(w.newer, k)
	delete(w.older, k)
}

// Len returns how many keys the window remembers.
func (w *Window) Len() int { return len(w.newer) + len(w.older) }
