// Package analytics is for programs written for github.com/segmentio/analytics-go/v3. Such
// a program changes only the import path:
//
//	import "github.com/hookferry/analytics/analyticsv3"
//
// The package has the same names, types and keys as v3, and passes each message to the
// [analytics.Client] of the root package. New programs should use the root package
// directly. docs/migrating.md lists the differences. The most important are: Messages go to
// Endpoint, or to HOOKFERRY_ENDPOINT, or to a local collector. If a message cannot be sent,
// [Client.Enqueue] also returns the error. Times are sent in UTC, in milliseconds.
//
// [analytics.Client]: https://pkg.go.dev/github.com/hookferry/analytics#Client
package analytics

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	root "github.com/hookferry/analytics"
)

// Version is the version of the library. The client sends it with each batch, in context.library.
const Version = root.Version

// The defaults of a Config's fields.
const (
	DefaultEndpoint  = root.DefaultEndpoint // used if HOOKFERRY_ENDPOINT is empty, too
	DefaultInterval  = 5 * time.Second
	DefaultBatchSize = 250
)

// A Client queues messages and sends them in the background. Its methods may be called
// from several goroutines at once.
type Client interface {
	// Close delivers the queued messages and returns within 31 seconds. It returns an
	// *UndeliveredError of the root package if messages were lost. Later calls return ErrClosed.
	io.Closer

	// Enqueue queues a message of this package, or a pointer to one. It never waits for the
	// network, does not change the message, and does not read it after the call.
	//
	// It returns a FieldError if a field is missing, ErrMessageTooBig beyond 32 KB,
	// ErrTooManyRequests while 64 MB of messages wait, and ErrClosed after Close. For all
	// other messages that cannot be sent it returns an error of the root package; examples
	// are an empty write key and NaN in a map. After an error, the message is lost. If the
	// message is too large, exceeds the 64 MB or has a value that cannot be sent, the
	// Callback and the Logger get the error, too.
	Enqueue(Message) error
}

// A Callback gets the outcome of each queued message. Its methods are called from several
// goroutines at once, and each call blocks an upload until it returns. They must not call Close.
type Callback interface {
	Success(Message)        // the collector has the message
	Failure(Message, error) // the message is lost, because of the error
}

// A Config configures a client. A field that is zero has its default.
type Config struct {
	// Endpoint is the collector's base URL. Empty means the value of the environment variable
	// HOOKFERRY_ENDPOINT. If that variable is empty, too, the client uses DefaultEndpoint.
	Endpoint string

	// Interval is the time from the first message of a batch to its upload, unless the batch
	// reaches BatchSize earlier. If all uploads are busy then, the batch waits longer. Zero
	// means DefaultInterval, 5 seconds.
	Interval time.Duration

	// Transport makes the requests. Nil means a transport that belongs to the client.
	Transport http.RoundTripper

	// Logger gets the log lines of the client. Nil means standard error.
	Logger Logger

	// Callback, if not nil, gets the outcome of each message. With a Callback, the client
	// holds messages and their maps until their outcome is known.
	Callback Callback

	// BatchSize is the number of queued messages at which the client starts an upload. While all
	// uploads are busy, a batch grows beyond BatchSize. Zero means DefaultBatchSize, 250.
	BatchSize int

	// Verbose makes the client log each attempt.
	Verbose bool

	// DefaultContext is added to the context of each message. Where the message and
	// DefaultContext have the same key, the client sends the value of the message. It
	// ignores DefaultContext.Library. It reads the maps of DefaultContext at each call, so
	// the program must not change them.
	DefaultContext *Context

	// RetryAfter is ignored. The client retries ten times, after random waits whose upper
	// bound doubles up to a minute, and obeys the collector's Retry-After.
	RetryAfter func(int) time.Duration
}

// New returns a client with the default configuration. New cannot fail: for an empty write
// key, Enqueue returns the error.
func New(writeKey string) Client {
	c, err := NewWithConfig(writeKey, Config{})
	if err != nil { // HOOKFERRY_ENDPOINT is not a URL
		return failed{err}
	}
	return c
}

// failed is a client that cannot be used. Enqueue returns err.
type failed struct{ err error }

func (f failed) Enqueue(Message) error { return f.err }
func (f failed) Close() error          { return nil }

