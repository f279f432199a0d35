package integrations_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"

	"github.com/hookferry/analytics/integrations"
	"github.com/hookferry/analytics/internal/esjson"
)

// A setting is a possible value of a switch.
type setting struct {
	name   string
	absent bool
	value  any
	json   string
}

var settings = []setting{
	{name: "absent", absent: true},
	{name: "true", value: true, json: `true`},
	{name: "false", value: false, json: `false`},
	{name: "null", value: nil, json: `null`},
	{name: "zero", value: 0, json: `0`},
	{name: "one", value: 1.0, json: `1`},
	{name: "empty string", value: "", json: `""`},
	{name: "the text false", value: "false", json: `"false"`},
	{name: "object", value: map[string]any{"enabled": false}, json: `{"enabled":false}`},
	{name: "array", value: []any{false}, json: `[false]`},
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
					if allKey == "All" && !all.absent && all.json == "false" {
						want = false
					}
					if key == "Webhooks" && !own.absent {
						want = own.json != "false"
					}

					switches := map[string]any{}
					text, textReversed := "", ""
					add := func(key string, s setting) {
						if s.absent {
							return
						}
						switches[key] = s.value
						if text != "" {
							text, textReversed = text+",", ","+textReversed
						}
						member := fmt.Sprintf("%q:%s", key, s.json)
						text, textReversed = text+member, member+textReversed
					}
					add(allKey, all)
					add(key, own)

					if got := integrations.Enabled(switches, integrations.Webhooks); got != want {
						t.Errorf("%s: Enabled(%v) = %v, want %v", name, switches, got, want)
					}
					for _, src := range []string{"{" + text + "}", "{" + textReversed + "}", " { " + text + " } "} {
						got, err := integrations.EnabledJSON([]byte(src), integrations.Webhooks)
						if err != nil || got != want {
							t.Errorf("%s: EnabledJSON(%s) = %v, %v, want %v", name, src, got, err, want)
						}
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
	for _, src := range []string{"", " ", "null", " null\n", "{}", " {} "} {
		got, err := integrations.EnabledJSON([]byte(src), integrations.Webhooks)
		if err != nil || !got {
			t.Errorf("EnabledJSON(%q) = %v, %v, want true", src, got, err)
		}
	}
}

func TestEnabledJSON(t *testing.T) {
	for _, tt := range []struct {
		name, src   string
		destination string
		want        bool
	}{
		{"the last duplicate counts, false", `{"Webhooks":true,"Webhooks":false}`, "Webhooks", false},
		{"the last duplicate counts, true", `{"Webhooks":false,"Webhooks":true}`, "Webhooks", true},
		{"the last duplicate of All counts", `{"All":true,"All":false}`, "Webhooks", false},
		{"an escaped name", `{"\u0057ebhooks":false}`, "Webhooks", false},
		{"a nested switch", `{"Other":{"Webhooks":false,"All":false}}`, "Webhooks", true},
		{"another destination's switch", `{"All":false,"Other":true}`, "Webhooks", false},
		{"another destination", `{"All":false,"Other":true}`, "Other", true},
		{"a name beyond ASCII", `{"Crème":false}`, "Crème", false},
		{"white space around a value", "{\"Webhooks\" : \n false }", "Webhooks", false},
	} {
		got, err := integrations.EnabledJSON([]byte(tt.src), tt.destination)
		if err != nil || got != tt.want {
			t.Errorf("%s: EnabledJSON(%s, %q) = %v, %v, want %v", tt.name, tt.src, tt.destination, got, err, tt.want)
		}
	}
}

func TestEnabledJSONRefusesMalformedSwitches(t *testing.T) {
	for _, src := range []string{`true`, `"All"`, `[]`, `12`, `{`, `{"All"}`, `{"All":}`, `{"All":false}}`, `{"All":fals}`, `nullnull`, "\u00a0null"} {
		if got, err := integrations.EnabledJSON([]byte(src), integrations.Webhooks); err == nil || got {
			t.Errorf("EnabledJSON(%q) = %v, %v, want an error", src, got, err)
		}
	}
}

// FuzzEnabledJSON compares EnabledJSON with Enabled of the map that encoding/json decodes.
func FuzzEnabledJSON(f *testing.F) {
	for _, s := range settings {
		if !s.absent {
			f.Add(fmt.Appendf(nil, `{"All":%s}`, s.json), "Webhooks")
			f.Add(fmt.Appendf(nil, `{"All":false,"Webhooks":%s}`, s.json), "Webhooks")
		}
	}
	f.Add([]byte(`null`), "Webhooks")
	f.Fuzz(func(t *testing.T, src []byte, name string) {
		got, err := integrations.EnabledJSON(src, name)
		var switches map[string]any
		if len(src) > 0 && json.Unmarshal(src, &switches) != nil {
			// There is nothing to compare with. EnabledJSON may have accepted the text: a number
			// beyond the range of a double is an error only for encoding/json.
			return
		}
		if errors.Is(err, esjson.ErrDepth) {
			return
		}
		if err != nil {
			t.Fatalf("EnabledJSON(%q, %q): %v", src, name, err)
		}
		if want := integrations.Enabled(switches, name); got != want {
			t.Fatalf("EnabledJSON(%q, %q) = %v, want %v", src, name, got, want)
		}
	})
}

func ExampleEnabled() {
	switches := map[string]any{"All": false, "Webhooks": true}
	fmt.Println(integrations.Enabled(switches, "Webhooks"))
	fmt.Println(integrations.Enabled(switches, "Warehouse"))
	// Output:
	// true
	// false
}

func BenchmarkEnabledJSON(b *testing.B) {
	src := []byte(`{"All":true,"Webhooks":{"version":2},"Other":false}`)
	b.ReportAllocs()
	b.SetBytes(int64(len(src)))
	for b.Loop() {
		if _, err := integrations.EnabledJSON(src, integrations.Webhooks); err != nil {
			b.Fatal(err)
		}
	}
}
