package webhook

import "github.com/hookferry/analytics/webhook/store"

// The types below are those of package store that a program with a Forwarder uses. Package store
// describes them.

type Store = store.Store
type Delivery = store.Delivery
type Attempt = store.Attempt
type Millis = store.Millis
type Record = store.Record
type Ref = store.Ref
type State = store.State
type Query = store.Query
type Reason = store.Reason

// The states of a delivery.
const (
	StateBehind    = store.StateBehind    // another delivery with its Key
	StateWaiting   = store.StateWaiting   // for an attempt
	StateClaimed   = store.StateClaimed   // by a node that attempts it, or is about to
	StateDelivered = store.StateDelivered // and kept by a store with a History
	StateDead      = store.StateDead      // given up: a dead letter
)

// Reasons say why an attempt failed, or why a delivery was given up. The constants are all Reasons
// that there are, so a Reason can be a label of a metric.
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
	ReasonBacklog     = store.ReasonBacklog
)

// Errors of the store that callers of a Forwarder branch on.
var (
	ErrClosed      = store.ErrClosed      // also after Shutdown
	ErrTooLarge    = store.ErrTooLarge    // one call has more than the store can ever hold
	ErrQueueFull   = store.ErrQueueFull   // nothing of the call is stored; it may be repeated
	ErrNoDelivery  = store.ErrNoDelivery  // it may have been retried, discarded, or delivered without a History
	ErrUnsupported = store.ErrUnsupported // the store lacks an optional interface, such as History
)
