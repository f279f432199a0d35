package natsqueue

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/hookferry/analytics/webhook"
)

// live gives heartbeats until the Store is closed.
func (s *Store) live() {
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
			s.config.Logger.Warn("natsqueue: no heartbeat is stored; after most of a claim nothing is attempted until one is", "error", err)
		case err == nil && silent:
			silent = false
			s.config.Logger.Info("natsqueue: heartbeats are stored again")
			s.mu.Lock()
			for name := range s.lanes {
				s.tell(name)
			}
			s.mu.Unlock()
		}
		s.govern()
	}
}

// A heartbeat is the message of a node.
type heartbeat struct {
	Name string `json:"name"`
	// Opened is when the first one was stored, in microseconds; 0 in the first.
	Opened int64 `json:"opened,omitempty"`
	// Leaving: the node owns nothing from now on.
	Leaving bool   `json:"leaving,omitempty"`
	Note    []byte `json:"note,omitempty"`
}

// heartbeat is the subject of the heartbeats of a node.
func (c *Config) heartbeat(node string) string { return c.Stream + ".node." + node }

// beat gives a heartbeat, if the node is alive. After a time in which others may have taken it
// for dead, it asks for every partition whether it is still this node's.
func (s *Store) beat(ctx context.Context) error {
	s.mu.Lock()
	h := heartbeat{Name: s.config.Node, Opened: s.opened, Leaving: s.leaving}
	present := s.note
	s.mu.Unlock()
	if present != nil {
		alive := true
		if h.Note, alive = present(); !alive {
			return errors.New("natsqueue: the node makes no progress")
		}
		if len(h.Note) > webhook.MaxNote {
			h.Note = nil
		}
	}
	data, err := json.Marshal(h)
	if err != nil {
		return err
	}
	sent := time.Now()
	ttl := max(24*s.config.Claim, time.Hour)
	err = s.store(ctx, &parcel{messages: []*nats.Msg{{Subject: s.config.heartbeat(s.id), Data: data, Header: nats.Header{
		headerRollup: {"sub"}, headerTTL: {strconv.Itoa(int(ttl/time.Second)) + "s"},
	}}}})
	if err == nil {
		err = s.confirm(ctx)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lastErr = err; err != nil {
		return err
	}
	if last := s.until.Add(-s.config.trusted()); sent.Sub(last) > s.config.Claim*2/3 { // one was missed
		s.steady = sent
	}
	s.until = sent.Add(s.config.trusted())
	return nil
}

// trusted is how long a node relies on a heartbeat that it sent.
func (c *Config) trusted() time.Duration { return c.Claim * 9 / 10 }

// confirm writes a record in each partition, if others may have taken over: so the node
// learns which are still its own.
func (s *Store) confirm(ctx context.Context) error {
	s.mu.Lock()
	w := &write{done: make(chan struct{})}
	if s.lapsed() != nil {
		for _, p := range s.owned {
			if p != nil {
				w.owed = append(w.owed, p)
			}
		}
	}
	s.mu.Unlock()
	if len(w.owed) == 0 {
		return nil
	}
	return s.write(ctx, w)
}

// govern asks for a look at who owns what.
func (s *Store) govern() {
	select {
	case s.look <- struct{}{}:
	default:
	}
}

// rule looks at who owns what when that may have changed, until the Store is closed.
func (s *Store) rule() {
	for {
		select {
		case <-s.look:
		case <-s.background.Done():
			return
		}
		if err := s.oversee(s.background); err != nil && s.background.Err() == nil {
			s.config.Logger.Debug("natsqueue: the look at who owns what failed", "error", err)
		}
	}
}

// A holding is what the stream says of the owner of a partition.
type holding struct {
	seq  uint64 // of the last record, 0 if there is none
	node string
}

// oversee takes the partitions that are this node's to take, and gives away
// those that are others'.
func (s *Store) oversee(ctx context.Context) error {
	s.ruling.Lock()
	defer s.ruling.Unlock()
	// Who asks a leader that is out of reach gets no answer, and is to ask again.
	looking, cancel := context.WithTimeout(ctx, max(time.Second, s.config.Claim/3))
	defer cancel()
	peers, err := s.peers(looking)
	if err != nil {
		return err
	}
	holdings, err := s.holdings(looking)
	if err != nil {
		return err
	}
	if err := s.askLeader(looking, holdings); err != nil {
		return err
	}
	var wanted []int
	w := &write{done: make(chan struct{})}
	drained := true
	s.mu.Lock()
	for n, h := range holdings {
		p := s.owned[n]
		mine := heir(peers, n) == s.id
		if p != nil && h.node != s.id {
			s.yield(p)
			p = nil
		}
		switch {
		case p != nil && !mine:
			p.draining = true
			if s.claimed(p) {
				drained = false
			} else {
				w.release = append(w.release, p)
			}
		case p != nil && p.draining:
			p.draining = false
			s.tellAll(p)
		case p == nil && mine && (h.node == "" || h.node == s.id || !slices.ContainsFunc(peers, func(x peer) bool { return x.id == h.node })):
			wanted = append(wanted, n)
		}
	}
	leaving := s.leaving
	s.mu.Unlock()
	if !drained {
		time.AfterFunc(drainEvery, s.govern) // what is claimed ends soon
	}
	if len(w.release) > 0 {
		if err := s.write(looking, w); err != nil {
			return err
		}
		s.nc.Publish(s.config.ask("look"), nil)
	}
	if leaving {
		return nil
	}
	errs := make([]error, len(wanted))
	var wg sync.WaitGroup
	for i, n := range wanted {
		wg.Go(func() { errs[i] = s.take(ctx, n, holdings[n]) })
	}
	wg.Wait()
	return cmp.Or(errs...)
}

// askLeader asks for the holdings again, where they have another owner than this node for what it
// owns: a replica may be behind. Or the stream is a new one, as somebody has deleted it.
func (s *Store) askLeader(ctx context.Context, holdings []holding) error {
	for n := range holdings {
		s.mu.Lock()
		p := s.owned[n]
		s.mu.Unlock()
		if p == nil || holdings[n].node == s.id {
			continue
		}
		seq, data, err := s.last(ctx, p.prefix+kindOwn)
		if err != nil {
			return err
		}
		holdings[n] = holding{seq: seq}
		if r, err := parseRecord(data); err == nil {
			holdings[n].node = r.node
		}
	}
	return nil
}

// drainEvery is how often a node looks whether the claims in a partition have ended.
const drainEvery = 20 * time.Millisecond

// claimed reports whether something in p is claimed. The store is locked.
func (s *Store) claimed(p *partition) bool {
	for _, e := range s.claims {
		if e.block.p == p {
			return true
		}
	}
	return false
}

// tellAll has Heads yield the lanes of p. The store is locked.
func (s *Store) tellAll(p *partition) {
	for name, l := range s.lanes {
		if l.p == p {
			s.tell(name)
		}
	}
}

// A peer is a node that shares the store, as its last heartbeat says.
type peer struct {
	id   string
	at   time.Time // of the heartbeat, by the server's clock
	self bool
	heartbeat
}

// peers returns the nodes that live, this one among them. When the server was away
// nobody could give heartbeats: so only who has given all of its own for a whole claim, up
// to now, takes others for dead.
func (s *Store) peers(ctx context.Context) ([]peer, error) {
	page, err := s.lasts(ctx, s.config.heartbeat("*"))
	if err != nil {
		return nil, err
	}
	var all []peer
	var now time.Time
	for _, m := range page {
		n := peer{id: m.subject[len(s.config.heartbeat("")):], at: m.at.UTC()}
		if err := json.Unmarshal(m.data, &n.heartbeat); err != nil {
			return nil, fmt.Errorf("natsqueue: a heartbeat of %s: %w", n.id, err)
		}
		if n.self = n.id == s.id; n.self {
			now = n.at
		}
		if n.Opened == 0 {
			n.Opened = n.at.UnixMicro()
		}
		all = append(all, n)
	}
	if now.IsZero() {
		return nil, errors.New("natsqueue: the heartbeat of this node is gone")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	judge := s.lapsed() == nil && time.Since(s.steady) >= s.config.Claim
	return slices.DeleteFunc(all, func(n peer) bool {
		if n.self && s.opened == 0 {
			s.opened = n.Opened
		}
		return judge && now.Sub(n.at) > s.config.Claim
	}), nil
}

// lasts returns the last messages of the subjects that match. A replica may have answered that
// is a little behind.
func (s *Store) lasts(ctx context.Context, subjects string) ([]stored, error) {
	pages, err := s.read(ctx, request{MultiLast: []string{subjects}, Batch: maxNodes})
	if err != nil {
		return nil, err
	}
	return pages[0], nil
}

// heir returns who of the nodes is to own the partition n: each is as likely, and most
// stay where they are when nodes come and go.
func heir(peers []peer, n int) string {
	weight := func(id string) uint64 {
		h := fnv.New64a()
		h.Write([]byte(id))
		h.Write([]byte(strconv.Itoa(n)))
		x := h.Sum64()
		x ^= x >> 33
		x *= 0xff51afd7ed558ccd // what differs in the last bytes is to differ in all bits
		return x ^ x>>33
	}
	first, most := "", uint64(0)
	for _, x := range peers {
		if w := weight(x.id); !x.Leaving && (first == "" || w > most || w == most && x.id > first) {
			first, most = x.id, w
		}
	}
	return first
}

// holdings returns what the stream says of all partitions. It may be a little old,
// which taking one finds out.
func (s *Store) holdings(ctx context.Context) ([]holding, error) {
	page, err := s.lasts(ctx, s.config.Stream+".*."+kindOwn)
	if err != nil {
		return nil, err
	}
	all := make([]holding, s.config.Partitions)
	for _, m := range page {
		var n int
		if _, err := fmt.Sscanf(m.subject[len(s.config.Stream):], ".%d.", &n); err != nil || n < 0 || n >= len(all) {
			return nil, fmt.Errorf("natsqueue: no partition has the subject %q", m.subject)
		}
		all[n].seq = m.seq
		if r, err := parseRecord(m.data); err == nil { // else nobody can go on with it, so it is for the taking
			all[n].node = r.node
		}
	}
	return all, nil
}

// take makes this node the owner of the partition n, unless the partition is no
// longer held as h says.
func (s *Store) take(ctx context.Context, n int, h holding) error {
	p := &partition{n: n, prefix: s.config.prefix(n), ready: make(chan struct{}), blocks: make(map[uint64]*block)}
	s.mu.Lock()
	s.serial++
	r := record{node: s.id, serial: s.serial}
	s.mu.Unlock()
	c := &parcel{messages: []*nats.Msg{expect(p.prefix+kindOwn, h.seq, r.append(nil), false)}}
	err := s.store(ctx, c)
	if errors.Is(err, errChanged) {
		return nil // somebody else was first, or an answer was lost: the next look tells
	}
	if err != nil {
		return err
	}
	if h.node != "" {
		s.config.Logger.Warn("natsqueue: took over a partition", "partition", n, "from", h.node)
	}
	p.epoch, p.last = c.seq, c.seq
	p.context, p.end = context.WithCancel(s.background)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.background.Err() != nil || s.leaving { // others take it once this node is gone
		p.end()
		return s.background.Err()
	}
	s.owned[n] = p
	s.goroutines.Go(func() { s.follow(p) })
	return nil
}

// Present implements webhook.Shared.
func (s *Store) Present(note func() ([]byte, bool)) {
	s.mu.Lock()
	s.note = note
	s.mu.Unlock()
	select {
	case s.speak <- struct{}{}:
	default:
	}
}

// maxNodes is how many Nodes returns at most.
const maxNodes = 1000

// Nodes implements webhook.Shared.
func (s *Store) Nodes(ctx context.Context) ([]webhook.Node, error) {
	if err := s.enter(ctx); err != nil {
		return nil, err
	}
	defer s.calls.Leave()
	all, err := s.peers(ctx)
	if err != nil {
		return nil, fmt.Errorf("natsqueue: listing nodes: %w", err)
	}
	slices.SortFunc(all, func(a, b peer) int {
		return cmp.Or(cmp.Compare(a.Opened, b.Opened), cmp.Compare(a.id, b.id))
	})
	nodes := make([]webhook.Node, 0, len(all))
	for _, n := range all[:min(len(all), maxNodes)] {
		nodes = append(nodes, webhook.Node{
			Name: n.Name, Self: n.self, Opened: time.UnixMicro(n.Opened).UTC(), Seen: n.at, Note: n.Note,
		})
	}
	return nodes, nil
}

// Release implements webhook.Shared. A partition of which something is claimed is given
// away once that is settled.
func (s *Store) Release(ctx context.Context) error {
	if err := s.enter(ctx); err != nil {
		return err
	}
	defer s.calls.Leave()
	s.mu.Lock()
	s.leaving = true
	s.mu.Unlock()
	err := s.beat(ctx)
	if err == nil {
		err = s.oversee(ctx)
	}
	if err != nil {
		return fmt.Errorf("natsqueue: giving away what is owned: %w", err)
	}
	return s.nc.Publish(s.config.ask("look"), nil)
}
