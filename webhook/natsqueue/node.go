package natsqueue

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/hookferry/analytics/webhook/store"
)

// A node is this process among those that share the store. It sends heartbeats, takes partitions and
// gives them away. It asks other nodes about their partitions, and answers their questions.
type node struct {
	*recorder
	opened int64         // when the Store was opened, in microseconds
	speak  chan struct{} // asks for a heartbeat
	ruling sync.Mutex    // held while the node checks the owners of partitions

	// Guarded by index.mu.
	steady  time.Time             // all heartbeats since then were stored
	latest  uint64                // the sequence of the latest heartbeat
	leaving bool                  // the node takes no more partitions
	note    func() ([]byte, bool) // see Present
}

// A heartbeat is the message by which a node proves that it is alive. It replaces the node's
// previous heartbeat.
type heartbeat struct {
	Name    string
	Opened  int64 // when the node was opened, in microseconds, by its own clock
	Leaving bool
	Note    []byte
}

// trusted is how long a node relies on its own heartbeat. It is shorter than Claim, so a node stops
// before other nodes take over.
func (c *Config) trusted() time.Duration { return c.Claim * 9 / 10 }

// live sends heartbeats until the Store is closed.
func (s *node) live() {
	tick := time.NewTicker(s.config.Claim / 3)
	defer tick.Stop()
	silent := false
	for {
		select {
		case <-tick.C:
		case <-s.speak:
		case <-s.background.Done():
			return
		}
		ctx, cancel := context.WithTimeout(s.background, s.config.Claim/3)
		err := s.beat(ctx)
		cancel()
		switch {
		case err != nil && s.background.Err() == nil && !silent:
			silent = true
			s.config.Logger.Warn("natsqueue: could not store a heartbeat; if this goes on, this node attempts no deliveries until a heartbeat is stored", "error", err)
		case err == nil && silent:
			silent = false
			s.config.Logger.Info("natsqueue: heartbeats are stored again")
			s.mu.Lock()
			for name := range s.lanes {
				s.tell(name)
			}
			s.mu.Unlock()
		}
		switch {
		case errors.Is(err, jetstream.ErrNoStreamResponse):
			s.restore()
		case errors.Is(err, context.DeadlineExceeded):
			s.nc.ForceReconnect() // to another server: this one may be cut off from the others
		}
		signal(s.look)
	}
}

// beat stores a heartbeat, unless the forwarder makes no progress. If the previous heartbeat is so
// old that other nodes may have taken over, beat also writes a record in each partition. Such a
// record fails if another node owns the partition now.
func (s *node) beat(ctx context.Context) error {
	s.mu.Lock()
	h := heartbeat{Name: s.config.Node, Opened: s.opened, Leaving: s.leaving}
	note := s.note
	s.mu.Unlock()
	if note != nil {
		alive := true
		if h.Note, alive = note(); !alive {
			return errors.New("natsqueue: the forwarder of this node makes no progress")
		}
		if len(h.Note) > store.MaxNote {
			h.Note = nil
		}
	}
	sent := time.Now()
	c := one(s.config.heartbeat(s.id), encode(h), headerRollup, "sub", headerTTL, max(24*s.config.Claim, time.Hour).String())
	c.vital = true
	err := s.store(ctx, c)
	if err == nil {
		s.mu.Lock()
		recreated := s.latest > 0 && (c.seq < s.latest || c.seq >= s.latest+newStream)
		s.latest = c.seq
		lapsed := s.lapsed() != nil
		for _, p := range s.owned {
			if recreated && p != nil { // the partitions of this node were in the deleted stream
				p.yield()
			}
		}
		s.mu.Unlock()
		if lapsed {
			err = s.write(ctx, writesOf(s.mine(), false)...)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failed = err; err != nil {
		return err
	}
	last := s.until.Add(-s.config.trusted())
	if max(sent.Sub(last), sent.Round(0).Sub(last.Round(0))) > s.config.Claim*2/3 { // a heartbeat was missed; see lapsed for the two clocks
		s.steady = sent
	}
	s.until = sent.Add(s.config.trusted())
	return nil
}

// newStream is the distance between the last sequence of a deleted stream and the first of the new
// one.
const newStream = 1 << 32

// restore creates the stream again if somebody has deleted it. Its sequences begin far beyond the old
// ones, so that a late purge that was meant for the old stream removes nothing from the new one.
func (s *node) restore() {
	ctx, cancel := context.WithTimeout(s.background, callTimeout)
	defer cancel()
	if _, err := s.js.Stream(ctx, s.config.Stream); !errors.Is(err, jetstream.ErrStreamNotFound) {
		return
	}
	stream := s.config.stream(s.config.Replicas)
	s.mu.Lock()
	stream.FirstSeq = s.latest + newStream
	s.mu.Unlock()
	if _, err := s.js.CreateStream(ctx, stream); err == nil {
		s.config.Logger.Error("natsqueue: somebody deleted the stream; a new one was created, but all deliveries, dead letters and settings in the old one are lost", "stream", s.config.Stream)
		signal(s.speak)
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
func (s *node) peers(ctx context.Context, since uint64) (live, dead []peer, err error) {
	s.mu.Lock()
	since = max(since, s.latest)
	s.mu.Unlock()
	page, err := s.lasts(ctx, since, s.config.heartbeat("*"))
	own := slices.IndexFunc(page, func(m *jetstream.RawStreamMsg) bool { return m.Subject == s.config.heartbeat(s.id) })
	if err == nil && own < 0 {
		err = errors.New("natsqueue: the stream does not have the heartbeat of this node")
	}
	if err != nil {
		return nil, nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	judges := s.lapsed() == nil && time.Since(s.steady) >= s.config.Claim
	for _, m := range page {
		n := peer{id: m.Subject[len(s.config.heartbeat("")):], seq: m.Sequence, at: m.Time.UTC()}
		decode(m.Data, &n.heartbeat) // an unreadable heartbeat proves life, too
		age := page[own].Time.Sub(m.Time)
		if age > s.config.Claim/2 && age <= s.config.Claim { // it has missed a heartbeat: check again when its Claim is over
			time.AfterFunc(s.config.Claim-age+time.Millisecond, func() { signal(s.speak) })
		}
		if judges && age > s.config.Claim {
			dead = append(dead, n)
		} else {
			live = append(live, n)
		}
	}
	return live, dead, nil
}

// Present implements store.Shared.
func (s *node) Present(note func() ([]byte, bool)) {
	s.mu.Lock()
	s.note = note
	s.mu.Unlock()
	signal(s.speak)
}

// maxNodes is the most nodes that Nodes returns. It is also the most messages that the server returns
// for a request with MultiLast.
const maxNodes = 1000

// Nodes implements store.Shared.
func (s *node) Nodes(ctx context.Context) ([]store.Node, error) {
	return call(ctx, s.conn, "listing nodes", func() (nodes []store.Node, _ error) {
		all, _, err := s.peers(ctx, 0)
		slices.SortFunc(all, func(a, b peer) int {
			return cmp.Or(cmp.Compare(a.Opened, b.Opened), cmp.Compare(a.id, b.id))
		})
		for _, n := range all {
			nodes = append(nodes, store.Node{
				Name: n.Name, Self: n.id == s.id, Opened: time.UnixMicro(min(n.Opened, n.at.UnixMicro())).UTC(), Seen: n.at, Note: n.Note,
			})
		}
		return nodes, err
	})
}
