package webhook

import (
	"context"
	"time"
)

// Shared is implemented by a Store that several nodes have open at once, in several
// processes. A node gives a sign of life at intervals, its heartbeat. The claims of a node
// whose last heartbeat is too old end, and so does its right to settle them: it refuses to
// fetch and to settle before others take it for dead, by the wall clock or the monotonic
// one, whichever has gone further. A node judges another dead only if its own heartbeats
// were stored without a gap for as long as that takes.
type Shared interface {
	// Present has the store ask note, for each heartbeat, what to show of this node to
	// all who call Nodes, until Close. It returns up to MaxNote bytes, of which more are
	// left out, and whether the node is alive: while it is not, there is no heartbeat.
	// note does not wait.
	Present(note func() (note []byte, alive bool))
	// Release gives back at once what is not claimed through Fetch or Put, and from then
	// on what is no longer, for others to fetch. Run calls it once it fetches nothing
	// more, before it waits for the last attempts.
	Release(ctx context.Context) error
	// Nodes returns the nodes that are open, or were until their last heartbeat is too
	// old, in the order they were opened; at most 1,000.
	Nodes(ctx context.Context) ([]Node, error)
}

// MaxNote is how many bytes the Note of a Node has at most.
const MaxNote = 4096

// A Node is a Store value that is open on a store that is shared.
type Node struct {
	// Name is what its process calls it.
	Name string
	// Self: it is the one that was asked.
	Self bool
	// Opened is when it was opened, or began anew after others took it for dead;
	// Seen is its last heartbeat. Both are by the store's clock, and zero if that is
	// not known.
	Opened, Seen time.Time
	// Note is what it presents.
	Note []byte
}
