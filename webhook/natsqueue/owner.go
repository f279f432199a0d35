package natsqueue

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/hookferry/analytics/webhook"
)

// A node keeps this node among those that share the store: it gives heartbeats, and takes
// and gives away partitions.
type node struct {
	*recorder
	speak  chan struct{} // asks for a heartbeat
	ruling sync.Mutex    // one look at who owns what at a time

	// Guarded by index.mu.
	opened  int64 // when, by the server's clock, in microseconds; 0 if that is not known yet
	leaving bool  // for good
	note    func() ([]byte, bool)
	steady  time.Time // since when all heartbeats were stored
	latest  uint64    // the sequence of the latest heartbeat
}

// live gives heartbeats until the Store is closed.
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
			s.config.Logger.Warn("natsqueue: no heartbeat is stored; after most of a claim nothing is attempted until one is", "error", err)
		case err == nil && silent:
			silent = false
			s.config.Logger.Info("natsqueue: heartbeats are stored again")
			for _, p := range s.mine() {
				s.mu.Lock()
				p.tellAll()
				s.mu.Unlock()
			}
		}
		if errors.Is(err, nats.ErrNoResponders) {
			s.restore()
		}
		signal(s.look)
	}
}

// newStream is how far the sequences of a stream that is created anew are behind the last.
const newStream = 1 << 32

