package natsqueue

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"

	"github.com/hookferry/analytics/webhook/store"
)

// A Store is a store.Store that several nodes share.
type Store struct {
	conn       *conn       // to the stream
	life       *lifetime   // until Close
	lease      *lease      // of the partitions
	index      *index      // waiting deliveries, in memory
	partitions *partitions // of this node
	loader     *loader     // reads waiting deliveries from the stream
	answers    *answers    // that puts wait for
	recorder   *recorder   // writes records
	cleaner    *cleaner    // purges the logs
	putter     *putter     // stores puts
	node       *node       // sends heartbeats
	balancer   *balancer   // takes partitions, and gives them away
	asker      *asker      // asks other nodes
	letters    *letters    // reads and changes dead letters
	seen       seen        // of the documents

	subs []*nats.Subscription
}

var (
	_ store.Store      = (*Store)(nil)
	_ store.Shared     = (*Store)(nil)
	_ store.Maintained = (*Store)(nil)
)

// Open opens the store on the servers that nc is connected to, which must have version 2.12.1 or
// newer. The caller closes nc after the Store. nc should reconnect without limit
// (nats.MaxReconnects(-1)), ping every few seconds (nats.PingInterval), and give up a write after
// three seconds (nats.FlusherTimeout). By default the driver needs six minutes to leave a silent
// server for another one. If the connection takes no more bytes, the driver makes all calls wait for
// a minute. If a heartbeat gets no answer, the Store makes nc leave its server for another one,
// because the server may be cut off from the others.
func Open(ctx context.Context, nc *nats.Conn, config Config) (*Store, error) {
	if err := config.complete(); err != nil {
		return nil, err
	}
	if v := nc.ConnectedServerVersion(); tooOld(v) {
		return nil, fmt.Errorf("natsqueue: the server has version %s, which is older than 2.12.1", v)
	}
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, err
	}
	p := &permit{nc: nc, stream: config.Stream, before: nc.LastError()}
	var stream jetstream.Stream
	if err := p.watch(ctx, func(ctx context.Context) (err error) {
		stream, err = config.prepare(ctx, js)
		return err
	}); err != nil {
		return nil, err
	}
	s := assemble(&conn{config: &config, id: nuid.Next(), nc: nc, js: js, stream: stream})
	if err := p.watch(ctx, s.start); err != nil {
		s.life.end()
		s.end()
		return nil, fmt.Errorf("natsqueue: opening stream %s: %w", s.conn.config.Stream, err)
	}
	return s, nil
}

// assemble returns a Store with all its parts. Only the batchers have goroutines yet.
func assemble(c *conn) *Store {
	s := &Store{conn: c, life: new(lifetime), lease: &lease{claim: c.config.Claim}, index: newIndex()}
	s.life.ctx, s.life.end = context.WithCancel(context.Background())
	s.loader = &loader{conn: c, index: s.index}
	s.answers = &answers{index: s.index, awaited: make(map[uint64]*part)}
	s.partitions = &partitions{
		conn: c, life: s.life, index: s.index, lease: s.lease, answers: s.answers, look: store.NewSignal(),
		owned: make([]*partition, c.config.Partitions), seen: store.NewWindow(c.config.DedupMax, c.config.DedupWindow),
	}
	upkeep := store.NewUpkeep("natsqueue", c.config.Logger)
	s.recorder = &recorder{conn: c, life: s.life, index: s.index, upkeep: upkeep}
	s.recorder.writes = store.NewBatcher(1, maxGroup, s.recorder.storeWrites)
	s.cleaner = &cleaner{
		conn: c, life: s.life, index: s.index, partitions: s.partitions, loader: s.loader, recorder: s.recorder,
		upkeep: upkeep,
	}
	s.putter = &putter{conn: c, life: s.life, index: s.index, answers: s.answers, cleaner: s.cleaner}
	s.putter.puts = store.NewBatcher(putters, maxGroup, s.putter.storePuts)
	s.letters = &letters{conn: c, index: s.index, putter: s.putter}
	s.node = &node{
		conn: c, life: s.life, lease: s.lease, partitions: s.partitions, recorder: s.recorder,
		opened: now().UnixMicro(), speak: store.NewSignal(),
	}
	s.balancer = &balancer{conn: c, life: s.life, index: s.index, node: s.node, partitions: s.partitions, recorder: s.recorder}
	s.asker = &asker{conn: c, life: s.life, index: s.index, partitions: s.partitions, loader: s.loader, recorder: s.recorder, letters: s.letters}
	return s
}

// start stores a heartbeat, takes partitions, and starts the goroutines of the Store.
func (s *Store) start(ctx context.Context) error {
	for subject, hear := range map[string]nats.MsgHandler{
		s.conn.config.ask("owner"):            s.asker.asked,
		s.conn.config.ask("put." + s.conn.id): s.answers.received,
		s.conn.config.ask("look"):             func(*nats.Msg) { s.partitions.look.Set() },
	} {
		sub, err := s.conn.nc.Subscribe(subject, hear)
		if err != nil {
			return err
		}
		s.subs = append(s.subs, sub)
	}
	if err := s.node.beat(ctx); err != nil {
		return err
	}
	if err := s.partitions.announce(); err != nil {
		return err
	}
	if err := s.balancer.oversee(ctx); err != nil {
		return err
	}
	s.life.goroutines.Go(s.node.live)
	s.life.goroutines.Go(s.balancer.rule)
	s.life.goroutines.Go(s.cleaner.runCleaner)
	// Wait up to a second until the partitions have been read, which is usually enough. If it is not,
	// this node attempts the deliveries of the partitions that it has read, and reads the others.
	patience, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	for _, p := range s.partitions.mine() {
		select {
		case <-p.ready:
		case <-patience.Done():
		}
	}
	return nil // also if ctx has ended: the store is open
}

// end stops everything that Open started, after life.ctx has ended.
func (s *Store) end() {
	s.life.goroutines.Wait()
	s.putter.puts.Close()
	s.recorder.writes.Close()
	s.partitions.lose()
	s.life.goroutines.Wait()
	for _, sub := range s.subs {
		sub.Unsubscribe()
	}
}

// Now implements store.Store.
func (s *Store) Now() time.Time { return now() }

// now returns the time to the microsecond.
func now() time.Time { return time.Now().UTC().Truncate(time.Microsecond) }

// Changed implements store.Store.
func (s *Store) Changed() <-chan struct{} { return s.index.changed }

// Failing implements store.Maintained.
func (s *Store) Failing() map[string]time.Time { return s.cleaner.upkeep.Failing() }

// Close implements store.Store. Other nodes take over the partitions of this node at once or, if the
// server does not answer within 4 s, once Config.Claim has passed since the last heartbeat.
func (s *Store) Close() error {
	if !s.life.calls.Close() {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), min(s.conn.config.Claim, callTimeout))
	defer cancel()
	s.partitions.leaving.Store(true)
	err := s.recorder.write(ctx, writesOf(s.partitions.mine(), true)...)
	if err == nil {
		err = s.conn.purge(ctx, s.conn.config.heartbeat(s.conn.id), 0)
	}
	s.partitions.announce()
	s.life.end()
	s.end()
	if err != nil {
		return fmt.Errorf("natsqueue: closing: other nodes get the partitions of this node only after %v: %w", s.conn.config.Claim, err)
	}
	return nil
}
