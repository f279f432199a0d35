// Package integrations decides to which destinations a call may be forwarded.
//
// A call may carry an object of destination switches, its "integrations":
//
//	{"All": false, "Webhooks": true}
//
// [Enabled] reads the switches as a Go map and [EnabledJSON] as JSON. The rules
// are those of the public tracking specification:
//
//   - A destination is enabled if no switch decides about it.
//   - A switch that has a destination's name decides about that destination.
//   - A switch named All decides about every destination without a switch of its
//     own.
//   - The value false disables. Every other value enables: true, and also an object
//     of options, a string, a number or null, which some clients send.
//
// Names are case sensitive.
package integrations

import (
	"bytes"
	"fmt"

	"github.com/hookferry/analytics/internal/esjson"
)

const (
	// All is the name of the switch for all destinations without a switch of their own.
	All = "All"
	// Webhooks is the name of the destination that forwards calls to
	// endpoints.
	Webhooks = "Webhooks"
)

// Enabled reports whether switches let a call go to the destination with the given
// name. Only the bool false disables. A nil map enables every destination.
func Enabled(switches map[string]any, name string) bool {
	v, ok := switches[name]
	if !ok {
		v = switches[All]
	}
	return v != false
}

// EnabledJSON does the same as [Enabled], for switches in the form of a JSON object.
// Empty input and null count as an empty object. If several members have the same name,
// the last one counts. For malformed JSON and for any other kind of value, it returns
// false and an error.
func EnabledJSON(switches []byte, name string) (bool, error) {
	switches = bytes.Trim(switches, " \t\r\n")
	if len(switches) == 0 || string(switches) == "null" {
		return true, nil
	}
	var own, off, allOff bool
	err := esjson.Members(switches, func(key, value []byte) error {
		switch string(key) {
		case name:
			own, off = true, string(value) == "false"
		case All:
			allOff = string(value) == "false"
		}
		return nil
	})
	if err != nil {
		return false, fmt.Errorf("integrations: %w", err)
	}
	if own {
		return !off, nil
	}
	return !allOff, nil
}
