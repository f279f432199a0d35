package natsqueue

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"

	"github.com/hookferry/analytics/audience"
	"github.com/hookferry/analytics/webhook/store"
)

// A Store is a store.Store that several nodes share, and an audience.Roster.
type Store struct {
	// The parts, each with a state of its own. conn reads and writes the stream, and index has the
	// partitions of this node in memory. The other parts build on these two.
	*conn
	*index
	*recorder
	*cleaner
	*putter
	*node
	*roster

	subs []*nats.Subscription
}

var (
	_ store.Store      = (*Store)(nil)
	_ store.Shared     = (*Store)(nil)
	_ store.Maintained = (*Store)(nil)
	_ audience.Roster  = (*Store)(nil)
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
	c := &conn{config: &config, id: nuid.Next(), nc: nc, js: js, stream: stream}
	r := &recorder{index: newIndex(c)}
	n := &node{recorder: r, opened: now().UnixMicro(), speak: make(chan struct{}, 1)}
	s := &Store{conn: c, index: r.index, recorder: r, cleaner: &cleaner{recorder: r, Upkeep: store.NewUpkeep("natsqueue", config.Logger)}, node: n, roster: &roster{conn: c}}
	s.putter = &putter{index: r.index, cleaner: s.cleaner}
	s.writes = store.NewBatcher(1, maxGroup, r.storeWrites)
	s.puts = store.NewBatcher(putters, maxGroup, s.storePuts)
	if err := s.begin(ctx, p); err != nil {
		return nil, fmt.Errorf("natsqueue: opening stream %s: %w", s.config.Stream, err)
	}
	return s, nil
}

// begin stores a heartbeat, takes partitions, and starts the goroutines of the Store.
func (s *Store) begin(ctx context.Context, p *permit) error {
	s.background, s.stop = context.WithCancel(context.Background())
	err := p.watch(ctx, s.start)
	if err != nil {
		s.stop()
		s.end()
	}
	return err
}

func (s *Store) start(ctx context.Context) error {
	for subject, hear := range map[string]nats.MsgHandler{
		s.config.ask("owner"):       s.asked,
		s.config.ask("put." + s.id): s.heardOfPut,
		s.config.ask("look"):        func(*nats.Msg) { signal(s.look) },
	} {
		sub, err := s.nc.Subscribe(subject, hear)
		if err != nil {
			return err
		}
		s.subs = append(s.subs, sub)
	}
	if err := s.beat(ctx); err != nil {
		return err
	}
	if err := s.nc.Publish(s.config.ask("look"), nil); err != nil {
		return err
	}
	if err := s.oversee(ctx); err != nil {
		return err
	}
	s.goroutines.Go(s.live)
	s.goroutines.Go(s.rule)
	s.goroutines.Go(s.runCleaner)
	// Wait up to a second until the partitions have been read, which is usually enough. If it is not,
	// this node attempts the deliveries of the partitions that it has read, and reads the others.
	patience, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	for _, p := range s.mine() {
		select {
		case <-p.ready:
		case <-patience.Done():
		}
	}
	return nil // also if ctx has ended: the store is open
}

// end stops everything that Open started, after background has ended.
func (s *Store) end() {
	s.goroutines.Wait()
	s.puts.Close()
	s.writes.Close()
	s.loseAll()
	s.goroutines.Wait()
	for _, sub := range s.subs {
		sub.Unsubscribe()
	}
}

// Now implements store.Store.
func (s *Store) Now() time.Time { return now() }

// now returns the time to the microsecond.
func now() time.Time { return time.Now().UTC().Truncate(time.Microsecond) }

// Changed implements store.Store.
func (s *Store) Changed() <-chan struct{} { return s.changed }

// Close implements store.Store. Other nodes take over the partitions of this node at once or, if the
// server does not answer within 4 s, once Config.Claim has passed since the last heartbeat.
func (s *Store) Close() error {
	if !s.calls.Close() {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), min(s.config.Claim, callTimeout))
	defer cancel()
	s.leave()
	err := s.write(ctx, writesOf(s.mine(), true)...)
	if err == nil {
		err = s.purge(ctx, s.config.heartbeat(s.id), 0)
	}
	s.nc.Publish(s.config.ask("look"), nil)
	s.stop()
	s.end()
	if err != nil {
		return fmt.Errorf("natsqueue: closing: other nodes get the partitions of this node only after %v: %w", s.config.Claim, err)
	}
	return nil
}
