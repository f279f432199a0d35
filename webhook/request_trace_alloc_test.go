//go:build !race

package webhook

import (
	"testing"

	"github.com/hookferry/analytics/event"
)

func TestTraceAllocatesNothing(t *testing.T) {
	trace, ok := event.ParseTrace("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "")
	if !ok {
		t.Fatal("ParseTrace() = false, want a valid trace")
	}
	buf := make([]byte, 0, 1024)
	if n := testing.AllocsPerRun(100, func() { buf = appendTrace(buf[:0], trace) }); n != 0 {
		t.Errorf("appendTrace allocates %v times, want 0", n)
	}
}
