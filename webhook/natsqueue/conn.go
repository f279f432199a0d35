package natsqueue

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"

	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/storekit"
)

const (
	// callTimeout bounds how long a call waits for the server's answer, including repeated requests.
	callTimeout = 4 * time.Second
	// resend is how long a request waits for its answer before it is sent again. Another server may
	// answer then.
	resend = time.Second
	// pause is the wait after the server says that it cannot answer now.
	pause = 100 * time.Millisecond
)

// A conn is a node's connection to the stream. It also has the background context, the goroutines
// and the open calls of the Store.
type conn struct {
	config  *Config
	id      string // of this node
	nc      *nats.Conn
	js      jetstream.JetStream
	stream  jetstream.Stream
	reserve atomic.Bool // the stream has the reserve; see reserveBytes

	background context.Context
	stop       context.CancelFunc
	goroutines sync.WaitGroup
	calls      storekit.Gate
}

// enter begins a call of the Store. The caller ends it with calls.Leave.
func (s *conn) enter(ctx context.Context) error { return s.calls.Enter(ctx) }

// Headers of the server.
const (
	headerID       = "Nats-Msg-Id"
	headerExpected = "Nats-Expected-Last-Subject-Sequence"
	headerRollup   = "Nats-Rollup"
	headerTTL      = "Nats-TTL"
)

// Error codes of the server that the jetstream package has no names for.
const (
	codeAccountFull     = 10002
	codeMemoryFull      = 10023
	codeNoSequence      = 10043
	codeStorageFull     = 10047
	codeNotDeleted      = 10057
	codeStoreFailed     = 10077
	codeInProcess       = 10158
	codeBatchIncomplete = 10176
	codeBatchTooLarge   = 10199
)

// errChanged is the error for a message from expect that the server has refused: the last message
// of its subject is not the expected one. Usually another node has written to the subject.
var errChanged = errors.New("natsqueue: another node has written to the same subject")

// errNoAnswer is the error of a call that the server does not answer within callTimeout.
var errNoAnswer = fmt.Errorf("natsqueue: no answer from the server within %v: %w", callTimeout, context.DeadlineExceeded)

// A parcel is a message to be stored, or an atomic batch of messages. It also holds the server's
// answer.
type parcel struct {
	messages []*nats.Msg
	vital    bool // it may use the reserve; see reserveBytes
	puts     []*put

	answered bool
	seq      uint64 // of the last message
	err      error
}

// one returns a parcel of one message.
func one(subject string, data []byte) *parcel {
	return &parcel{messages: []*nats.Msg{{Subject: subject, Data: data}}}
}

// expect returns a message that the server stores only if last is the sequence of the last message
// of its subject. If rollup is set, the message replaces all earlier messages of its subject.
func expect(subject string, last uint64, data []byte, rollup bool) *nats.Msg {
	m := &nats.Msg{Subject: subject, Data: data, Header: nats.Header{headerExpected: {decimal(last)}}}
	if rollup {
		m.Header[headerRollup] = []string{"sub"}
	}
	return m
}

func decimal(n uint64) string { return strconv.FormatUint(n, 10) }

// store sends parcels and returns the first error. A parcel that the server refuses is an error,
// too.
func (s *conn) store(ctx context.Context, parcels ...*parcel) error {
	if err := s.send(ctx, parcels...); err != nil {
		return err
	}
	for _, c := range parcels {
		if c.err != nil {
			return c.err
		}
	}
	return nil
}

// send stores parcels, and returns once the server has answered each, at the latest after
// callTimeout. An answer may be a refusal, which is in parcel.err. send repeats a parcel that gets
// no answer, so the server may store it twice. If send returns an error, an unanswered parcel may
// be stored or not.
func (s *conn) send(ctx context.Context, parcels ...*parcel) error {
	ctx, cancel := context.WithTimeoutCause(ctx, callTimeout, errNoAnswer)
	defer cancel()
	errs := make([]error, len(parcels))
	var wg sync.WaitGroup
	for i, c := range parcels {
		if i == len(parcels)-1 {
			errs[i] = s.sendOne(ctx, c)
			continue
		}
		wg.Go(func() { errs[i] = s.sendOne(ctx, c) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

func (s *conn) sendOne(ctx context.Context, c *parcel) error {
	for {
		seq, err := s.publish(ctx, c)
		var refused *jetstream.APIError
		switch {
		case err == nil:
			c.answered, c.seq = true, seq
			return nil
		case errors.As(err, &refused):
			again, why := refusal(refused)
			if c.vital && errors.Is(why, webhook.ErrQueueFull) {
				again = s.relieve(ctx)
			}
			if !again {
				c.answered, c.err = true, why
				return nil
			}
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, context.DeadlineExceeded):
			continue
		case !errors.Is(err, jetstream.ErrNoStreamResponse):
			return fmt.Errorf("natsqueue: sending: %w", err)
		}
		if sleep(ctx, pause) != nil {
			return fmt.Errorf("%w: %w", context.Cause(ctx), err)
		}
	}
}

// publish sends a parcel once, and waits up to resend for the answer.
func (s *conn) publish(ctx context.Context, c *parcel) (seq uint64, err error) {
	ctx, cancel := context.WithTimeout(ctx, resend)
	defer cancel()
	// Wait for a reconnect. Otherwise the connection would buffer the messages, and could send them
	// after the caller has given up.
	for s.nc.IsReconnecting() {
		if err := sleep(ctx, behind); err != nil {
			return 0, err
		}
	}
	last := len(c.messages) - 1
	if last > 0 {
		id := nuid.Next()
		for i, m := range c.messages {
			if m.Header == nil {
				m.Header = make(nats.Header, 3)
			}
			m.Header["Nats-Batch-Id"], m.Header["Nats-Batch-Sequence"] = []string{id}, []string{strconv.Itoa(i + 1)}
			if i < last {
				if err := s.nc.PublishMsg(m); err != nil {
					return 0, err
				}
			}
		}
		c.messages[last].Header["Nats-Batch-Commit"] = []string{"1"}
	}
	ack, err := s.js.PublishMsg(ctx, c.messages[last], jetstream.WithRetryAttempts(0))
	if err != nil {
		return 0, err
	}
	return ack.Sequence, nil
}

// refusal returns whether to send a refused parcel again. If not, err is the reason for the caller.
func refusal(e *jetstream.APIError) (again bool, err error) {
	switch e.ErrorCode {
	case jetstream.JSErrCodeStreamWrongLastSequence, jetstream.JSErrCodeStreamWrongLastSequenceConstant:
		return false, errChanged
	case codeAccountFull, codeMemoryFull, codeStorageFull, codeStoreFailed:
		return false, fmt.Errorf("%w: %s", webhook.ErrQueueFull, e.Description)
	case codeBatchTooLarge:
		return false, fmt.Errorf("%w: %s", webhook.ErrTooLarge, e.Description)
	case codeInProcess, codeBatchIncomplete:
		return true, nil
	}
	if e.Code == 503 { // there is no leader now
		return true, nil
	}
	return false, fmt.Errorf("natsqueue: the server refused a message: %s (code %d)", e.Description, e.ErrorCode)
}
