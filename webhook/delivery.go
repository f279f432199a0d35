package webhook

import "github.com/hookferry/analytics/webhook/store"

// What a store keeps, as far as programs that embed a Forwarder meet it. Package store has the
// declarations, and what authors of stores need beside them.
type (
	Store             = store.Store
	Delivery          = store.Delivery
	Attempt           = store.Attempt
	Ended             = store.Ended // a delivery that was delivered, or is a dead letter
	EndedFilter       = store.EndedFilter
	WaitingFilter     = store.WaitingFilter
	Counts            = store.Counts
	DestinationCounts = store.DestinationCounts
	Reason            = store.Reason
	Change            = store.Change
)

const (
	DueNow    = store.DueNow    // makes waiting deliveries due now
	Discarded = store.Discarded // removes waiting deliveries, which do not become dead letters
)

// Reasons say why an attempt failed, or why a delivery was given up. There are no others, so a
// Reason can be a label of a metric.
const (
	ReasonTimeout     = store.ReasonTimeout
	ReasonDNS         = store.ReasonDNS
	ReasonConnection  = store.ReasonConnection
	ReasonProtocol    = store.ReasonProtocol
	ReasonRedirect    = store.ReasonRedirect
	ReasonThrottled   = store.ReasonThrottled
	ReasonRefused     = store.ReasonRefused
	ReasonServerError = store.ReasonServerError
	ReasonCertificate = store.ReasonCertificate
	ReasonAddress     = store.ReasonAddress
	ReasonAuthorize   = store.ReasonAuthorize
	ReasonExpired     = store.ReasonExpired
	ReasonDisabled    = store.ReasonDisabled
)

// Errors of the store that callers of a Forwarder branch on.
var (
	ErrClosed       = store.ErrClosed       // also after Shutdown
	ErrTooLarge     = store.ErrTooLarge     // one call has more than the store can ever hold
	ErrQueueFull    = store.ErrQueueFull    // nothing of the call is stored; it may be repeated
	ErrNoDeadLetter = store.ErrNoDeadLetter // it may have been replayed or discarded
	ErrUnsupported  = store.ErrUnsupported  // the store lacks an optional interface, such as History
)
