//go:build !race

// The race detector makes sync.Pool drop values at random, so this file counts allocations without
// it.

package event_test

import (
	"testing"

	"github.com/hookferry/analytics/event"
)

func TestEncodeAllocations(t *testing.T) {
	encoder, err := event.NewEncoder(envelope)
	if err != nil {
		t.Fatal(err)
	}
	var call event.Call = event.JSON(typical)
	if n := testing.AllocsPerRun(200, func() {
		if _, err := encoder.Encode(call); err != nil {
			t.Fatal(err)
		}
	}); n > 2 {
		t.Errorf("Encode allocates %v times, want at most 2: the body and the id", n)
	}
}
