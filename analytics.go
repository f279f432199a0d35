package analytics

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// Version is the version of the library, as the collector sees it.
const Version = "0.1.0"

const libraryName = "analytics-go"

const (
	// maxUploads is how many batches are on their way at once, those in
	// back-off included.
	maxUploads = 4

	// startPause is how long calls fail because SpoolDir cannot be used before
	// it is tried again.
	startPause = time.Second
)

var (
	// ErrClosed is returned by calls after Shutdown or Close.
	ErrClosed = errors.New("analytics: the client is closed")

	// ErrQueueFull is returned by calls whose message would exceed
	// MaxMemory or SpoolMax. The message was not queued; it may be queued
	// later, by Enqueue as soon as there is room.
	ErrQueueFull = errors.New("analytics: the queue is full")

	// ErrNotSpooled is wrapped by the error of calls of a client with SpoolOnly
	// whose message could not be written to SpoolDir. The message was not queued.
	ErrNotSpooled = errors.New("analytics: SpoolDir cannot be written")
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
// A call that returns nil has encoded and queued its message, so the caller may change the
// message and its maps. The message ends as delivered or as dropped for a [Reason]. [Stats]
// counts both, OnDelivery hears of both, and drops are logged. No call waits for the
// network, except Enqueue.
//
// Up to 4 batches are on their way at once, and while they are, the next one
// grows to the limits of a request. Retries may change the order in which
// batches arrive; messages carry their time and a messageId, by which the
// collector recognizes what it has seen.
//
// A panic in Transport, in the handler of Logger or in OnDelivery is not recovered,
// as net/http and log/slog recover none there: it ends the program.
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
	// comma between them; the buffers around them may be larger, up to
	// MaxBatchSize for each of the few batches that are not full. A call that would
	// exceed it returns ErrQueueFull at once. Zero means DefaultMaxMemory,
	// 64 MB; less than MaxBatchSize is an error, and with SpoolDir less than six
	// times that.
	MaxMemory int

	// SpoolDir is a folder that keeps messages until they are delivered, so
	// that they survive the process and an outage of the collector: from the
	// moment a call has returned nil, the end of the process, kill -9
	// included, loses nothing. It is made if it does not exist, and belongs to
	// one client at a time. While another one has it, also of another process,
	// or the file system refuses it, calls return a *ConfigError; once that is
	// over, they work within a second. Empty means that messages live in
	// memory alone.
	//
	// Messages stay in the folder that would otherwise be dropped as ReasonExhausted or
	// ReasonShutdown, and messages move there if memory is short. While the collector is
	// down, one batch at a time probes it, every 10 to 20 seconds. Once the collector takes
	// one, the next ones follow, oldest first: two at a time, then three, then four. A
	// message may arrive twice, with the same messageId.
	//
	// The first call, which may be Flush, starts to send the messages that an earlier
	// process left. While the disk is full, messages are held in memory alone, and go to
	// the folder only if they cannot be delivered. Stats counts them as Unspooled, and the
	// log says so; SpoolOnly refuses them instead. Messages in the folder are still sent,
	// which frees the disk.
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

	// SpoolOnly refuses a call whose message cannot be written to SpoolDir, with an
	// error that wraps ErrNotSpooled and says why, in place of holding the message in
	// memory alone. So a call that returned nil survives the end of the process even
	// if the disk is full. Without SpoolDir it is an error.
	SpoolOnly bool

	// Logger gets one line for trouble of a kind and at most one a minute
	// while it lasts, and at debug level every attempt. It never gets
	// the write key. It may use the client as OnDelivery may. Nil discards,
	// unless the environment variable DEBUG names "analytics" in a comma- or
	// space-separated list (or is "*"): then everything is logged to standard
	// error.
	Logger *slog.Logger

	// OnDelivery, if not nil, gets the outcome of the messages of a batch: once for all
	// messages with the same outcome, so once for nearly every batch. It is called from
	// several goroutines at once, and holds up one upload until it returns. It may call
	// Track and the like, and Stats. It must not call Flush, Shutdown or Close, which wait
	// for it, nor Enqueue, which may wait for this upload. It must not end its goroutine,
	// as a test's FailNow would.
	OnDelivery func(Delivery)

	reserve func(*os.File, int64) error // of spool.Config; set by tests

	writeKey *string // a pointer, so that printing a Client does not print it

	begun    atomic.Bool // the client is set up, or cannot be
	starting sync.Mutex  // held while it is set up
	startErr error
	retryAt  time.Time // calls return startErr until then; the next call sets up again

	queue
}

