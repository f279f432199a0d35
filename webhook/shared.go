package webhook

import (
	"context"
	"time"
)

// Shared is implemented by a Store that several nodes, usually in several processes, have open at
// once. Each node stores a heartbeat at intervals. When the last heartbeat of a node is too old,
// its claims end, and it may no longer settle them.
//
// A node stops fetching and settling before other nodes may judge it dead. It measures the age of
// its last heartbeat by both the wall clock and the monotonic clock, and goes by the larger age.
// Let A be the age at which a heartbeat is too old: a node judges another node dead only if its own
// heartbeats had no gap during the last A.
type Shared interface {
	// Present makes the store call the function note for each heartbeat, until Close. The function
	// returns a text that Nodes shows for this node, and whether the node is alive. A text of more
	// than MaxNote bytes is left out. While the node is not alive, the store sends no heartbeat.
	// The function must not block.
	Present(note func() (note []byte, alive bool))
	// Release lets other nodes fetch the deliveries that the store holds ready for this node and
	// has not handed out by Fetch or Put. After Release, other nodes can also fetch each delivery
	// whose claim ends. Run calls Release before it waits for the last attempts.
	Release(ctx context.Context) error
	// Nodes returns the nodes that are open, in the order in which they were opened; at most 1,000.
	// A node that has died is still included until its last heartbeat is too old.
	Nodes(ctx context.Context) ([]Node, error)
}

// MaxNote bounds the Note of a Node, in bytes.
const MaxNote = 4096

// A Node is one Store value that is open on a shared store.
type Node struct {
	Name string // the name that its process has given it
	// Self marks the node on which Nodes was called.
	Self bool
	// Opened is when the node was opened, or when it started over after other nodes had judged it
	// dead. Seen is the time of its last heartbeat. Both are zero if they are not known.
	Opened, Seen time.Time
	Note         []byte // see Shared.Present
}