// restore creates the stream if somebody has deleted it.
func (s *node) restore() {
	ctx, cancel := context.WithTimeout(s.background, callTimeout)
	defer cancel()
	_, err := s.js.Stream(ctx, s.config.Stream)
	if !errors.Is(err, jetstream.ErrStreamNotFound) || s.config.NoCreate {
		return
	}
	// Its sequences begin far behind those of the old one, so that what nodes still ask for of that
	// purges nothing of this one.
	stream := s.config.stream(s.config.Replicas)
	s.mu.Lock()
	stream.FirstSeq = s.latest + newStream
	s.mu.Unlock()
	if _, err = s.js.CreateStream(ctx, stream); err == nil {
		s.config.Logger.Error("natsqueue: the stream was deleted, and is created anew; what waited in it is lost", "stream", s.config.Stream)
		signal(s.speak)
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
func (s *node) beat(ctx context.Context) error {
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
	c := &parcel{vital: true, messages: []*nats.Msg{{Subject: s.config.heartbeat(s.id), Data: data, Header: nats.Header{
		headerRollup: {"sub"}, headerTTL: {strconv.Itoa(int(ttl/time.Second)) + "s"},
	}}}}
	if err = s.store(ctx, c); err == nil {
		s.mu.Lock()
		another := s.latest > 0 && (c.seq < s.latest || c.seq >= s.latest+newStream)
		s.latest = c.seq
		s.mu.Unlock()
		if another { // the stream is a new one: what is owned was of the old
			for _, p := range s.mine() {
				s.mu.Lock()
				p.yield()
				s.mu.Unlock()
			}
		}
		err = s.confirm(ctx)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failed = err; err != nil {
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
func (s *node) confirm(ctx context.Context) error {
	s.mu.Lock()
	lapsed := s.lapsed() != nil
	s.mu.Unlock()
	if !lapsed {
		return nil
	}
	var writes []*write
	for _, p := range s.mine() {
		writes = append(writes, newWrite(p))
	}
	return s.write(ctx, writes...)
}

// rule looks at who owns what when that may have changed, until the Store is closed.
func (s *node) rule() {
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
func (s *node) oversee(ctx context.Context) error {
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
	var wanted []int
	var releases []*write
	drained := true
	s.mu.Lock()
	for n, h := range holdings {
		p := s.owned[n]
		mine := heir(peers, n) == s.id
		switch {
		case p != nil && !mine:
			if p.state == open {
				p.state = draining
			}
			if p.claimed > 0 {
				drained = false
				continue
			}
			w := newWrite(p)
			w.release = true
			releases = append(releases, w)
		case p != nil && p.state == draining:
			p.state = open
			p.tellAll()
		case p == nil && mine && (h.node == "" || h.node == s.id || !slices.ContainsFunc(peers, func(x peer) bool { return x.id == h.node })):
			wanted = append(wanted, n)
		}
	}
	leaving := s.leaving
	s.mu.Unlock()
	if !drained {
		time.AfterFunc(drainEvery, func() { signal(s.look) }) // what is claimed ends soon
	}
	if len(releases) > 0 {
		if err := s.write(looking, releases...); err != nil {
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

// drainEvery is how often a node looks whether the claims in a partition have ended.
const drainEvery = 20 * time.Millisecond

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
func (s *node) peers(ctx context.Context) ([]peer, error) {
	var all []peer
	var now time.Time
	for { // a replica may not have the heartbeat of this node yet
		page, err := s.lasts(ctx, s.config.heartbeat("*"))
		if err != nil {
			return nil, err
		}
		all = all[:0]
		for _, m := range page {
			n := peer{id: m.subject[len(s.config.heartbeat("")):], at: m.at.UTC()}
			json.Unmarshal(m.data, &n.heartbeat) // one that cannot be read is a heartbeat all the same
			if n.self = n.id == s.id; n.self {
				now = n.at
			}
			if n.Opened == 0 {
				n.Opened = n.at.UnixMicro()
			}
			all = append(all, n)
		}
		if !now.IsZero() {
			break
		}
		if sleep(ctx, behind) != nil {
			return nil, errors.New("natsqueue: the heartbeat of this node is gone")
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	judge := s.lapsed() == nil && time.Since(s.steady) >= s.config.Claim
	return slices.DeleteFunc(all, func(n peer) bool {
		if n.self && s.opened == 0 {
			s.opened = n.Opened
		}
		age := now.Sub(n.at)
		if age > s.config.Claim/2 && age <= s.config.Claim { // it has missed one: look again once it is dead
			time.AfterFunc(s.config.Claim-age+time.Millisecond, func() { signal(s.speak) })
		}
		return judge && age > s.config.Claim
	}), nil
}

// heir returns who of the nodes is to own the partition n: each is as likely, and most
// stay where they are when nodes come and go.
func heir(peers []peer, n int) string {
	weight := func(id string) uint64 {
		h := sha256.Sum256([]byte(id + " " + strconv.Itoa(n)))
		return binary.BigEndian.Uint64(h[:])
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
func (s *node) holdings(ctx context.Context) ([]holding, error) {
	page, err := s.lasts(ctx, s.config.Stream+".*."+kindOwn)
	if err != nil {
		return nil, err
	}
	all := make([]holding, s.config.Partitions)
	for _, m := range page {
		var n int
		if _, err := fmt.Sscanf(m.subject[len(s.config.Stream):], ".%d.", &n); err != nil || n < 0 || n >= len(all) {
			continue // somebody else's
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
func (s *node) take(ctx context.Context, n int, h holding) error {
	p := newPartition(s.index, n)
	s.mu.Lock()
	s.serial++
	r := record{node: s.id, serial: s.serial}
	s.mu.Unlock()
	c := &parcel{vital: true, messages: []*nats.Msg{expect(p.prefix+kindOwn, h.seq, r.append(nil), false)}}
	err := s.store(ctx, c)
	if err != nil {
		p.end()
	}
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
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.background.Err() != nil || s.leaving { // others take it once this node is gone
		p.end()
		return s.background.Err()
	}
	s.owned[n] = p
	s.goroutines.Go(p.follow)
	return nil
}

// Present implements webhook.Shared.
func (s *node) Present(note func() ([]byte, bool)) {
	s.mu.Lock()
	s.note = note
	s.mu.Unlock()
	signal(s.speak)
}

// maxNodes is how many Nodes returns at most.
const maxNodes = 1000

// Nodes implements webhook.Shared.
func (s *node) Nodes(ctx context.Context) ([]webhook.Node, error) {
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
func (s *node) Release(ctx context.Context) error {
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
