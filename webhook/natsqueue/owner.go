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
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"

	"github.com/hookferry/analytics/webhook"
)

// live gives signs of life until the Queue is closed.
func (q *Queue) live() {
	tick := time.NewTicker(q.config.Claim / 3)
	defer tick.Stop()
	silent := false
	for {
		select {
		case <-tick.C:
		case <-q.speak:
		case <-q.background.Done():
			return
		}
		ctx, cancel := context.WithTimeout(q.background, q.config.Claim/3)
		err := q.beat(ctx)
		cancel()
		switch {
		case err != nil && q.background.Err() == nil && !silent:
			silent = true
			q.config.Logger.Warn("natsqueue: the server does not answer", "error", err)
		case err == nil && silent:
			silent = false
			q.config.Logger.Info("natsqueue: the server answers again")
			q.awake()
		}
		q.govern()
	}
}

// A sign is a sign of life: the message of a process.
type sign struct {
	Name string `json:"name"`
	// Opened is when the first sign was stored, in microseconds; 0 in the first.
	Opened int64 `json:"opened,omitempty"`
	// Leaving: it owns nothing from now on.
	Leaving bool   `json:"leaving,omitempty"`
	Note    []byte `json:"note,omitempty"`
}

// beat gives a sign of life.
func (q *Queue) beat(ctx context.Context) error {
	q.mu.Lock()
	s := sign{Name: q.config.Node, Opened: q.opened, Leaving: q.leaving}
	present := q.note
	q.mu.Unlock()
	if present != nil {
		if s.Note = present(); len(s.Note) > webhook.MaxNote {
			s.Note = nil
		}
	}
	data, err := json.Marshal(s)
	if err != nil {
		return err
	}
	sent := time.Now()
	err = q.publisher.store(ctx, &message{subject: q.config.nodes() + "." + q.id, data: data})
	if err == nil && q.lapsed() {
		err = q.confirm(ctx)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.lastErr = err; err != nil {
		return err
	}
	if last := q.until.Add(-q.config.trusted()); sent.Sub(last) > q.config.Claim*2/3 { // one was missed
		q.steady = sent
	}
	q.until = sent.Add(q.config.trusted())
	return nil
}

// trusted is how long a process relies on a sign of life that it sent.
func (c *Config) trusted() time.Duration { return c.Claim * 9 / 10 }

// lapsed reports whether others may have taken over what this process owns.
func (q *Queue) lapsed() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return !q.until.IsZero() && time.Now().After(q.until)
}

// confirm loses the partitions that others have taken over while no sign of life was stored:
// for each that is owned it stores a record of no epoch, which says nothing, if its deed
// is still the last.
func (q *Queue) confirm(ctx context.Context) error {
	var all []*partition
	var messages []*message
	q.mu.Lock()
	for _, p := range q.owned {
		if p == nil {
			continue
		}
		all = append(all, p)
		messages = append(messages, &message{subject: p.prefix + kindDone, data: appendRecord(nil, nil), header: nats.Header{
			headerExpected: {decimal(p.epoch)}, headerExpectedOf: {p.prefix + kindOwner},
			headerEpoch: {decimal(0)}, headerID: {nuid.Next()},
		}})
	}
	q.mu.Unlock()
	err := q.publisher.send(ctx, messages...)
	q.mu.Lock()
	defer q.mu.Unlock()
	for i, m := range messages {
		if errors.Is(m.err, errChanged) {
			q.yield(all[i])
		} else {
			err = cmp.Or(err, m.err)
		}
	}
	return err
}

// govern asks for a look at who owns what.
func (q *Queue) govern() {
	select {
	case q.look <- struct{}{}:
	default:
	}
}

// rule looks at who owns what when that may have changed, until the Queue is closed.
func (q *Queue) rule() {
	for {
		select {
		case <-q.look:
		case <-q.background.Done():
			return
		}
		ctx, cancel := context.WithTimeout(q.background, writeTimeout)
		if err := q.oversee(ctx); err != nil && q.background.Err() == nil {
			q.config.Logger.Debug("natsqueue: the look at who owns what failed", "error", err)
		}
		cancel()
	}
}

// A holding is what the stream says of a partition.
type holding struct {
	seq uint64 // of the deed, 0 if there is none
	deed
}

