package analytics

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// Version is the version of the library. The client sends it with each batch, in
// context.library.
const Version = "0.1.0"

const libraryName = "analytics-go"

const (
	// maxUploads is how many batches may be under way at once, including those in back-off.
	maxUploads = 4

	// startPause is the shortest time between two attempts to open SpoolDir. After an
	// attempt fails, all calls return its error until startPause has passed. The next
	// call tries again.
	startPause = time.Second
)

var (
	// ErrClosed is returned by calls after Shutdown or Close.
	ErrClosed = errors.New("analytics: the client is closed")

	// ErrQueueFull is returned by calls whose message would exceed MaxMemory or SpoolMax.
	// The message was not queued. Enqueue does not return ErrQueueFull at once, but waits
	// for room.
	ErrQueueFull = errors.New("analytics: the queue is full")

	// With SpoolOnly, a call whose message could not be written to SpoolDir returns an error
	// that wraps ErrNotSpooled. The message was not queued.
	ErrNotSpooled = errors.New("analytics: SpoolDir cannot be written")
)

// A Client queues messages in memory and sends them to the collector in
// batches, in the background. Make one with [New], set the fields that should
// differ from their defaults, and share it: all methods may be called from
// several goroutines at once.
//
// The fields are read once, at the first call. Changing them later has no effect and is a
// data race. If a field cannot be used, every call returns a *ConfigError that names it.
//
// A call that returns nil has encoded and queued its message, so the caller may change the
// message and its maps. Each accepted message is either delivered or dropped for a
// [Reason]. [Stats] counts delivered and dropped messages, OnDelivery gets them, and drops
// are logged. No call waits for the network, except Enqueue.
//
// Up to 4 batches are under way at once. Meanwhile the next batch grows, up to the limits
// of a request. Retries may change the order in which batches arrive. Each message carries
// its time and a messageId, by which the collector recognizes duplicates.
//
// A panic in Transport, in the handler of Logger or in OnDelivery ends the program:
// like http.Client and log/slog, the client does not recover it.
type Client struct {
	// Endpoint is the collector's base URL, http or https. Requests go to Endpoint +
	// "/v1/batch"; an Endpoint may also end in /v1 or /v1/batch. Empty means the value of the
	// environment variable HOOKFERRY_ENDPOINT. If that variable is empty, too, the client uses
	// DefaultEndpoint.
	Endpoint string

	// FlushAt is the number of queued messages at which the client starts an upload. A
	// batch may have more messages: while all uploads are busy, it keeps growing. Zero
	// means the value of Size. If both are zero, FlushAt is DefaultFlushAt, 20.
	FlushAt int

	// Size is another name of FlushAt. If both are set, FlushAt wins.
	Size int

	// FlushAfter is the time from the first message of a batch to its upload, unless the
	// batch reaches FlushAt earlier. If all uploads are busy then, the batch waits longer.
	// Zero means DefaultFlushAfter, 5 seconds.
	FlushAfter time.Duration

	// Transport makes the requests. It gets one request per attempt, must stop when the
	// request's context ends, and may be shared. To reuse an http.Client, set this to its
	// Transport; the other fields of the http.Client have no effect here. Nil means a
	// transport that belongs to this client, which keeps its connections until Shutdown.
	Transport http.RoundTripper

	// Timeout bounds one attempt, from dialing to the end of the answer.
	// Zero means DefaultTimeout, 10 seconds.
	Timeout time.Duration

	// Gzip compresses requests. The client compresses each batch once, in the background.
	// This takes memory that does not count towards MaxMemory: about 1 MB and the
	// compressed batch, for each upload that is under way. The collector must accept
	// Content-Encoding: gzip. The limits of a batch apply to its uncompressed size.
	Gzip bool

	// MaxMemory bounds the bytes of all messages in memory: collecting, waiting, under way
	// and in back-off. A message counts with its size as sent, including a comma. The
	// buffers may be larger, by up to MaxBatchSize for each of the few batches that are not
	// full, and by twice that for a batch that is divided because of a 413. A call whose message would exceed MaxMemory returns ErrQueueFull at once. Zero
	// means DefaultMaxMemory, 64 MB. Less than MaxBatchSize is an error. With SpoolDir,
	// less than six times MaxBatchSize is an error.
	MaxMemory int

	// SpoolDir is a folder that keeps messages until they are delivered. Once a call has
	// returned nil, its message survives the end of the process, even by kill -9, and an
	// outage of the collector. There are two exceptions, in which messages are in memory alone:
	//
	//   - While the disk is full or fails, new messages are held in memory, and move to the
	//     folder only if they cannot be delivered. Stats counts them as Unspooled, and the
	//     client logs the failure. With SpoolOnly, calls fail instead.
	//   - If somebody deletes the folder while the client runs, the client notices within a
	//     second, or at once with SyncEachCall. It makes the folder again, and writes the
	//     messages there that it still has in memory, and logs that. Messages that were on disk
	//     alone are lost, and dropped as ReasonDamaged.
	//
	// The client makes the folder if it does not exist. A folder belongs to one client at a
	// time. Calls return a *ConfigError if another client uses the folder, in this or another
	// process, if the file system refuses access, or if another user could read or change the
	// messages, because of the folder's owner or mode. A call that is made a second or more after
	// such an error tries again to open the folder. Empty means that messages are held in
	// memory alone.
	//
	// Messages that would otherwise be dropped as ReasonExhausted or ReasonShutdown stay in
	// the folder. So do messages refused by an answer that says nothing about them: 401 and 403,
	// with which a collector refuses the write key, and 3xx, 404, 405 and 407, with which a proxy
	// or another server answers at the Endpoint. The client logs such answers, and Stats counts
	// them as Misdirected. Any other final answer, such as 400, drops the messages of its batch
	// as ReasonRefused. If memory is short, waiting messages move to the folder. While the
	// collector is down or answers so, the client probes it with one batch at a time, every 10 to
	// 20 seconds. Once the collector accepts a batch, the client sends the other batches: two at
	// a time, then three, then four. The oldest batches come first, but those that have failed
	// come last. So a batch that the collector never accepts holds up no others. A message may
	// arrive twice, with the same messageId.
	//
	// The first call, which may be Flush, starts to send the messages that an earlier
	// process left. While the disk is full, messages in the folder are still sent, which frees
	// space on the disk.
	SpoolDir string

	// SpoolMax bounds the files in SpoolDir, in bytes. A file that collects messages counts
	// with its full size, about 520 KB. At the bound, calls return ErrQueueFull. Zero means
	// DefaultSpoolMax, 1 GB. Less than 3 MB is an error.
	SpoolMax int64

	// SpoolSync is how often messages in SpoolDir are synced to the disk. Syncing protects
	// against a loss of power or a crash of the operating system. A crash of the process
	// alone loses nothing, even without syncing. Zero leaves syncing to the operating system, which
	// may take 30 seconds. With SyncEachCall, each call waits for the disk, which takes
	// some milliseconds; calls that wait at the same time share one sync.
	SpoolSync time.Duration

	// With SpoolOnly, a call fails if its message cannot be written to SpoolDir. Its error
	// wraps ErrNotSpooled and the cause. Without SpoolOnly, the client would accept the
	// message and hold it in memory alone. So with SpoolOnly, each message whose call has
	// returned nil survives the end of the process, even while the disk is full. SpoolOnly
	// without SpoolDir is an error.
	SpoolOnly bool

	// Logger gets a line as soon as a kind of trouble begins, and then at most one line a
	// minute while the trouble lasts, and at Shutdown. At debug level it gets every attempt. It never gets
	// the write key. Its handler may call the methods that OnDelivery may call. Nil means that
	// warnings and errors go to slog.Default; a Logger with slog.DiscardHandler silences them.
	// If Logger is nil and the environment variable DEBUG is "*", or a list, separated by
	// commas or spaces, that contains "analytics", then the client logs everything to standard
	// error.
	Logger *slog.Logger

	// OnDelivery, if not nil, gets the outcome of the messages of each batch. It is called
	// once for all messages of a batch with the same outcome, so usually once per batch. It
	// is called from several goroutines at once, and each call blocks one upload until it
	// returns. It may call Stats and the methods that queue messages, except Enqueue, which
	// may wait for the blocked upload. It must not call Flush, Shutdown or Close, which
	// wait for it. It must not end its goroutine, as FailNow of a test does.
	OnDelivery func(Delivery)

	reserve func(*os.File, int64) error // Reserve of spool.Config; set by tests

	writeKey *string // a pointer, so that printing a Client does not print the key

	begun    atomic.Bool // setting up has succeeded, or has failed for good
	starting sync.Mutex  // held while the client is set up
	startErr error
	retryAt  time.Time // before this time, calls return startErr; later, a call sets up again

	queue queue
}

