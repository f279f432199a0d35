package natsqueue

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"

	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/internal/batcher"
	"github.com/hookferry/analytics/webhook/internal/calls"
	"github.com/hookferry/analytics/webhook/internal/lanes"
)

// The defaults of Config.
const (
	DefaultStream      = "HOOKFERRY"
	DefaultPartitions  = 32
	DefaultClaim       = 10 * time.Second
	DefaultCacheBytes  = 32 << 20
	DefaultDedupWindow = time.Hour
)

const (
	// maxPartitions bounds Config.Partitions: each has a consumer of its own.
	maxPartitions = 256
	// minDedup bounds Config.DedupWindow: what is sent again is to be recognised.
	minDedup = 2 * writeTimeout
)

// Config configures a Queue. The zero value is ready for use.
type Config struct {
	// Stream is the name of the stream of deliveries, and the first part of its
	// subjects and of the names of the streams beside it. Upper case letters,
	// digits, "-" and "_". Empty means DefaultStream.
	Stream string
	// Replicas is how many servers keep each stream, 1 to 5. Zero means what an
	// existing stream has, and for a new one 3 where there are as many servers,
	// else 1.
	Replicas int
	// Storage is where servers keep the streams. It cannot be changed later. Zero
	// is jetstream.FileStorage for a new stream.
	Storage jetstream.StorageType
	// NoCreate has Open create and change no stream, and fail where one is
	// missing.
	NoCreate bool
	// Partitions is into how many parts destinations are divided; as many
	// processes share the work at most. It cannot be changed later: Open
	// goes by what the stream says. 1 to 256; zero means DefaultPartitions, 32.
	Partitions int
	// DedupWindow is how long a delivery that was put is recognised when it is
	// put again. It costs the server's memory: some 200 bytes for each put within
	// it. A minute or more. Zero means what an existing stream has, and for a new one
	// DefaultDedupWindow, an hour.
	DedupWindow time.Duration
	// MaxBytes bounds what the stream of deliveries takes of the disk, in each
	// replica: about. Put returns ErrQueueFull beyond it. Zero means no bound but
	// the server's.
	MaxBytes int64
	// Claim is how long what this process owns is its own after its last sign of
	// life; then others take it over. There are three signs in that time. From a
	// second to an hour; zero means DefaultClaim. It is to be the same in all
	// processes.
	Claim time.Duration
	// CacheBytes bounds the deliveries in memory that are not leased: about. Zero
	// means DefaultCacheBytes, 32 MB.
	CacheBytes int64
	// Node is what Nodes and the logs of others call this process. Empty means the
	// host's name and the process id.
	Node string
	// Logger is told when the server cannot be reached, when partitions are taken
	// over or were lost, and how what was accepted may be lost. Nil means no logs.
	Logger *slog.Logger

	wanted int  // Partitions as they were asked for
	dedup  bool // DedupWindow was given
	stored bool // Storage was given
}

// A Queue is a webhook.Queue, and webhook.DeadLetters, webhook.Counter,
// webhook.DestinationCounter, webhook.Roster, webhook.Pauses, webhook.Presenter and
// webhook.Releaser too.
type Queue struct {
	config    Config
	id        string // of the process among the nodes
	nc        *nats.Conn
	js        jetstream.JetStream
	subjects  subjects
	publisher *publisher
	reader    *reader
	settles   *batcher.Batcher[settle]
	room      room
	asked     *nats.Subscription // others that count
	heard     *nats.Subscription // of deeds
	called    *nats.Subscription // to look at these

	background context.Context
	stop       context.CancelFunc
	goroutines sync.WaitGroup
	calls      calls.Gate
	leasing    sync.Mutex // one Lease at a time
	ruling     sync.Mutex // one look at who owns what at a time
	wake       chan struct{}
	speak      chan struct{} // asks for a sign of life
	look       chan struct{} // asks for a look at who owns what
	farewell   time.Duration // how long Close may take to give away what is owned

	mu      sync.Mutex
	table   *lanes.Table
	owned   []*partition // by number, nil for those of others
	cached  int64
	opened  int64 // when, by the server's clock, in microseconds; 0 if that is not known yet
	leaving bool  // for good
	drains  int   // how often a partition began to be given away
	note    func() []byte
	until   time.Time // what is owned is owned until then
	steady  time.Time // since when all signs of life were stored
	lastErr error     // of the latest of them
	listed  listing   // for Leave
}

var (
	_ webhook.SchedulingQueue = (*Queue)(nil)
	_ webhook.Waker           = (*Queue)(nil)
)

