//go:build !race

// The race detector makes sync.Pool forget at random, so allocations are
// counted without it.

package webhook_test

import (
	"testing"

	"github.com/hookferry/analytics/webhook"
)

func TestNewEventAllocations(t *testing.T) {
	call := []byte(typical)
	if n := testing.AllocsPerRun(200, func() {
		if _, err := webhook.NewEvent(call, envelope); err != nil {
			t.Fatal(err)
		}
	}); n > 2 {
		t.Errorf("NewEvent allocates %v times, want 2: the body and the id", n)
	}
}
