// Package analytics is for programs written for github.com/segmentio/analytics-go/v3:
// they change the path of the import, and nothing else.
//
//	import "github.com/hookferry/analytics/analyticsv3"
//
// The package has the names, types and keys of that one, and hands each message to
// the [analytics.Client] of the root package, which new programs use directly.
// docs/migrating.md lists what is different. In short: messages go to Endpoint, else
// to HOOKFERRY_ENDPOINT, else to a local collector; a message that cannot be sent is
// also the error of [Client.Enqueue]; times travel in UTC, in milliseconds.
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

// Version is the version of the library, as the collector sees it.
const Version = root.Version

// The defaults of a Config's fields.
const (
	DefaultEndpoint  = root.DefaultEndpoint // if HOOKFERRY_ENDPOINT is empty, too
	DefaultInterval  = 5 * time.Second
	DefaultBatchSize = 250
)

// A Client queues messages and sends them in the background. Its methods may be called
// from several goroutines at once.
type Client interface {
	// Close delivers what is queued and returns within 31 seconds. It returns an
	// *UndeliveredError of the root package if messages were lost, and ErrClosed the
	// second time.
	io.Closer

	// Enqueue queues one of this package's messages, or a pointer to one. It never waits
	// for the network, and neither writes to the message nor reads it afterwards.
	//
	// It returns a FieldError if a field is missing, ErrMessageTooBig beyond 32 KB,
	// ErrTooManyRequests while messages of 64 MB wait, ErrClosed after Close, and an
	// error of the root package for what else cannot be sent: a write key that is empty,
	// NaN in a map. The message is lost then. The Callback and the Logger also hear of a
	// message that is too large, too much, or has a value that cannot be sent.
	Enqueue(Message) error
}

// A Callback hears what became of each message that was queued. Its methods are called
// from several goroutines at once and hold up an upload until they return. They must not
// call Close.
type Callback interface {
	Success(Message)        // the collector has the message
	Failure(Message, error) // the message is lost
}

// A Config is what a client can be told. The zero of each field means its default.
type Config struct {
	// Endpoint is the collector's base URL. Empty means the environment variable
	// HOOKFERRY_ENDPOINT, and if that is empty, too, DefaultEndpoint.
	Endpoint string

	// Interval is how long a message waits at most before it is uploaded. Zero means
	// DefaultInterval, 5 seconds.
	Interval time.Duration

	// Transport makes the requests. Nil means a transport of the client's own.
	Transport http.RoundTripper

	// Logger gets what the client logs. Nil means standard error.
	Logger Logger

	// Callback, if not nil, hears what became of each message. The client then keeps the
	// messages, with their maps, until that is known.
	Callback Callback

	// BatchSize is how many messages start an upload. While all uploads are busy a batch
	// grows beyond it. Zero means DefaultBatchSize, 250.
	BatchSize int

	// Verbose has each attempt logged.
	Verbose bool

	// DefaultContext is the context of each message, below the message's own: of a key
	// that both have, the message's counts. Its Library is not used. The client reads its
	// maps at each call, so they must not be changed.
	DefaultContext *Context

	// RetryAfter is not used. The client waits a random time that doubles up to a
	// minute, ten times, and honours the collector's Retry-After.
	RetryAfter func(int) time.Duration
}

// New returns a client with the default configuration. It cannot fail: an empty write
// key is the error of Enqueue.
func New(writeKey string) Client {
	c, err := NewWithConfig(writeKey, Config{})
	if err != nil { // HOOKFERRY_ENDPOINT is no URL
		return failed{err}
	}
	return c
}

// failed is a client that cannot be used.
type failed struct{ err error }

func (f failed) Enqueue(Message) error { return f.err }
func (f failed) Close() error          { return nil }

// NewWithConfig returns a client, or a ConfigError that names the field which cannot be
// used. An empty write key means the environment variable HOOKFERRY_WRITE_KEY; if that
// is empty, too, it is the error of Enqueue.
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
	// The first call checks the fields, and then refuses a nil message.
	var refused *root.ConfigError
	if errors.As(c.sender.Track(nil), &refused) && refused.Field == "Endpoint" {
		return nil, ConfigError{Reason: refused.Problem, Field: refused.Field}
	}
	if config.RetryAfter != nil {
		c.logger.Logf("Config.RetryAfter is not used: retries follow the schedule of the library")
	}
	return c, nil
}

// A client is a Client that hands messages to sender.
type client struct {
	sender   *root.Client
	callback Callback
	logger   Logger
	context  map[string]any // of each message, below its own
	closed   atomic.Bool

	mu   sync.Mutex
	kept map[string][]Message // for the callback, by messageId; nil without one
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
	m, id, sent := c.convert(m)
	c.keep(id, m)
	err = c.send(sent)
	if err == nil {
		return nil
	}
	c.take(id, true)
	var config *root.ConfigError
	if err == ErrClosed || errors.As(err, &config) {
		return err
	}
	c.logger.Errorf("%s - %T %s", err, m, id)
	if c.callback != nil {
		c.callback.Failure(m, err)
	}
	return err
}

// send queues a message. Its errors are those of this package, where it has one.
func (c *client) send(m root.Message) (err error) {
	switch m := m.(type) {
	case *root.Identify:
		err = c.sender.Identify(m)
	case *root.Track:
		err = c.sender.Track(m)
	case *root.Page:
		err = c.sender.Page(m)
	case *root.Screen:
		err = c.sender.Screen(m)
	case *root.Group:
		err = c.sender.Group(m)
	case *root.Alias:
		err = c.sender.Alias(m)
	}
	var size *root.SizeError
	switch {
	case errors.As(err, &size):
		return ErrMessageTooBig
	case err == root.ErrQueueFull:
		return ErrTooManyRequests
	}
	return err
}

// keep has settle find a message.
func (c *client) keep(id string, m Message) {
	if c.callback != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.kept[id] = append(c.kept[id], m)
	}
}

// take returns a message that was kept, nil if there is none. Of those with the same id it
// is the oldest, as they are sent in that order, or the latest.
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

// settle tells the callback what became of the messages of a batch.
func (c *client) settle(d root.Delivery) {
	for text, err := range d.Messages() {
		m := c.take(messageID(text), false)
		switch {
		case m == nil: // cannot happen: each message was kept before it was queued
		case err == nil:
			c.callback.Success(m)
		default:
			c.callback.Failure(m, err)
		}
	}
}

// dereferenced returns the message that m points to, if it is a pointer.
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
