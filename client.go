package analytics

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/hookferry/analytics/internal/spool"
)

// Version is the version of the library, as the collector sees it.
const Version = "0.1.0"

const libraryName = "analytics-go"

// maxUploads is how many batches are on their way at once, those in back-off
// included.
const maxUploads = 4

var (
	// ErrClosed is returned by calls after Shutdown or Close.
	ErrClosed = errors.New("analytics: the client is closed")

	// ErrQueueFull is returned by calls whose message would exceed
	// MaxMemory or SpoolMax. The message was not queued; it may be queued
	// later, by Enqueue as soon as there is room.
	ErrQueueFull = errors.New("analytics: the queue is full")
)

// A Client queues messages in memory and sends them to the collector in
// batches, in the background. Make one with [New], set the fields that should
// differ from their defaults, and share it: all methods may be called from
// several goroutines at once.
//
// The fields are read once, at the first call; changing them afterwards has no
// effect and is a data race. A field that cannot be used makes every call
// return a *ConfigError that names it.
//
// A call that returns nil has queued its message. The message has been encoded
// by then, so the caller may go on changing it and its maps. It ends as
// delivered or as dropped for a [Reason]; both are counted in [Stats], told to
// OnDelivery, and the latter is logged. No call waits for the network, except Enqueue.
//
// Up to 4 batches are on their way at once, and while they are, the next one
// grows to the limits of a request. Retries may change the order in which
// batches arrive; messages carry their time and a messageId, by which the
// collector recognizes what it has seen.
type Client struct {
	// Endpoint is the collector's base URL, http or https; requests go to
	// Endpoint + "/v1/batch". Empty means the environment variable
	// HOOKFERRY_ENDPOINT, and if that is empty, too, DefaultEndpoint.
	Endpoint string

	// FlushAt is how many queued messages start an upload. It is a trigger,
	// not a maximum: a batch grows beyond it while all uploads are busy. Zero
	// means Size; if that is zero too, DefaultFlushAt, 20.
	FlushAt int

	// Size is another name of FlushAt. If both are set, FlushAt wins.
	Size int

	// FlushAfter is how long the first message of a batch waits at most
	// before it is uploaded. Zero means DefaultFlushAfter, 5 seconds.
	FlushAfter time.Duration

	// Transport makes the requests. It sees one request per attempt, must
	// heed the request's context, and may be shared. Of an http.Client, give
	// its Transport: its other fields have no part here. Nil means a transport of
	// the client's own, which keeps its connections until Shutdown.
	Transport http.RoundTripper

	// Timeout bounds one attempt, from dialing to the end of the answer.
	// Zero means DefaultTimeout, 10 seconds.
	Timeout time.Duration

	// Gzip makes requests smaller, at the cost of compressing each batch once,
	// in the background, and of memory that does not count towards MaxMemory:
	// about 1 MB and the compressed batch, for each upload at once. The collector
	// must take Content-Encoding: gzip. The limits of a batch are those of the
	// text before.
	Gzip bool

	// MaxMemory bounds the bytes of all messages in memory: collecting,
	// waiting, under way and in back-off. They are counted as sent, with the
	// comma between them; the buffers around them may be a third larger, and
	// a batch may have the buffer of a larger one before it. A call that would
	// exceed it returns ErrQueueFull at once. Zero means DefaultMaxMemory,
	// 64 MB; less than MaxBatchSize is an error, and with SpoolDir less than six
	// times that.
	MaxMemory int

	// SpoolDir is a folder that keeps messages until they are delivered, so
	// that they survive the process and an outage of the collector: from the
	// moment a call has returned nil, the end of the process, kill -9
	// included, loses nothing. It is made if it does not exist, and belongs to
	// one client at a time: a second one, also of another process, gets a
	// *ConfigError. Empty means that messages live in memory alone.
	//
	// What would be dropped as ReasonExhausted or ReasonShutdown stays in the
	// folder, and what memory has no room for goes there. While the collector
	// is down, one batch at a time probes it, every 10 to 20 seconds; once it is
	// taken, the next ones follow, at first two at a time, then three, then
	// four, oldest first. A message may arrive twice, with the messageId by
	// which the collector recognizes it.
	//
	// What an earlier process left is sent from the first call on; Flush is
	// such a call. Should the disk be full later, messages are held in memory
	// alone: Stats counts them as Unspooled, and the log says it.
	SpoolDir string

	// SpoolMax bounds the files in SpoolDir, in bytes. A file that collects
	// messages counts with its full size, about 520 KB. At the bound, calls
	// return ErrQueueFull. Zero means DefaultSpoolMax, 1 GB; less than 3 MB is
	// an error.
	SpoolMax int64

	// SpoolSync is how often messages in SpoolDir are synced to the disk. It
	// matters to a loss of power or a crash of the operating system, not to
	// that of the process. Zero leaves it to the operating system, which may
	// take 30 seconds; SyncEachCall makes each call wait for the disk, some
	// milliseconds, shared by the calls that wait together.
	SpoolSync time.Duration

	// Logger gets one line for trouble of a kind and at most one a minute
	// while it lasts, and at debug level every attempt. It never gets
	// the write key. Nil discards, unless the environment variable DEBUG
	// names "analytics" in a comma- or space-separated list (or is "*"):
	// then everything is logged to standard error.
	Logger *slog.Logger

	// OnDelivery, if not nil, is told what became of the messages of a
	// batch: once for those that share a fate, so once for nearly every
	// batch. It is called from several goroutines at once, holds up one
	// of the uploads until it returns, and may call Track and its like, and
	// Stats. Flush, Shutdown and Close wait for it, so it must not call them.
	OnDelivery func(Delivery)

	writeKey *string // a pointer, so that printing a Client does not print it

	start    sync.Once
	startErr error
	conf     *settings
	report   *reporter
	ctx      context.Context // of all uploads
	cancel   context.CancelCauseFunc
	uploads  sync.WaitGroup // uploaders at work

	mu     sync.Mutex // guards the rest; never held across I/O, a callback or a wait
	closed bool
	open   *batch      // takes messages; nil when there are none
	full   []*batch    // at a limit, waiting for an uploader, oldest first
	flying []*batch    // with an uploader
	idle   []*uploader // with no batch
	timer  *time.Timer // when the open batch is due
	memory int         // the footprints of all batches
	count  counters
	room   chan struct{} // closed when there is more room; nil when nobody waits

	spooler *spooler // nil without SpoolDir

	gate gate // closed while the collector has asked for a pause
}

