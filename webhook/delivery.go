package webhook

import "github.com/hookferry/analytics/webhook/store"

// The types below are what a program that embeds a Forwarder meets of package store, which declares
// and describes them.

type Store = store.Store
type Delivery = store.Delivery
type Attempt = store.Attempt
type Millis = store.Millis
type Ended = store.Ended
type EndedFilter = store.EndedFilter
type WaitingFilter = store.WaitingFilter
type Counts = store.Counts
type DestinationCounts = store.DestinationCounts
type Reason = store.Reason
type Change = store.Change

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
	ReasonNoEndpoint  = store.ReasonNoEndpoint
)

// Errors of the store that callers of a Forwarder branch on.
var (
	ErrClosed       = store.ErrClosed       // also after Shutdown
	ErrTooLarge     = store.ErrTooLarge     // one call has more than the store can ever hold
	ErrQueueFull    = store.ErrQueueFull    // nothing of the call is stored; it may be repeated
	ErrNoDeadLetter = store.ErrNoDeadLetter // it may have been replayed or discarded
	ErrUnsupported  = store.ErrUnsupported  // the store lacks an optional interface, such as History
)