// oversee takes the partitions that are this process's to take, and gives away
// those that are others'.
func (q *Queue) oversee(ctx context.Context) error {
	q.ruling.Lock()
	defer q.ruling.Unlock()
	// Who asks a leader that is out of reach gets no answer, and is to ask again.
	looking, cancel := context.WithTimeout(ctx, max(time.Second, q.config.Claim/3))
	defer cancel()
	nodes, err := q.nodes(looking)
	if err != nil {
		return err
	}
	holdings, err := q.holdings(looking)
	if err != nil {
		return err
	}
	q.mu.Lock()
	var wanted []int
	again := false
	for n, h := range holdings {
		p := q.owned[n]
		mine := heir(nodes, n) == q.id
		if p != nil && h.seq > p.epoch {
			q.yield(p)
			p = nil
		}
		switch {
		case p != nil && !mine:
			q.drain(p)
			again = true
		case p != nil:
			p.draining = false
		case mine && (h.Node == "" || h.Node == q.id || !slices.ContainsFunc(nodes, func(x node) bool { return x.id == h.Node })):
			wanted = append(wanted, n)
		}
	}
	q.mu.Unlock()
	var wg sync.WaitGroup
	var mu sync.Mutex
	var failed error
	for chunk := range slices.Chunk(wanted, 8) {
		for _, n := range chunk {
			wg.Go(func() {
				if err := q.claim(ctx, n, holdings[n]); err != nil {
					mu.Lock()
					failed = err
					mu.Unlock()
				}
			})
		}
		wg.Wait()
	}
	if failed != nil {
		return failed
	}
	if again {
		return q.giveAway(ctx)
	}
	return nil
}

// A node is a process that shares the store, as its last sign of life says.
type node struct {
	id   string
	at   time.Time // of the sign, by the server's clock
	self bool
	sign
}

// nodes returns the processes that live, this one among them. When the server was away
// nobody could give signs of life: so only who has given all of its own for as long, up
// to now, takes others for dead.
func (q *Queue) nodes(ctx context.Context) ([]node, error) {
	s, err := q.js.Stream(ctx, q.config.nodes())
	if err != nil {
		return nil, err
	}
	info, err := s.Info(ctx, jetstream.WithSubjectFilter(q.config.nodes()+".>"))
	if err != nil {
		return nil, err
	}
	var all []node
	var now time.Time
	for subject := range info.State.Subjects {
		m, err := s.GetLastMsgForSubject(ctx, subject)
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			continue // it has left
		}
		if err != nil {
			return nil, err
		}
		n := node{id: subject[len(q.config.nodes())+1:], at: m.Time.UTC()}
		if err := json.Unmarshal(m.Data, &n.sign); err != nil {
			return nil, fmt.Errorf("natsqueue: a sign of life of %s: %w", n.id, err)
		}
		if n.self = n.id == q.id; n.self {
			now = n.at
		}
		if n.Opened == 0 {
			n.Opened = n.at.UnixMicro()
		}
		all = append(all, n)
	}
	if now.IsZero() {
		return nil, errors.New("natsqueue: the sign of life of this process is gone")
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	judge := time.Now().Before(q.until) && time.Since(q.steady) >= q.config.Claim
	all = slices.DeleteFunc(all, func(n node) bool {
		if n.self && q.opened == 0 {
			q.opened = n.Opened
		}
		return judge && now.Sub(n.at) > q.config.Claim
	})
	return all, nil
}

// heir returns who of the nodes is to own the partition n: each is as likely, and most
// stay where they are when nodes come and go.
func heir(nodes []node, n int) string {
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
	for _, x := range nodes {
		if w := weight(x.id); !x.Leaving && (first == "" || w > most || w == most && x.id > first) {
			first, most = x.id, w
		}
	}
	return first
}

// holdings returns what the stream says of all partitions. It may be a little old,
// which a claim finds out.
func (q *Queue) holdings(ctx context.Context) ([]holding, error) {
	pages, err := q.reader.read(ctx, q.config.Stream, request{MultiLast: []string{q.subjects.name + ".*." + kindOwner}, Batch: maxPartitions})
	if err != nil {
		return nil, err
	}
	all := make([]holding, q.config.Partitions)
	for _, m := range pages[0] {
		var n int
		if _, err := fmt.Sscanf(m.subject[len(q.subjects.name):], ".%d.", &n); err != nil || n < 0 || n >= len(all) {
			return nil, fmt.Errorf("natsqueue: no partition has the subject %q", m.subject)
		}
		d, err := parseDeed(m.data)
		if err != nil {
			return nil, err
		}
		all[n] = holding{m.seq, d}
	}
	return all, nil
}

