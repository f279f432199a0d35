//go:build unix

package pgqueue

import (
	"fmt"
	"testing"

	"github.com/hookferry/analytics/webhook/store"
)

// Notifications take a bounded amount of memory, whatever they name.
func TestMadeUpNotificationsTakeLittleMemory(t *testing.T) {
	s := openWith(t, Config{Schema: schemaOf(t.TempDir()), NoListen: true})
	defer s.Close()
	heads := func() (n int) {
		for _, err := range s.Heads(t.Context(), false) {
			if err != nil {
				t.Fatal(err)
			}
			n++
		}
		return n
	}
	heads()
	for i := range 200_000 {
		s.memory.hear(fmt.Sprint("made-up", i))
		if s.memory.mu.Lock(); len(s.memory.news) > maxNews || len(s.memory.queues) > 0 {
			t.Fatalf("after %d notifications: %d names and %d queues in memory, want at most %d, and none", i+1, len(s.memory.news), len(s.memory.queues), maxNews)
		}
		s.memory.mu.Unlock()
		if i == maxNews/2 {
			if n := heads(); n != 0 || len(s.memory.queues) > 0 {
				t.Fatalf("Heads yields %d made-up destinations, and %d queues are in memory; want none", n, len(s.memory.queues))
			}
		}
	}
	putAll(t, s, deliveries("crm", 0, 1)...)
	if err := s.claimer.release(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	if n := heads(); n != 1 {
		t.Errorf("Heads yields %d destinations, want the one with a delivery", n)
	}
	settleAll(t, s, store.Done, fetchUntil(t, s, 1, "crm"))
}