// New returns a client for the source that writeKey belongs to; an empty one means
// the environment variable HOOKFERRY_WRITE_KEY at the first call. It starts
// nothing and cannot fail: an unusable write key or field is the error of the
// first call.
func New(writeKey string) *Client { return &Client{writeKey: &writeKey} }

// begin starts the client at its first call.
func (c *Client) begin() error {
	c.start.Do(func() {
		conf, err := c.settings()
		if err != nil {
			c.startErr = err
			return
		}
		report := newReporter(conf.log)
		var spooler *spooler
		if conf.spoolDir != "" && !c.isClosed() {
			if spooler, err = openSpooler(conf, report); err != nil {
				c.startErr = err
				return
			}
		}
		ctx, cancel := context.WithCancelCause(context.Background())
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.closed && spooler != nil { // by a Shutdown that found nothing to end
			spooler.close()
			spooler = nil
		}
		c.conf = conf
		c.report = report
		c.ctx, c.cancel = ctx, cancel
		for range maxUploads {
			c.idle = append(c.idle, newUploader(c))
		}
		if spooler != nil {
			c.spooler = spooler
			for _, b := range spooler.kept {
				c.count.recovered += uint64(b.n)
				c.count.spooled += b.n
			}
			c.dispatch()
		}
	})
	return c.startErr
}

// Identify queues an identify call.
//
// It returns a *[FieldError] or *[SizeError] for a message that cannot be sent, a
// *[ConfigError] for a client that cannot be used, [ErrQueueFull] or
// [ErrClosed], and has then queued nothing. It does not write to the message
// or keep any part of it, and never waits for the network. So do the other
// five.
func (c *Client) Identify(m *Identify) error {
	s, err := c.scratch()
	if err != nil {
		return err
	}
	s.text, err = m.AppendJSON(s.text)
	return c.queue(s, err)
}

// Track queues a track call; see [Client.Identify] for the errors.
func (c *Client) Track(m *Track) error {
	s, err := c.scratch()
	if err != nil {
		return err
	}
	s.text, err = m.AppendJSON(s.text)
	return c.queue(s, err)
}

// Page queues a page call; see [Client.Identify] for the errors.
func (c *Client) Page(m *Page) error {
	s, err := c.scratch()
	if err != nil {
		return err
	}
	s.text, err = m.AppendJSON(s.text)
	return c.queue(s, err)
}

// Screen queues a screen call; see [Client.Identify] for the errors.
func (c *Client) Screen(m *Screen) error {
	s, err := c.scratch()
	if err != nil {
		return err
	}
	s.text, err = m.AppendJSON(s.text)
	return c.queue(s, err)
}

// Group queues a group call; see [Client.Identify] for the errors.
func (c *Client) Group(m *Group) error {
	s, err := c.scratch()
	if err != nil {
		return err
	}
	s.text, err = m.AppendJSON(s.text)
	return c.queue(s, err)
}

