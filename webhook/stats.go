package webhook

import "time"

// Stats counts what a Forwarder has done since New. Each outcome counts once it is stored.
type Stats struct {
	Counters
	// Accepted counts the deliveries that this node has stored. Those of ForwardTx count on the node
	// that is the first to claim them. InTransaction counts those that ForwardTx has stored on this
	// node, whether their transactions were committed or not.
	Accepted, InTransaction int64
	Duplicates              int64 // deliveries left out because the store remembers their IDs
	Off                     int64 // events left out because their integrations switch Webhooks off
	NoDestination           int64 // events of Send for tenants without a destination
	// Resent counts the requests made twice within an attempt, because the receiver closed the kept
	// connection without an answer, or with a 408 or 400 for an idle one, or refused the request by
	// a frame of HTTP/2. The receiver may have got both requests, except with HTTP/2.
	Resent         int64
	Discarded      int64 // waiting deliveries that Discard and DiscardAll removed
	Forgotten      Forgotten
	Unkept         int64 // deliveries that were made, but that the history of the store could not keep
	ObserverPanics int64 // calls of Config.Observers that panicked
	// Failing says since when maintenance steps of the store fail; see Maintained. Nil if none does.
	Failing map[string]time.Time

	// InFlight counts the deliveries that are being attempted, Ready the claimed deliveries that
	// wait for an attempt.
	InFlight, Ready int
}

// Counters counts what became of the deliveries of one destination, or of all.
type Counters struct {
	// Filtered counts the events that the destination's filter or Transform left out, and the
	// events for a destination that takes nothing. TransformErrors counts the events that were left
	// out because the Transform failed.
	Filtered, TransformErrors int64
	// Delivered counts the deliveries that an endpoint took, Retried the attempts that are repeated.
	Delivered, Retried int64
	Dead               map[Reason]int64 // deliveries given up, by reason, without reasons that have not occurred
	Latency            Latency
}

// Latency says how long requests took, from the dial to the end of the answer, whatever its status.
// It leaves out requests that were cut off.
type Latency struct {
	Requests int64 `json:"requests"`
	// P50, P90 and P99 are the times that 50, 90 and 99 of 100 requests did not exceed, estimated at
	// most an eighth too high. Later requests weigh more.
	P50 Millis `json:"p50"`
	P90 Millis `json:"p90"`
	P99 Millis `json:"p99"`
}

// DestinationStats is what a Forwarder and its store know of one destination.
type DestinationStats struct {
	Destination string
	// Since is when this node began to count for the destination, zero if there was nothing to count.
	// If over 16,384 destinations are in use, those used least recently start again from zero.
	Since time.Time
	Counters
	// Outcome is the outcome of the latest attempt whose outcome is stored, empty if there was none
	// since.
	Outcome Outcome
	// Refusing says that the destination refused, for good, the latest delivery that ended, or at
	// least half of the latest eight. Each refused delivery is a dead letter.
	Refusing bool
	Failure  *Failure // the latest failed attempt, nil if none failed; others may have succeeded since
	Held     *Hold    // nil if the destination is not held

	InFlight, Ready int       // as in Stats
	Waiting         int       // deliveries in the store, including those in flight
	Behind          int       // those of them that are behind another one with their Key
	Oldest          time.Time // the earliest Due of those that are not claimed, zero if there are none
}

// A Failure is an attempt that failed.
type Failure struct {
	MessageID string    `json:"id"`               // of the delivery
	Source    string    `json:"source,omitempty"` // of the delivery
	Attempt   Attempt   `json:"attempt"`          // with several endpoints the one to the last of them
	Due       time.Time `json:"due,omitzero"`     // when the delivery is attempted again, zero if it was given up
}