// Open opens the store on the servers that nc is connected to, 2.11 or newer. The
// connection is the caller's, and closed after the Queue. It should reconnect without
// end (nats.MaxReconnects(-1)), and ping every few seconds (nats.PingInterval): with the
// driver's default, a server that falls silent is left for another one after six minutes.
func Open(ctx context.Context, nc *nats.Conn, c *Config) (*Queue, error) {
	if c == nil {
		c = new(Config)
	}
	q := &Queue{
		config: *c, nc: nc, id: nuid.Next(),
		wake: make(chan struct{}, 1), speak: make(chan struct{}, 1), look: make(chan struct{}, 1),
	}
	if err := q.config.complete(); err != nil {
		return nil, err
	}
	q.farewell = min(q.config.Claim, writeTimeout)
	var err error
	if nc.Opts.NoEcho { // Count asks this process too
		return nil, errors.New("natsqueue: the connection has NoEcho, with which it does not hear itself")
	}
	if v := nc.ConnectedServerVersion(); tooOld(v) {
		return nil, fmt.Errorf("natsqueue: the server has version %s, which is older than 2.11", v)
	}
	if q.js, err = jetstream.New(nc); err != nil {
		return nil, err
	}
	if err := q.config.prepare(ctx, q.js); err != nil {
		return nil, err
	}
	q.subjects = subjects{q.config.Stream}
	q.owned = make([]*partition, q.config.Partitions)
	q.table = lanes.New(func(l *lanes.Lane) bool {
		h, _ := l.Home.(*home)
		return h == nil || h.known == 0
	})
	if err := q.begin(ctx); err != nil {
		return nil, fmt.Errorf("natsqueue: opening stream %s: %w", q.config.Stream, err)
	}
	return q, nil
}

