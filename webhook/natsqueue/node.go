package natsqueue

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/hookferry/analytics/webhook/store"
)

// A node is this process among those that share the store. It sends heartbeats, and reads those of
// the others.
type node struct {
	conn       *conn
	life       *lifetime
	lease      *lease
	partitions *partitions
	recorder   *recorder
	opened     int64                                 // when the Store was opened, in microseconds
	speak      store.Signal                          // asks for a heartbeat
	latest     atomic.Uint64                         // the sequence of the latest heartbeat
	note       atomic.Pointer[func() ([]byte, bool)] // see Present
}

// A heartbeat is the message by which a node proves that it is alive. It replaces the node's
// previous heartbeat.
type heartbeat struct {
	Name    string
	Opened  int64 // when the node was opened, in microseconds, by its own clock
	Leaving bool
	Note    []byte
}

// live sends heartbeats until the Store is closed.
func (nd *node) live() {
	tick := time.NewTicker(nd.conn.config.Claim / 3)
	defer tick.Stop()
	silent := false
	for {
		select {
		case <-tick.C:
		case <-nd.speak:
		case <-nd.life.ctx.Done():
			return
		}
		ctx, cancel := context.WithTimeout(nd.life.ctx, nd.conn.config.Claim/3)
		err := nd.beat(ctx)
		cancel()
		switch {
		case err != nil && nd.life.ctx.Err() == nil && !silent:
			silent = true
			nd.conn.config.Logger.Warn("natsqueue: could not store a heartbeat; if this goes on, this node attempts no deliveries until a heartbeat is stored", "error", err)
		case err == nil && silent:
			silent = false
			nd.conn.config.Logger.Info("natsqueue: heartbeats are stored again")
			nd.partitions.index.tellAll()
		}
		switch {
		case errors.Is(err, jetstream.ErrNoStreamResponse):
			nd.restore()
		case errors.Is(err, context.DeadlineExceeded):
			nd.conn.nc.ForceReconnect() // to another server: this one may be cut off from the others
		}
		nd.partitions.look.Set()
	}
}

// beat stores a heartbeat, unless the forwarder makes no progress. If the previous heartbeat is so
// old that other nodes may have taken over, beat also writes a record in each partition. Such a
// record fails if another node owns the partition now.
func (nd *node) beat(ctx context.Context) error {
	h := heartbeat{Name: nd.conn.config.Node, Opened: nd.opened, Leaving: nd.partitions.leaving.Load()}
	if note := nd.note.Load(); note != nil {
		alive := true
		if h.Note, alive = (*note)(); !alive {
			return errors.New("natsqueue: the forwarder of this node makes no progress")
		}
		if len(h.Note) > store.MaxNote {
			h.Note = nil
		}
	}
	sent := time.Now()
	c := one(nd.conn.config.heartbeat(nd.conn.id), encode(h), headerRollup, "sub", headerTTL, max(24*nd.conn.config.Claim, time.Hour).String())
	c.vital = true
	err := nd.conn.store(ctx, c)
	if err == nil {
		lapsed := nd.lease.lapsed() != nil
		if latest := nd.latest.Swap(c.seq); latest > 0 && (c.seq < latest || c.seq >= latest+newStream) {
			// The partitions of this node were in a stream that somebody has deleted.
			for _, p := range nd.partitions.mine() {
				p.taken()
			}
		}
		if lapsed {
			err = nd.recorder.write(ctx, writesOf(nd.partitions.mine(), false)...)
		}
	}
	nd.lease.prolong(sent, err)
	return err
}

// newStream is the distance between the last sequence of a deleted stream and the first of the new
// one.
const newStream = 1 << 32

// restore creates the stream again if somebody has deleted it. Its sequences begin far beyond the old
// ones, so that a late purge that was meant for the old stream removes nothing from the new one.
func (nd *node) restore() {
	ctx, cancel := context.WithTimeout(nd.life.ctx, callTimeout)
	defer cancel()
	if _, err := nd.conn.js.Stream(ctx, nd.conn.config.Stream); !errors.Is(err, jetstream.ErrStreamNotFound) {
		return
	}
	stream := nd.conn.config.stream(nd.conn.config.Replicas)
	stream.FirstSeq = nd.latest.Load() + newStream
	if _, err := nd.conn.js.CreateStream(ctx, stream); err == nil {
		nd.conn.config.Logger.Error("natsqueue: somebody deleted the stream; a new one was created, but all deliveries, dead letters and settings in the old one are lost", "stream", nd.conn.config.Stream)
		nd.speak.Set()
	}
}

// A peer is a node that shares the store, as its last heartbeat describes it.
type peer struct {
	id  string
	seq uint64    // of the heartbeat
	at  time.Time // of the heartbeat, by the server's clock
	heartbeat
}

// peers returns the live nodes, including this one, and the dead nodes. It knows all heartbeats up
// to the sequence since. A node is dead if its last heartbeat is older than Claim. But no node can
// store heartbeats while the servers are away. So this node calls others dead only if it has stored
// all of its own heartbeats for at least Claim.
func (nd *node) peers(ctx context.Context, since uint64) (live, dead []peer, err error) {
	page, err := nd.conn.lasts(ctx, max(since, nd.latest.Load()), nd.conn.config.heartbeat("*"))
	own := slices.IndexFunc(page, func(m *jetstream.RawStreamMsg) bool { return m.Subject == nd.conn.config.heartbeat(nd.conn.id) })
	if err == nil && own < 0 {
		err = errors.New("natsqueue: the stream does not have the heartbeat of this node")
	}
	if err != nil {
		return nil, nil, err
	}
	judges := nd.lease.judges()
	for _, m := range page {
		n := peer{id: m.Subject[len(nd.conn.config.heartbeat("")):], seq: m.Sequence, at: m.Time.UTC()}
		decode(m.Data, &n.heartbeat) // an unreadable heartbeat proves life, too
		age := page[own].Time.Sub(m.Time)
		if age > nd.conn.config.Claim/2 && age <= nd.conn.config.Claim { // it has missed a heartbeat: check again when its Claim is over
			time.AfterFunc(nd.conn.config.Claim-age+time.Millisecond, func() { nd.speak.Set() })
		}
		if judges && age > nd.conn.config.Claim {
			dead = append(dead, n)
		} else {
			live = append(live, n)
		}
	}
	return live, dead, nil
}

// maxNodes is the most nodes that Nodes returns. It is also the most messages that the server returns
// for a request with MultiLast.
const maxNodes = 1000
