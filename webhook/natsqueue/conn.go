package natsqueue

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
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

// page returns a sequence of the elements that the function read returns. Each loop over the
// sequence calls read once. Close waits for read, as for a call of the Store.
func page[T any](ctx context.Context, s *conn, read func() ([]T, error)) iter.Seq2[T, error] {
	return storekit.Page(func() ([]T, error) {
		if err := s.calls.Enter(ctx); err != nil {
			return nil, err
		}
		defer s.calls.Leave()
		return read()
	})
}

// Headers of the server.
const (
	headerID       = "Nats-Msg-Id"                         // the server stores the same id only once
	headerExpected = "Nats-Expected-Last-Subject-Sequence" // the server stores the message only if the last one of its subject has this sequence
	headerRollup   = "Nats-Rollup"                         // "sub": the message replaces all earlier ones of its subject
	headerTTL      = "Nats-TTL"                            // the server deletes the message after this duration
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

// errChanged is the error for a message that the server has refused because of headerExpected.
// Usually another node has written to the subject.
var errChanged = errors.New("natsqueue: another node has written to the same subject")

// errNoAnswer is the error of a call that the server does not answer within callTimeout.
var errNoAnswer = fmt.Errorf("natsqueue: no answer from the server within %v: %w", callTimeout, context.DeadlineExceeded)

// A parcel is a message to be stored, or an atomic batch of messages.
type parcel struct {
	messages []*nats.Msg
	vital    bool // it may use the reserve; see reserveBytes

	// Set by store.
	seq uint64 // of the last message
	err error
}

// one returns a parcel of one message. headers has the headers of the message, each followed by its
// value.
func one(subject string, data []byte, headers ...string) *parcel {
	m := &nats.Msg{Subject: subject, Data: data, Header: make(nats.Header)}
	for x := range slices.Chunk(headers, 2) {
		m.Header[x[0]] = x[1:]
	}
	return &parcel{messages: []*nats.Msg{m}}
}

func decimal(n uint64) string { return strconv.FormatUint(n, 10) }

// store stores parcels, and returns once the server has answered each, at the latest after
// callTimeout. It sets the fields seq and err of each parcel, and returns the first error. A
// refusal is an error, too. If a parcel gets no answer, store sends the parcel again, so the server
// may store it twice. A parcel with the error errNoAnswer may be stored or not.
func (s *conn) store(ctx context.Context, parcels ...*parcel) error {
	ctx, cancel := context.WithTimeoutCause(ctx, callTimeout, errNoAnswer)
	defer cancel()
	var wg sync.WaitGroup
	for _, c := range parcels {
		wg.Go(func() { c.seq, c.err = s.storeOne(ctx, c) })
	}
	wg.Wait()
	for _, c := range parcels {
		if c.err != nil {
			return c.err
		}
	}
	return nil
}

func (s *conn) storeOne(ctx context.Context, c *parcel) (uint64, error) {
	for {
		seq, err := s.publish(ctx, c)
		var refused *jetstream.APIError
		switch {
		case err == nil:
			return seq, nil
		case errors.As(err, &refused):
			why := refusal(refused)
			if why != nil && !(c.vital && errors.Is(why, webhook.ErrQueueFull) && s.relieve(ctx)) {
				return 0, why
			}
		case ctx.Err() != nil:
			return 0, context.Cause(ctx)
		case errors.Is(err, context.DeadlineExceeded):
			continue
		case !errors.Is(err, jetstream.ErrNoStreamResponse):
			return 0, fmt.Errorf("natsqueue: sending: %w", err)
		}
		if sleep(ctx, pause) != nil {
			return 0, fmt.Errorf("%w: %w", context.Cause(ctx), err)
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

// refusal returns the error for a refused parcel, or nil if the parcel is to be sent again.
func refusal(e *jetstream.APIError) error {
	switch e.ErrorCode {
	case jetstream.JSErrCodeStreamWrongLastSequence, jetstream.JSErrCodeStreamWrongLastSequenceConstant:
		return errChanged
	case codeAccountFull, codeMemoryFull, codeStorageFull, codeStoreFailed:
		return fmt.Errorf("%w: %s", webhook.ErrQueueFull, e.Description)
	case codeBatchTooLarge:
		return fmt.Errorf("%w: %s", webhook.ErrTooLarge, e.Description)
	case codeInProcess, codeBatchIncomplete:
		return nil
	}
	if e.Code == 503 { // there is no leader now
		return nil
	}
	return fmt.Errorf("natsqueue: the server refused a message: %s (code %d)", e.Description, e.ErrorCode)
}
