//go:build !race

// The race detector makes sync.Pool drop some of its objects at random. So allocations are only
// counted without it.

package integrations_test

import (
	"testing"

	"github.com/hookferry/analytics/integrations"
)

func TestEnabledJSONDoesNotAllocate(t *testing.T) {
	src := []byte(`{"All":true,"Webhooks":{"version":2},"Other":false}`)
	if n := testing.AllocsPerRun(100, func() {
		if on, err := integrations.EnabledJSON(src, integrations.Webhooks); err != nil || !on {
			t.Fatal(on, err)
		}
	}); n != 0 {
		t.Errorf("EnabledJSON allocates %v times, want 0", n)
	}
}