// begin starts everything.
func (q *Queue) begin(ctx context.Context) (err error) {
	q.background, q.stop = context.WithCancel(context.Background())
	defer func() {
		if err != nil {
			q.end()
		}
	}()
	if q.publisher, err = newPublisher(q.nc); err != nil {
		return err
	}
	if q.reader, err = newReader(q.nc); err != nil {
		return err
	}
	if q.asked, err = q.nc.Subscribe(q.subjects.count(), q.answerCount); err != nil {
		return err
	}
	look := func(*nats.Msg) { q.govern() }
	if q.heard, err = q.nc.Subscribe(q.subjects.name+".*."+kindOwner, look); err != nil {
		return err
	}
	if q.called, err = q.nc.Subscribe(q.subjects.look(), look); err != nil {
		return err
	}
	if err = q.beat(ctx); err != nil {
		return err
	}
	if err = q.nc.Publish(q.subjects.look(), nil); err != nil {
		return err
	}
	if err = q.oversee(ctx); err != nil {
		return err
	}
	q.settles = batcher.New(1, maxBatch, q.settled)
	changed := q.nc.StatusChanged(nats.CONNECTED)
	q.goroutines.Go(func() { q.reconnected(changed) })
	q.goroutines.Go(q.live)
	q.goroutines.Go(q.rule)
	q.goroutines.Go(q.sweep)
	// What waits is usually known in no time; if it is very much, it is found while
	// the first of it is delivered.
	patience, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	q.mu.Lock()
	mine := append([]*partition(nil), q.owned...)
	q.mu.Unlock()
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

// reconnected asks again, on a new connection, for what was not answered on the old one.
func (q *Queue) reconnected(changed chan nats.Status) {
	defer q.nc.RemoveStatusListener(changed)
	for {
		select {
		case _, ok := <-changed:
			if !ok { // closed for good
				return
			}
			q.publisher.again()
			q.reader.again()
		case <-q.background.Done():
			return
		}
	}
}

// end stops what was started.
func (q *Queue) end() {
	q.stop()
	q.goroutines.Wait()
	q.mu.Lock()
	for _, p := range q.owned {
		if p != nil {
			q.lose(p)
		}
	}
	q.mu.Unlock()
	for _, sub := range []*nats.Subscription{q.asked, q.heard, q.called} {
		if sub != nil {
			sub.Unsubscribe()
		}
	}
	if q.publisher != nil {
		q.publisher.close()
	}
	if q.reader != nil {
		q.reader.close()
	}
}

func (c *Config) complete() error {
	if c.Stream == "" {
		c.Stream = DefaultStream
	}
	if strings.Trim(c.Stream, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_") != "" || len(c.Stream) > 64 {
		return fmt.Errorf("natsqueue: Stream %q; want up to 64 letters, digits, - and _", c.Stream)
	}
	if c.Replicas < 0 || c.Replicas > 5 {
		return fmt.Errorf("natsqueue: Replicas of %d; want 1 to 5", c.Replicas)
	}
	c.wanted = c.Partitions
	if c.Partitions == 0 {
		c.Partitions = DefaultPartitions
	}
	if c.Partitions < 1 || c.Partitions > maxPartitions {
		return fmt.Errorf("natsqueue: Partitions of %d; want 1 to %d", c.Partitions, maxPartitions)
	}
	if c.Claim == 0 {
		c.Claim = DefaultClaim
	}
	if c.Claim < time.Second || c.Claim > time.Hour {
		return fmt.Errorf("natsqueue: Claim of %v; want a second to an hour", c.Claim)
	}
	c.stored = c.Storage != jetstream.FileStorage
	if c.dedup = c.DedupWindow > 0; !c.dedup {
		c.DedupWindow = DefaultDedupWindow
	}
	if c.DedupWindow < minDedup {
		return fmt.Errorf("natsqueue: DedupWindow of %v; want %v or more", c.DedupWindow, minDedup)
	}
	if c.MaxBytes < 0 {
		return fmt.Errorf("natsqueue: MaxBytes of %d; want none or a bound", c.MaxBytes)
	}
	if c.CacheBytes <= 0 {
		c.CacheBytes = DefaultCacheBytes
	}
	if c.Node == "" {
		c.Node = calls.Process()
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return nil
}

// Close implements webhook.Queue. What this process owned is the others' at once; if the
// server does not answer in half a minute, when the claim expires.
func (q *Queue) Close() error {
	if !q.calls.Close() {
		return nil
	}
	q.settles.Close()
	q.stop()
	q.goroutines.Wait()
	ctx, cancel := context.WithTimeout(context.Background(), q.farewell)
	defer cancel()
	err := q.resign(ctx)
	q.end()
	q.mu.Lock()
	q.table = nil
	q.mu.Unlock()
	if err != nil {
		return fmt.Errorf("natsqueue: giving back what was owned, which others get in %v: %w", q.config.Claim, err)
	}
	return nil
}

// Lease implements webhook.Queue. Room is called with the queue locked.
func (q *Queue) Lease(ctx context.Context, req webhook.LeaseRequest, dst []webhook.Delivery) ([]webhook.Delivery, time.Time, error) {
	if req.Max < 1 {
		return dst, time.Time{}, errors.New("natsqueue: lease of less than one delivery")
	}
	if err := q.calls.Enter(ctx); err != nil {
		return dst, time.Time{}, err
	}
	defer q.calls.Leave()
	q.leasing.Lock()
	defer q.leasing.Unlock()

	q.mu.Lock()
	defer q.mu.Unlock()
	now := time.Now()
	take := lanes.Take{Max: req.Max, Until: req.Until.UnixMicro(), Room: q.roomOf(req.Room), Out: dst}
	q.table.Begin(&take, now.UnixMicro())
	defer func() { q.table.End() }() // Room may panic
	for {
		if time.Now().After(q.until) {
			return take.Out, time.Time{}, q.unheard()
		}
		if q.table.Serve(&take, now.UnixMicro()) {
			break
		}
		drains := q.drains
		if err := q.fetch(ctx, &take, now); err != nil {
			if len(take.Out) > len(dst) {
				break // the next call meets the failure
			}
			return take.Out, time.Time{}, err
		}
		if q.drains != drains {
			break // room was asked for before; the next call leaves alone what is given away
		}
	}
	return take.Out, q.table.Next(now.UnixMicro()), nil
}

// roomOf is room but for the partitions that are being given to others. The queue
// is locked.
func (q *Queue) roomOf(room func(string) int) func(string) int {
	draining := false
	for _, p := range q.owned {
		draining = draining || p != nil && p.draining
	}
	if !draining {
		return room
	}
	return func(destination string) int {
		if h, _ := q.table.Lane(destination).Home.(*home); h != nil && h.p.draining {
			return 0
		}
		if room == nil {
			return int(^uint(0) >> 1)
		}
		return room(destination)
	}
}

func (q *Queue) unheard() error {
	if q.lastErr != nil {
		return fmt.Errorf("natsqueue: what was owned no longer is: %w", q.lastErr)
	}
	return errors.New("natsqueue: what was owned no longer is: no sign of life was stored in time")
}

// Wake has a value whenever something that this process did not put may have
// become due.
func (q *Queue) Wake() <-chan struct{} { return q.wake }

// awake tells who waits that there may be something to lease.
func (q *Queue) awake() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}
