// Package integrations decides to which destinations a call may be forwarded.
//
// A call may carry an object of destination switches, its "integrations":
//
//	{"All": false, "Webhooks": true}
//
// [Enabled] follows the rules of the public tracking specification:
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