// New returns a client for the source that writeKey belongs to. An empty writeKey means the
// value of the environment variable HOOKFERRY_WRITE_KEY at the first call. New starts
// nothing and cannot fail: the first call returns the error for an unusable write key or
// field.
func New(writeKey string) *Client { return &Client{writeKey: &writeKey} }

// begin sets the client up at its first call, and starts to send the messages in SpoolDir.
func (c *Client) begin() error {
	if c.begun.Load() {
		return c.startErr
	}
	err := c.setUpOnce()
	if err == nil {
		c.queue.lock()
		defer c.queue.unlock()
		c.queue.dispatch()
	}
	return err
}

// setUpOnce sets the client up at the first call. It tries again only after an error
// that may pass, such as a SpoolDir that another process uses.
func (c *Client) setUpOnce() error {
	var report *reporter
	defer func() { // runs after c.starting is unlocked
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
		// Another process may be about to release SpoolDir.
		c.retryAt = time.Now().Add(startPause)
	} else {
		c.begun.Store(true)
	}
	return c.startErr
}

// setUp initializes the client from its fields. If a field is wrong, the reporter is nil.
// Otherwise the caller must unmute the reporter, even if setUp returns an error.
func (c *Client) setUp() (*reporter, error) {
	conf, err := c.settings()
	if err != nil {
		return nil, err
	}
	report := newReporter(conf.log)
	var disk spooler
	var spooled []*batch
	if conf.spoolDir != "" && !c.queue.isClosed() {
		if disk, spooled, err = openSpooler(conf, report); err != nil {
			return report, err
		}
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	c.queue.lock()
	c.queue.conf = conf
	c.queue.report = report
	c.queue.ctx, c.queue.cancel = ctx, cancel
	c.queue.timer = time.AfterFunc(conf.flushAfter, c.queue.makeDue) // each batch restarts it
	c.queue.checker = time.AfterFunc(checkPause, c.queue.checkOften)
	c.queue.watching = true
	for range maxUploads {
		c.queue.idle = append(c.queue.idle, newUploader(&c.queue))
	}
	c.queue.starts = make([]*uploader, 0, maxUploads)
	c.queue.throttle.q, c.queue.outage.q, c.queue.outage.limit = &c.queue, &c.queue, maxUploads
	closed := c.queue.closed // by an earlier Shutdown, which had nothing to wait for
	if !closed {
		c.queue.spooler, c.queue.spooled = disk, spooled
		for _, b := range spooled {
			c.queue.count.Recovered += uint64(b.n)
			c.queue.count.Spooled += b.n
		}
	}
	c.queue.unlock()
	if closed {
		disk.close()
	}
	return report, nil
}

// Identify queues an identify call.
//
// It returns a *[FieldError] or *[SizeError] for a message that cannot be sent, a
// *[ConfigError] for a client that cannot be used, [ErrQueueFull], [ErrClosed], or an error
// that wraps [ErrNotSpooled]. After an error, nothing is queued. Identify does not write to
// the message, retains no part of it, and never waits for the network. All of this also
// holds for the other five calls.
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

// Enqueue queues a call of any kind. Where the other methods return [ErrQueueFull], it
// waits until there is room, the client is closed or ctx ends. If ctx ends, the error wraps
// both ErrQueueFull and the cause of ctx. Enqueue is for programs that prefer waiting to
// losing messages, such as imports. While the collector is down, it may wait until ctx
// ends. For the other errors see [Client.Identify].
func (c *Client) Enqueue(ctx context.Context, m Message) error {
	if m == nil {
		return &FieldError{Type: "enqueue", Field: "message", Problem: "is nil"}
	}
	s := newScratch()
	s.text, s.err = m.AppendJSON(s.text)
	return c.acceptWithin(ctx, s)
}
