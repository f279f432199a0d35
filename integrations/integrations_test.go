package integrations_test

import (
	"fmt"
	"testing"

	"github.com/hookferry/analytics/integrations"
)

// A setting is a possible value of a switch.
type setting struct {
	name   string
	absent bool
	value  any
}

var settings = []setting{
	{name: "absent", absent: true},
	{name: "true", value: true},
	{name: "false", value: false},
	{name: "null", value: nil},
	{name: "zero", value: 0},
	{name: "one", value: 1.0},
	{name: "empty string", value: ""},
	{name: "the text false", value: "false"},
	{name: "object", value: map[string]any{"enabled": false}},
	{name: "array", value: []any{false}},
}

// TestTheOwnSwitchOverridesAll tries every value of All with every value of a destination's own
// switch. Both names also occur in the wrong case, which must have no effect.
func TestTheOwnSwitchOverridesAll(t *testing.T) {
	for _, all := range settings {
		for _, own := range settings {
			for _, key := range []string{"Webhooks", "webhooks", "WEBHOOKS", "Webhook", "Other"} {
				for _, allKey := range []string{"All", "all", "ALL"} {
					name := fmt.Sprintf("%s=%s,%s=%s", allKey, all.name, key, own.name)

					// The rule of the contract: only false turns a destination off.
					want := true
					if allKey == "All" && !all.absent && all.value == false {
						want = false
					}
					if key == "Webhooks" && !own.absent {
						want = own.value != false
					}

					switches := map[string]any{}
					add := func(key string, s setting) {
						if !s.absent {
							switches[key] = s.value
						}
					}
					add(allKey, all)
					add(key, own)

					if got := integrations.Enabled(switches, integrations.Webhooks); got != want {
						t.Errorf("%s: Enabled(%v) = %v, want %v", name, switches, got, want)
					}
				}
			}
		}
	}
}

func TestDestinationsAreEnabledWithoutSwitches(t *testing.T) {
	if !integrations.Enabled(nil, integrations.Webhooks) {
		t.Error("Enabled(nil) = false, want true")
	}
}

func ExampleEnabled() {
	switches := map[string]any{"All": false, "Webhooks": true}
	fmt.Println(integrations.Enabled(switches, "Webhooks"))
	fmt.Println(integrations.Enabled(switches, "Warehouse"))
	// Output:
	// true
	// false
}