// Alias queues an alias call; see [Client.Identify] for the errors.
func (c *Client) Alias(m *Alias) error {
	s, err := c.scratch()
	if err != nil {
		return err
	}
	s.text, err = m.AppendJSON(s.text)
	return c.queue(s, err)
}

// Enqueue queues a call of any kind, and waits while that would return
// [ErrQueueFull]: until there is room, the client is closed or ctx ends, and in the
// last case the error is both ErrQueueFull and the cause of ctx. It is for
// programs that would rather be slowed than lose messages, such as imports;
// a collector that is down holds them up until ctx ends. m is one of this
// package's six kinds, or the error is a *[FieldError]; for the others see
// [Client.Identify].
func (c *Client) Enqueue(ctx context.Context, m Message) error {
	switch m.(type) {
	case *Identify, *Track, *Page, *Screen, *Group, *Alias:
	default:
		return &FieldError{Type: "enqueue", Field: "message", Problem: fmt.Sprintf("is a %T, not one of this package", m)}
	}
	s, err := c.scratch()
	if err != nil {
		return err
	}
	s.text, err = m.AppendJSON(s.text)
	return c.finish(ctx, s, err)
}

// A scratch is where a call encodes its message. Encoding into it and copying
// costs less than encoding under the mutex, where calls would wait for each
// other's maps and a caller's MarshalJSON could not use the client.
type scratch struct{ text []byte }

var scratches = sync.Pool{New: func() any { return &scratch{text: make([]byte, 0, 1<<10)} }}

// scratch begins a call.
func (c *Client) scratch() (*scratch, error) {
	if err := c.begin(); err != nil {
		return nil, err
	}
	s := scratches.Get().(*scratch)
	s.text = s.text[:0]
	return s, nil
}

// queue ends a call that does not wait.
func (c *Client) queue(s *scratch, err error) error {
	var none context.Context
	return c.finish(none, s, err)
}

// finish ends a call: it takes the encoded message, unless encoding failed. With
// a context, it waits for room.
func (c *Client) finish(ctx context.Context, s *scratch, err error) error {
	if err == nil {
		err = c.add(ctx, s.text)
	}
	const keep = 2 * MaxCallSize // refused messages may have grown it further
	if cap(s.text) <= keep {
		scratches.Put(s)
	}
	if err != nil && errors.Is(err, ErrQueueFull) {
		c.report.refused()
	}
	return err
}

// add copies a message into the open batch. ctx is nil for a call that does not
// wait for room.
func (c *Client) add(ctx context.Context, message []byte) error {
	var sum uint32
	if c.spooler != nil {
		sum = spool.Checksum(message)
	}
	var room <-chan struct{}
	for {
		b, n, err := c.put(message, sum)
		if err == errNoSegment {
			if err = c.prepare(); err == nil {
				continue
			}
		}
		switch {
		case err == nil:
			c.commit(b, n)
			return nil
		case err != ErrQueueFull:
			return err
		case ctx == nil:
			return c.refuse(err)
		}
		if room != nil {
			select {
			case <-room:
			case <-ctx.Done():
				return c.refuse(fmt.Errorf("%w: %w", ErrQueueFull, context.Cause(ctx)))
			}
		}
		room = c.nextRoom()
	}
}

// refuse counts a call that ends with err, an ErrQueueFull.
func (c *Client) refuse(err error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.count.refused++
	return err
}

// nextRoom returns a channel that is closed when there may be more room than
// now. Only a message that is tried after that, and refused, may wait for it.
func (c *Client) nextRoom() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.room == nil {
		c.room = make(chan struct{})
	}
	if c.open != nil { // or it might wait for FlushAfter
		c.open.due = true
		c.dispatch()
	}
	return c.room
}

// tellRoom wakes the calls that wait for room. c.mu is held.
func (c *Client) tellRoom() {
	if c.room != nil {
		close(c.room)
		c.room = nil
	}
}

// put is add where it need not wait for a file to be made; errNoSegment says
// that it must. It returns the batch that has taken the message, and how many
// the batch now has.
func (c *Client) put(message []byte, sum uint32) (*batch, int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, 0, ErrClosed
	}
	if c.waitingMemory()+footprint(len(message)) > c.conf.maxQueue {
		return nil, 0, ErrQueueFull
	}
	if c.open != nil && !c.open.fits(len(message)) {
		c.fill()
	}
	if c.open == nil {
		if c.open = c.openBatch(); c.open == nil {
			return nil, 0, errNoSegment
		}
		c.armTimer()
	}
	if c.open.seg == nil {
		c.open.append(message)
	} else if err := c.open.write(message, sum); err != nil {
		c.spooler.fail()
		c.spooler.report.spool(err)
		if c.open.n > 0 {
			c.fill()
		} else {
			c.open.seg.Remove()
			c.open = nil
		}
		return nil, 0, errNoSegment
	}
	if c.spooler != nil && c.open.seg == nil {
		c.count.unspooled++
	}
	c.memory += footprint(len(message))
	c.count.queued++
	c.count.pending++
	b, n := c.open, c.open.n
	if n >= c.conf.flushAt {
		b.due = true
	}
	if b.due || len(c.full) > 0 {
		c.dispatch()
	}
	return b, n, nil
}