// NewWithConfig returns a client, or a ConfigError that names the field that cannot be
// used. An empty write key means the value of the environment variable HOOKFERRY_WRITE_KEY.
// If that variable is empty, too, Enqueue returns an error.
func NewWithConfig(writeKey string, config Config) (Client, error) {
	switch {
	case config.Interval < 0:
		return nil, ConfigError{Reason: "negative time intervals are not supported", Field: "Interval", Value: config.Interval}
	case config.BatchSize < 0:
		return nil, ConfigError{Reason: "negative batch sizes are not supported", Field: "BatchSize", Value: config.BatchSize}
	}
	c := &client{sender: root.New(writeKey), callback: config.Callback, logger: config.Logger}
	if c.logger == nil {
		c.logger = defaultLogger()
	}
	if config.DefaultContext != nil {
		c.context = config.DefaultContext.members()
		delete(c.context, "library")
	}
	c.sender.Endpoint = config.Endpoint
	c.sender.FlushAt = cmp.Or(config.BatchSize, DefaultBatchSize)
	c.sender.FlushAfter = cmp.Or(config.Interval, DefaultInterval)
	c.sender.Transport = config.Transport
	c.sender.Logger = slog.New(newHandler(c.logger, config.Verbose))
	if c.callback != nil {
		c.kept = map[string][]Message{}
		c.sender.OnDelivery = c.settle
	}
	// A root.Client checks its fields at its first call, so make a call here. It queues
	// nothing, because the client refuses a nil message.
	if refused, ok := errors.AsType[*root.ConfigError](c.sender.Track(nil)); ok && refused.Field == "Endpoint" {
		return nil, ConfigError{Reason: refused.Problem, Field: refused.Field}
	}
	if config.RetryAfter != nil {
		c.logger.Logf("Config.RetryAfter is not used: retries follow the schedule of the library")
	}
	return c, nil
}

// A client implements Client. It passes messages to sender, a client of the root package.
type client struct {
	sender   *root.Client
	callback Callback
	logger   Logger
	context  map[string]any // the default context for each message
	closed   atomic.Bool

	mu   sync.Mutex
	kept map[string][]Message // messages for the callback, by messageId; nil without a callback
}

func (c *client) Close() error {
	if c.closed.Swap(true) {
		return ErrClosed
	}
	return c.sender.Close()
}

func (c *client) Enqueue(m Message) error {
	m, err := dereferenced(m)
	if err == nil {
		err = m.Validate()
	}
	if err != nil {
		return err
	}
	m, id, send := c.convert(m)
	if c.callback != nil { // settle finds the message by its id
		c.mu.Lock()
		c.kept[id] = append(c.kept[id], m)
		c.mu.Unlock()
	}
	if err = known(send()); err == nil {
		return nil
	}
	c.take(id, true)
	if err == ErrClosed || errors.As(err, new(*root.ConfigError)) {
		return err
	}
	c.logger.Errorf("%s - %T %s", err, m, id)
	if c.callback != nil {
		c.callback.Failure(m, err)
	}
	return err
}

// known converts an error of the root package into the corresponding error of this package, if
// there is one.
func known(err error) error {
	switch {
	case errors.As(err, new(*root.SizeError)):
		return ErrMessageTooBig
	case err == root.ErrQueueFull:
		return ErrTooManyRequests
	}
	return err
}

// take removes the message with the given id from the map kept and returns it, or nil if there is
// none. Of several messages with that id, it takes the last if latest is true, else the first.
func (c *client) take(id string, latest bool) Message {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := c.kept[id]
	if len(all) == 0 {
		return nil
	}
	at := 0
	if latest {
		at = len(all) - 1
	}
	m := all[at]
	if len(all) == 1 {
		delete(c.kept, id)
	} else {
		c.kept[id] = slices.Delete(all, at, at+1)
	}
	return m
}

// settle reports the outcome of the messages of a batch to the callback.
func (c *client) settle(d root.Delivery) {
	for text, err := range d.Messages() {
		m := c.take(messageID(text), false)
		switch {
		case m == nil: // cannot happen: each message is stored before it is queued
		case err == nil:
			c.callback.Success(m)
		default:
			c.callback.Failure(m, err)
		}
	}
}

// dereferenced returns m itself, or the message that m points to.
func dereferenced(m Message) (Message, error) {
	switch p := m.(type) {
	case Identify, Track, Page, Screen, Group, Alias:
		return m, nil
	case *Identify:
		return pointee(p)
	case *Track:
		return pointee(p)
	case *Page:
		return pointee(p)
	case *Screen:
		return pointee(p)
	case *Group:
		return pointee(p)
	case *Alias:
		return pointee(p)
	case nil:
		return nil, errors.New("analytics: the message is nil")
	}
	return nil, fmt.Errorf("analytics: messages with custom types cannot be enqueued: %T", m)
}

func pointee[M Message](p *M) (Message, error) {
	if p == nil {
		return nil, fmt.Errorf("analytics: the message is a nil %T", p)
	}
	return *p, nil
}
