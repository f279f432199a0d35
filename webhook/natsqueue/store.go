package natsqueue

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"

	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/internal/batcher"
	"github.com/hookferry/analytics/webhook/internal/calls"
	"github.com/hookferry/analytics/webhook/storekit"
)

// A Store is a webhook.Store that several nodes share. It is a webhook.Roster and
// webhook.Rosters too.
type Store struct {
	config Config
	id     string // of the node
	nc     *nats.Conn
	js     jetstream.JetStream
	puts   *batcher.Batcher[put]
	writes *batcher.Batcher[write]
	room   room
	subs   []*nats.Subscription

	background context.Context
	stop       context.CancelFunc
	goroutines sync.WaitGroup
	calls      calls.Gate
	ruling     sync.Mutex // one look at who owns what at a time
	changed    chan struct{}
	speak      chan struct{} // asks for a heartbeat
	look       chan struct{} // asks for a look at who owns what

	mu     sync.Mutex
	owned  []*partition // by number, nil for those of others
	lanes  map[string]*lane
	news   map[string]struct{} // lanes that Heads is to yield
	claims map[uint64]*entry
	seen   *storekit.Window
	cache  cache
	parts  map[uint64]*part // puts whose answer is awaited
	serial uint64           // of the latest claim, part, record and entry
	node                    // what the heartbeat says
	listed listing          // for Leave
}

// A node is what a Store knows of its own heartbeats.
type node struct {
	opened  int64 // when, by the server's clock, in microseconds; 0 if that is not known yet
	leaving bool  // for good
	note    func() ([]byte, bool)
	until   time.Time // what is owned is owned until then
	steady  time.Time // since when all heartbeats were stored
	lastErr error     // of the latest of them
}

var (
	_ webhook.Store   = (*Store)(nil)
	_ webhook.Shared  = (*Store)(nil)
	_ webhook.Roster  = (*Store)(nil)
	_ webhook.Rosters = (*Store)(nil)
)

// putters is how many groups of puts are stored at a time.
const putters = 4

// Open opens the store on the servers that nc is connected to, 2.12.1 or newer. The
// connection is the caller's, and closed after the Store. It should reconnect without
// end (nats.MaxReconnects(-1)), and ping every few seconds (nats.PingInterval): with the
// driver's default, a server that falls silent is left for another one after six minutes.
func Open(ctx context.Context, nc *nats.Conn, c *Config) (*Store, error) {
	if c == nil {
		c = new(Config)
	}
	s := &Store{
		config: *c, nc: nc, id: nuid.Next(),
		changed: make(chan struct{}, 1), speak: make(chan struct{}, 1), look: make(chan struct{}, 1),
		lanes: make(map[string]*lane), news: make(map[string]struct{}), claims: make(map[uint64]*entry), parts: make(map[uint64]*part),
	}
	if err := s.config.complete(); err != nil {
		return nil, err
	}
	var err error
	if v := nc.ConnectedServerVersion(); tooOld(v) {
		return nil, fmt.Errorf("natsqueue: the server has version %s, which is older than 2.12.1", v)
	}
	if s.js, err = jetstream.New(nc); err != nil {
		return nil, err
	}
	if err := s.config.prepare(ctx, s.js); err != nil {
		return nil, err
	}
	s.owned = make([]*partition, s.config.Partitions)
	s.seen = storekit.NewWindow(s.config.DedupMax, s.config.DedupWindow)
	s.cache.limit = s.config.CacheBytes
	if err := s.begin(ctx); err != nil {
		return nil, fmt.Errorf("natsqueue: opening stream %s: %w", s.config.Stream, err)
	}
	return s, nil
}

// begin starts everything.
func (s *Store) begin(ctx context.Context) (err error) {
	s.background, s.stop = context.WithCancel(context.Background())
	s.puts = batcher.New(putters, maxGroup, s.storePuts)
	s.writes = batcher.New(1, maxGroup, s.storeWrites)
	defer func() {
		if err != nil {
			s.stop()
			s.end()
		}
	}()
	for subject, hear := range map[string]nats.MsgHandler{
		s.config.ask("owner.*"):     s.asked,
		s.config.ask("put." + s.id): s.heardOfPut,
		s.config.ask("look"):        func(*nats.Msg) { s.govern() },
	} {
		sub, err := s.nc.Subscribe(subject, hear)
		if err != nil {
			return err
		}
		s.subs = append(s.subs, sub)
	}
	if err = s.beat(ctx); err != nil {
		return err
	}
	if err = s.nc.Publish(s.config.ask("look"), nil); err != nil {
		return err
	}
	if err = s.oversee(ctx); err != nil {
		return err
	}
	s.goroutines.Go(s.live)
	s.goroutines.Go(s.rule)
	s.goroutines.Go(s.sweep)
	// What waits is usually known in no time; if it is very much, it is found while
	// the first of it is delivered.
	patience, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	s.mu.Lock()
	mine := append([]*partition(nil), s.owned...)
	s.mu.Unlock()
	for _, p := range mine {
		if p == nil {
			continue
		}
		select {
		case <-p.ready:
		case <-patience.Done():
		}
	}
	return nil // also if ctx has ended by now: all is done
}

// end ends what begin started, once background has ended.
func (s *Store) end() {
	s.goroutines.Wait()
	s.puts.Close()
	s.writes.Close()
	s.mu.Lock()
	for _, p := range s.owned {
		if p != nil {
			s.lose(p)
		}
	}
	s.mu.Unlock()
	s.goroutines.Wait()
	for _, sub := range s.subs {
		sub.Unsubscribe()
	}
}

// enter begins a call, which s.calls.Leave ends.
func (s *Store) enter(ctx context.Context) error { return s.calls.Enter(ctx) }

// Now implements webhook.Store.
func (s *Store) Now() time.Time { return now() }

// now returns the time to the microsecond.
func now() time.Time { return time.Now().UTC().Truncate(time.Microsecond) }

// Changed implements webhook.Store.
func (s *Store) Changed() <-chan struct{} { return s.changed }

// tell has Heads yield a lane. The store is locked.
func (s *Store) tell(lane string) {
	s.news[lane] = struct{}{}
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// Close implements webhook.Store. What this node owned is the others' at once, or, if the
// server does not answer within 4 s, when the claim expires.
func (s *Store) Close() error {
	if !s.calls.Close() {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), min(s.config.Claim, callTimeout))
	defer cancel()
	s.mu.Lock()
	s.leaving = true // so nothing is taken from now on
	w := &write{done: make(chan struct{})}
	for _, p := range s.owned {
		if p != nil {
			w.release = append(w.release, p)
		}
	}
	s.mu.Unlock()
	err := s.write(ctx, w)
	if err == nil {
		err = s.purge(ctx, s.config.heartbeat(s.id), 0)
	}
	s.nc.Publish(s.config.ask("look"), nil)
	s.stop()
	s.end()
	if err != nil {
		return fmt.Errorf("natsqueue: giving back what was owned, which others get in %v: %w", s.config.Claim, err)
	}
	return nil
}

// lapsed reports whether others may have taken over what this node owns, by the clock on the
// wall or the monotonic one. The store is locked.
func (s *Store) lapsed() error {
	now := time.Now()
	if !now.After(s.until) && !now.Round(0).After(s.until.Round(0)) {
		return nil
	}
	if s.lastErr != nil {
		return fmt.Errorf("natsqueue: ownership lapsed, the last heartbeat is too old: %w", s.lastErr)
	}
	return errors.New("natsqueue: ownership lapsed, the last heartbeat is too old")
}