// fill ends the open batch. c.mu is held.
func (c *Client) fill() {
	b := c.open
	c.open = nil
	c.full = append(c.full, b)
	if c.spooler != nil {
		c.tend()
	}
}

// waitingMemory returns the part of c.memory that conf.maxQueue bounds. c.mu
// is held.
func (c *Client) waitingMemory() int {
	if c.spooler != nil {
		return c.memory - c.spooler.flying
	}
	return c.memory
}

// openBatch returns a batch for the next messages, nil if that takes a segment
// of the spool that has yet to be made. c.mu is held.
func (c *Client) openBatch() *batch {
	now := time.Now()
	if c.spooler == nil {
		return newBatch(now)
	}
	b := c.spooler.newBatch(now)
	c.tend()
	return b
}

func (c *Client) isClosed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closed
}

// armTimer makes the open batch due after FlushAfter. c.mu is held.
func (c *Client) armTimer() {
	if c.timer == nil {
		c.timer = time.AfterFunc(c.conf.flushAfter, c.ripen)
		return
	}
	c.timer.Reset(c.conf.flushAfter)
}

// ripen runs when the timer fires. The timer is not stopped when a batch
// leaves for another reason, so this may be about a batch long gone.
func (c *Client) ripen() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open != nil && time.Since(c.open.opened) >= c.conf.flushAfter {
		c.open.due = true
		c.dispatch()
	}
}

// dispatch hands what is due to idle uploaders. Without one, batches wait and
// grow. c.mu is held.
func (c *Client) dispatch() {
	for len(c.idle) > 0 {
		b := c.next()
		if b == nil {
			return
		}
		last := len(c.idle) - 1
		u := c.idle[last]
		c.idle = c.idle[:last]
		c.uploads.Go(func() { u.run(b) })
	}
}

// next takes the batch to be sent next, nil if none is due or the gate is
// closed. c.mu is held.
func (c *Client) next() *batch {
	var b *batch
	switch {
	case c.gate.isClosed():
		return nil
	case c.spooler != nil && len(c.flying) >= c.spooler.width:
		return nil
	case c.spooler != nil && len(c.spooler.kept) > 0 && c.ctx.Err() == nil:
		b = c.spooler.kept[0]
		c.spooler.kept = slices.Delete(c.spooler.kept, 0, 1)
	case len(c.full) > 0:
		b = c.full[0]
		c.full = slices.Delete(c.full, 0, 1)
	case c.open != nil && c.open.due:
		b, c.open = c.open, nil
	default:
		return nil
	}
	c.flying = append(c.flying, b)
	if c.spooler != nil {
		c.spooler.flying += b.footprint()
	}
	if b.seg != nil && !b.onDisk {
		b.ends = b.seg.Ends()
	}
	return b
}

// settle records the fate of a batch and returns the next one for its
// uploader; nil when it is to rest.
func (c *Client) settle(u *uploader, b *batch) *batch {
	c.mu.Lock()
	c.count.settle(b)
	c.mu.Unlock()

	b.deliveries(c.tell)
	if b.seg != nil {
		if err := b.seg.Remove(); err != nil {
			c.report.spool(err)
		}
	}

	c.mu.Lock()
	defer c.mu.Unlock()
	c.land(b)
	b.answer(b.fate, false)
	if c.spooler != nil && b.fate.reason == "" {
		c.widen()
	}
	b.release()
	return c.another(u)
}

// tell reports what became of messages.
func (c *Client) tell(d Delivery) {
	c.report.settled(d)
	if c.conf.onDelivery != nil {
		c.conf.onDelivery(d)
	}
}

// land ends the flight of b. c.mu is held.
func (c *Client) land(b *batch) {
	i := slices.Index(c.flying, b)
	c.flying = slices.Delete(c.flying, i, i+1)
	c.memory -= b.footprint()
	if c.spooler != nil {
		c.spooler.flying -= b.footprint()
	}
	c.tellRoom()
}

// another returns the next batch for an uploader; nil when it is to rest. c.mu
// is held.
func (c *Client) another(u *uploader) *batch {
	next := c.next()
	if next == nil {
		c.idle = append(c.idle, u)
	}
	return next
}