// claim makes this process the owner of the partition n, unless the partition is no
// longer held as h says.
func (q *Queue) claim(ctx context.Context, n int, h holding) error {
	p := newPartition(n, q.subjects.partition(n), 0)
	m := p.transfer(h.seq, deed{Node: q.id, Name: q.config.Node})
	err := q.publisher.store(ctx, m)
	if errors.Is(err, errChanged) {
		return nil // somebody else was first, who will be heard of
	}
	if err != nil {
		return err
	}
	p.epoch = m.seq
	if h.Node == "" { // nobody's, or left in order
		if len(h.Settled) > 0 {
			seqs, err := parseRecord(h.Settled)
			if err != nil {
				return err
			}
			for _, seq := range seqs {
				p.settled[seq] = struct{}{}
			}
		}
	} else {
		a, err := q.audit(ctx, p.prefix, p.epoch)
		if err != nil {
			return err
		}
		p.settled = a.settled
		q.config.Logger.Warn("natsqueue: took over a partition", "partition", n, "from", h.Name)
	}
	p.recorded = p.epoch
	p.context, p.end = context.WithCancel(q.background)
	q.mu.Lock()
	if q.owned[n] != nil || q.background.Err() != nil {
		q.mu.Unlock()
		p.end()
		return q.background.Err()
	}
	q.owned[n] = p
	q.mu.Unlock()
	q.goroutines.Go(func() { q.follow(p) })
	return nil
}

// transfer makes the message that puts a deed behind the one at the sequence last.
func (p *partition) transfer(last uint64, d deed) *message {
	data, err := json.Marshal(d)
	if err != nil {
		panic(err) // it has nothing that could fail
	}
	return &message{subject: p.prefix + kindOwner, data: data, header: nats.Header{
		headerExpected: {decimal(last)},
		headerID:       {nuid.Next()}, // an answer that is lost leaves no doubt
	}}
}

func decimal(n uint64) string { return strconv.FormatUint(n, 10) }

// drain has nothing of p be leased any more. The queue is locked.
func (q *Queue) drain(p *partition) {
	if !p.draining {
		p.draining = true
		q.drains++
	}
}

// giveAway gives away the partitions that are others', once nothing of them is
// leased.
func (q *Queue) giveAway(ctx context.Context) error {
	var ready []*partition
	left := 0
	q.mu.Lock()
	now := time.Now().UnixMicro()
	q.table.Len(now) // leases that have expired are over
	for _, p := range q.owned {
		if p == nil || !p.draining {
			continue
		}
		if p.leases() == 0 {
			ready = append(ready, p)
		} else {
			left++
		}
	}
	q.mu.Unlock()
	if left > 0 {
		// What is leased ends soon.
		time.AfterFunc(drainEvery, q.govern)
	}
	return q.release(ctx, ready)
}

// drainEvery is how often it is looked whether the leases of a partition have ended.
const drainEvery = 20 * time.Millisecond

// nobody is no process's id. Who takes over from it reads the records.
const nobody = "-"

// release gives partitions away.
func (q *Queue) release(ctx context.Context, all []*partition) error {
	messages := make([]*message, 0, len(all))
	q.mu.Lock()
	all = slices.DeleteFunc(all, func(p *partition) bool { return p.lost })
	for _, p := range all {
		d := deed{}
		if seqs := p.unerased(); len(seqs) > wholeMost {
			d.Node = nobody
		} else if len(seqs) > 0 {
			d.Settled = appendRecord(nil, seqs)
		}
		messages = append(messages, p.transfer(p.epoch, d))
	}
	q.mu.Unlock()
	err := q.publisher.send(ctx, messages...)
	q.mu.Lock()
	defer q.mu.Unlock()
	for i, p := range all {
		switch m := messages[i]; {
		case m.answered && (m.err == nil || errors.Is(m.err, errChanged)):
			q.lose(p)
		case err == nil:
			err = m.err
		}
	}
	return err
}

// resign gives everything away, and ends the signs of life.
func (q *Queue) resign(ctx context.Context) error {
	q.mu.Lock()
	all := slices.DeleteFunc(slices.Clone(q.owned), func(p *partition) bool { return p == nil })
	q.mu.Unlock()
	err := q.release(ctx, all)
	if err == nil {
		err = q.purge(ctx, q.config.nodes(), q.config.nodes()+"."+q.id, 0)
	}
	q.nc.Publish(q.subjects.look(), nil)
	return err
}
