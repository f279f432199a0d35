package webhook

import "time"

// A Hold says why the deliveries of a destination wait.
type Hold string

const (
	HoldPaused  Hold = "paused"  // Pause was called
	HoldUnknown Hold = "unknown" // there is no such destination
	HoldInvalid Hold = "invalid" // Lookup returned a destination that is not valid
	HoldLookup  Hold = "lookup"  // Lookup fails
	HoldFailing Hold = "failing" // the destination only fails, and is probed; see Config.MaxConcurrent
	// HoldDisabled: Destination.Disabled is set, or the forwarder has disabled the destination: then
	// Held.Reason is not empty, and Resume enables the destination.
	HoldDisabled Hold = "disabled"
)

// Held describes a destination whose deliveries wait although they are due.
type Held struct {
	Destination string    `json:"-"`
	Hold        Hold      `json:"hold"`
	Since       time.Time `json:"since,omitzero"` // when the hold began, zero if that is not known
	// Until is when the forwarder checks next whether the hold is over, zero for HoldPaused. For
	// HoldFailing the check is an attempt: Until is zero while one is in flight, or if nothing waits.
	Until  time.Time `json:"until,omitzero"`
	Reason Reason    `json:"reason,omitempty"` // why the latest attempt failed, for HoldFailing or if the forwarder has disabled it
}