// New returns a client for the source that writeKey belongs to; an empty one means
// the environment variable HOOKFERRY_WRITE_KEY at the first call. It starts
// nothing and cannot fail: an unusable write key or field is the error of the
// first call.
func New(writeKey string) *Client { return &Client{writeKey: &writeKey} }

// begin starts the client at its first call, and the sending of what is in
// SpoolDir.
func (c *Client) begin() error {
	if c.begun.Load() {
		return c.startErr
	}
	err := c.setUpOnce()
	if err == nil {
		c.lock()
		defer c.unlock()
		c.dispatch()
	}
	return err
}

// setUpOnce sets the client up, unless it is.
func (c *Client) setUpOnce() error {
	var report *reporter
	defer func() { // once c.starting is free
		if report != nil {
			report.unmute()
		}
	}()
	c.starting.Lock()
	defer c.starting.Unlock()
	if c.begun.Load() || time.Now().Before(c.retryAt) {
		return c.startErr
	}
	report, c.startErr = c.setUp()
	var config *ConfigError
	if errors.As(c.startErr, &config) && config.Err != nil {
		// The process before this one may be about to let SpoolDir go.
		c.retryAt = time.Now().Add(startPause)
	} else {
		c.begun.Store(true)
	}
	return c.startErr
}

// setUp gives the client what it works with, as its fields say. It returns a reporter to
// be unmuted, unless the fields are wrong.
func (c *Client) setUp() (*reporter, error) {
	conf, err := c.settings()
	if err != nil {
		return nil, err
	}
	report := newReporter(conf.log)
	var disk spooler
	var spooled []*batch
	if conf.spoolDir != "" && !c.isClosed() {
		if disk, spooled, err = openSpooler(conf, report); err != nil {
			return report, err
		}
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	c.lock()
	c.conf = conf
	c.report = report
	c.ctx, c.cancel = ctx, cancel
	for range maxUploads {
		c.idle = append(c.idle, newUploader(&c.queue))
	}
	c.starts = make([]*uploader, 0, maxUploads)
	c.gate.q, c.outage.q, c.outage.limit = &c.queue, &c.queue, maxUploads
	closed := c.closed // by a Shutdown that found nothing to end
	if !closed {
		c.spooler, c.spooled = disk, spooled
		for _, b := range spooled {
			c.count.Recovered += uint64(b.n)
			c.count.Spooled += b.n
		}
	}
	c.unlock()
	if closed {
		disk.close()
	}
	return report, nil
}

// Identify queues an identify call.
//
// It returns a *[FieldError] or *[SizeError] for a message that cannot be sent, a
// *[ConfigError] for a client that cannot be used, [ErrQueueFull] or
// [ErrClosed], and has then queued nothing. It does not write to the message
// or keep any part of it, and never waits for the network. The same holds for
// the other five calls.
func (c *Client) Identify(m *Identify) error {
	s := newScratch()
	s.text, s.err = m.AppendJSON(s.text)
	return c.accept(s)
}

// Track queues a track call; see [Client.Identify] for the errors.
func (c *Client) Track(m *Track) error {
	s := newScratch()
	s.text, s.err = m.AppendJSON(s.text)
	return c.accept(s)
}

// Page queues a page call; see [Client.Identify] for the errors.
func (c *Client) Page(m *Page) error {
	s := newScratch()
	s.text, s.err = m.AppendJSON(s.text)
	return c.accept(s)
}

// Screen queues a screen call; see [Client.Identify] for the errors.
func (c *Client) Screen(m *Screen) error {
	s := newScratch()
	s.text, s.err = m.AppendJSON(s.text)
	return c.accept(s)
}

// Group queues a group call; see [Client.Identify] for the errors.
func (c *Client) Group(m *Group) error {
	s := newScratch()
	s.text, s.err = m.AppendJSON(s.text)
	return c.accept(s)
}

// Alias queues an alias call; see [Client.Identify] for the errors.
func (c *Client) Alias(m *Alias) error {
	s := newScratch()
	s.text, s.err = m.AppendJSON(s.text)
	return c.accept(s)
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
	s := newScratch()
	s.text, s.err = m.AppendJSON(s.text)
	return c.acceptWithin(ctx, s)
}
