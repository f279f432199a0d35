package webhook

import (
	"context"
	"time"
)

// Shared is implemented by a Store that several nodes, in several processes, have open at once. A
// node stores a heartbeat at intervals. When its last heartbeat is too old, its claims end, and so
// does its right to settle them: it refuses to fetch and to settle before others may judge it dead,
// by the wall clock or the monotonic one, whichever has gone further. A node judges another dead
// only if its own heartbeats were stored without a gap for as long as that takes.
type Shared interface {
	// Present makes the store call note for each heartbeat, until Close. note returns a text
	// that Nodes shows of this node, and whether the node is alive. A text of more than MaxNote
	// bytes is left out. While the node is not alive, the store sends no heartbeat. note does
	// not wait.
	Present(note func() (note []byte, alive bool))
	// Release lets other nodes fetch all deliveries that Fetch and Put have not handed out, even
	// if the store holds them ready for this node. From then on it does so with each delivery
	// whose claim ends. Run calls it when it has stopped fetching, before it waits for the last
	// attempts.
	Release(ctx context.Context) error
	// Nodes returns the nodes that are open, in the order they were opened; at most 1,000. A
	// node that has died is among them until its last heartbeat is too old.
	Nodes(ctx context.Context) ([]Node, error)
}

// MaxNote is how many bytes the Note of a Node has at most.
const MaxNote = 4096

// A Node is one Store value that is open on a shared store.
type Node struct {
	// Name is what its process calls it.
	Name string
	// Self says that it is the node that was asked.
	Self bool
	// Opened is when it was opened, or began again after others had judged it dead. Seen is its
	// last heartbeat. Both are by the store's clock, and zero if they are not known.
	Opened, Seen time.Time
	// Note is the text that it presents.
	Note []byte
}
