package webhook

import (
	"context"
	"time"
)

// Pauses is implemented by a Queue that keeps which destinations are paused. Then
// a pause holds for all forwarders that share the store, and until Resume,
// whatever is restarted meanwhile.
type Pauses interface {
	// SetPaused notes that a destination is paused, or is not, and returns once
	// that would survive the loss of the process. To pause what is paused does
	// not change since when it is.
	SetPaused(ctx context.Context, destination string, paused bool) error
	// Paused returns the destinations that are paused, and since when.
	Paused(ctx context.Context) (map[string]time.Time, error)
}

// Releaser is implemented by a Queue that takes deliveries out of what others
// share before they are leased.
type Releaser interface {
	// Release gives back at once what is not leased, and from then on what is no
	// longer, for others to lease. Run calls it once it leases nothing more,
	// before it waits for the last attempts: after it, nothing need be handed out
	// through this Queue value any more.
	Release(ctx context.Context) error
}

// Nodes is implemented by a Queue that knows which others are open on the same
// store, in other processes.
type Nodes interface {
	// Present has the store ask note what to show of this Queue value to all who
	// call Nodes: now, and again with each sign of life, until Close. note returns
	// up to MaxNote bytes, of which more are left out, and does not wait.
	Present(note func() []byte)
	// Nodes returns those that are open, or were until their last sign of life
	// is too old, in the order they were opened; at most 1,000.
	Nodes(ctx context.Context) ([]Node, error)
}

// MaxNote is how many bytes the Note of a Node has at most.
const MaxNote = 4096

// A Node is a Queue value that is open on a store.
type Node struct {
	// Name is what its process calls it.
	Name string
	// Self: it is the one that was asked.
	Self bool
	// Opened is when it was opened, or began anew after others took it for gone;
	// Seen is when it last gave a sign of life. Both are by the store's clock,
	// and zero if that is not known.
	Opened, Seen time.Time
	// Note is what it presents.
	Note []byte
}
