package store

import (
	"encoding/binary"
	"strings"
	"testing"
	"time"
)

var start = time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)

func key(n int) (k Key) {
	binary.BigEndian.PutUint64(k[:], uint64(n))
	return k
}

func TestKeyOfTellsDeliveriesApart(t *testing.T) {
	long := strings.Repeat("x", 255)
	pairs := [][2]string{
		{"a", "b"}, {"b", "a"}, {"ab", ""}, {"", "ab"}, {"a", "\x00b"}, {"a\x00", "b"}, {"a\x00b", ""},
		{long, "1"}, {long, "2"}, {long, long}, {"1", long},
	}
	of := map[Key][2]string{}
	for _, p := range pairs {
		k := KeyOf(p[0], p[1])
		if q, ok := of[k]; ok {
			t.Errorf("KeyOf(%q) = KeyOf(%q), want different keys", p, q)
		}
		of[k] = p
		if again := KeyOf(p[0], p[1]); again != k {
			t.Errorf("second KeyOf(%q) = %x, want the first result %x", p, again, k)
		}
	}
	if n := testing.AllocsPerRun(100, func() { KeyOf(long, long) }); n != 0 {
		t.Errorf("KeyOf: got %v allocations, want 0", n)
	}
}

func TestWindowRemembersHalfOfItsLimit(t *testing.T) {
	w := NewWindow(100, time.Hour)
	for i := range 1000 {
		if !w.Add(key(i), start) {
			t.Fatalf("Add(%d) = false, want true for a new key", i)
		}
		if w.Len() > 100 {
			t.Fatalf("Len = %d after %d keys, want at most 100", w.Len(), i+1)
		}
	}
	for i := 950; i < 1000; i++ {
		if w.Add(key(i), start) {
			t.Errorf("Add(%d) = true, want false for one of the latest 50 keys", i)
		}
	}
	if !w.Add(key(0), start) {
		t.Error("Add(0) = false, want true for a forgotten key")
	}
}

func TestWindowForgetsByAge(t *testing.T) {
	w := NewWindow(1000, time.Hour)
	w.Add(key(1), start)
	w.Add(key(2), start.Add(time.Hour-1))
	if w.Add(key(1), start.Add(time.Hour-1)) {
		t.Error("Add(1) just before an hour = true, want false")
	}
	w.Add(key(3), start.Add(time.Hour)) // begins the second generation
	if w.Add(key(2), start.Add(2*time.Hour-2)) {
		t.Error("Add(2) less than an hour after the first Add = true, want false")
	}
	w.Add(key(4), start.Add(2*time.Hour)) // begins the third generation
	if !w.Add(key(1), start.Add(2*time.Hour)) {
		t.Error("Add(1) after two generations = false, want true for a forgotten key")
	}
	if w.Add(key(3), start.Add(2*time.Hour)) {
		t.Error("Add(3) in the next generation = true, want false")
	}
}

func TestWindowForgetsRemovedKey(t *testing.T) {
	w := NewWindow(4, time.Hour)
	for i := range 3 {
		w.Add(key(i), start)
	}
	for i := range 3 { // 0 and 1 belong to the older generation
		w.Remove(key(i))
		if !w.Add(key(i), start) {
			t.Errorf("Add(%d) after Remove = false, want true", i)
		}
	}
}

func BenchmarkAdd(b *testing.B) {
	w := NewWindow(1_000_000, time.Hour)
	n := 0
	b.ReportAllocs()
	for b.Loop() {
		n++
		w.Add(key(n), start)
	}
}

func BenchmarkKeyOf(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		KeyOf("crm", "3f2c1d1e-6a54-4d0f-8a0e-0a8f2b0c9d11")
	}
}
