package natsqueue

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"

	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/storekit"
)

const (
	// callTimeout is how long the server may take for an answer, with all repetitions.
	callTimeout = 4 * time.Second
	// resend is how long an answer may take before the request is sent again, which another
	// server may answer then.
	resend = time.Second
	// pause is the wait after the server says that it cannot answer just now.
	pause = 100 * time.Millisecond
)

// A conn is the stream, and what of this node lives as long as its connection to it.
type conn struct {
	config  *Config
	id      string // of the node
	nc      *nats.Conn
	js      jetstream.JetStream
	stream  jetstream.Stream
	reserve reserve

	background context.Context
	stop       context.CancelFunc
	goroutines sync.WaitGroup
	calls      storekit.Gate
}

// enter begins a call, which calls.Leave ends.
func (s *conn) enter(ctx context.Context) error { return s.calls.Enter(ctx) }

// Headers of the server.
const (
	headerID       = "Nats-Msg-Id"
	headerExpected = "Nats-Expected-Last-Subject-Sequence"
	headerRollup   = "Nats-Rollup"
	headerTTL      = "Nats-TTL"
)

// Error codes of the server.
const (
	codeAccountFull     = 10002
	codeMemoryFull      = 10023
	codeStorageFull     = 10047
	codeStoreFailed     = 10077
	codeNoSequence      = 10043
	codeNotDeleted      = 10057
	codeWrongLast       = 10071
	codeWrongLastNow    = 10164
	codeInProcess       = 10158
	codeBatchIncomplete = 10176
	codeBatchTooLarge   = 10199
)

// errChanged says that the last message of a subject is not the expected one.
var errChanged = errors.New("natsqueue: the subject has changed")

// errNoAnswer says that the server has not answered in time. It is a timeout.
var errNoAnswer = fmt.Errorf("natsqueue: no answer of the server in %v: %w", callTimeout, context.DeadlineExceeded)

// A parcel is a message to be stored, or an atomic batch of several, with the server's answer.
type parcel struct {
	messages []*nats.Msg
	vital    bool // it may use the reserve
	puts     []*put

	answered bool
	seq      uint64 // of the last message
	err      error
}

// one returns a parcel of one message.
func one(subject string, data []byte) *parcel {
	return &parcel{messages: []*nats.Msg{{Subject: subject, Data: data}}}
}

// expect returns a message that is stored only if the last one of its subject has a sequence.
// It takes the place of all messages of the subject if rollup is set.
func expect(subject string, last uint64, data []byte, rollup bool) *nats.Msg {
	m := &nats.Msg{Subject: subject, Data: data, Header: nats.Header{headerExpected: {decimal(last)}}}
	if rollup {
		m.Header[headerRollup] = []string{"sub"}
	}
	return m
}

func decimal(n uint64) string { return strconv.FormatUint(n, 10) }

// send stores parcels, within callTimeout. It returns once each has an answer, which its
// fields tell, or an error where an answer is missing: then each may be stored or not. A
// parcel without an answer is sent again, and may be stored twice.
func (s *conn) send(ctx context.Context, parcels ...*parcel) error {
	ctx, cancel := context.WithTimeoutCause(ctx, callTimeout, errNoAnswer)
	defer cancel()
	var wg sync.WaitGroup
	errs := make([]error, len(parcels))
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
	for !c.answered {
		m, err := s.publish(ctx, c)
		again := err != nil
		if err == nil {
			if c.seq, again, c.err = parseAck(m); c.vital && errors.Is(c.err, webhook.ErrQueueFull) {
				again = s.relieve(ctx)
			}
		} else if ctx.Err() != nil {
			return context.Cause(ctx)
		} else if !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, nats.ErrNoResponders) {
			return fmt.Errorf("natsqueue: sending: %w", err)
		}
		if c.answered = !again; again && !errors.Is(err, context.DeadlineExceeded) && sleep(ctx, pause) != nil {
			if err != nil { // there may be no stream
				return fmt.Errorf("%w: %w", context.Cause(ctx), err)
			}
			return context.Cause(ctx)
		}
	}
	return nil
}

// publish sends a parcel once, and waits for the answer for as long as resend.
func (s *conn) publish(ctx context.Context, c *parcel) (*nats.Msg, error) {
	ctx, cancel := context.WithTimeout(ctx, resend)
	defer cancel()
	// The connection would keep messages until it is a new one, which may be long after
	// nobody waits for them.
	for s.nc.IsReconnecting() {
		if err := sleep(ctx, behind); err != nil {
			return nil, err
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
					return nil, err
				}
			}
		}
		c.messages[last].Header["Nats-Batch-Commit"] = []string{"1"}
	}
	return s.nc.RequestMsgWithContext(ctx, c.messages[last])
}

// store is send, and returns the first error of a parcel too.
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

// parseAck reads the answer to a parcel. Again says that it is to be sent again: there is no
// leader at the moment, or no answer yet.
func parseAck(m *nats.Msg) (seq uint64, again bool, err error) {
	var ack struct {
		Sequence uint64 `json:"seq"`
		Error    *struct {
			Code        int    `json:"code"`
			ErrorCode   int    `json:"err_code"`
			Description string `json:"description"`
		} `json:"error"`
	}
	if err := json.Unmarshal(m.Data, &ack); err != nil {
		return 0, false, fmt.Errorf("natsqueue: an answer of the server: %w", err)
	}
	if e := ack.Error; e != nil {
		switch e.ErrorCode {
		case codeWrongLast, codeWrongLastNow:
			return 0, false, errChanged
		case codeAccountFull, codeMemoryFull, codeStorageFull, codeStoreFailed:
			return 0, false, fmt.Errorf("%w: %s", webhook.ErrQueueFull, e.Description)
		case codeBatchTooLarge:
			return 0, false, fmt.Errorf("%w: %s", webhook.ErrTooLarge, e.Description)
		case codeInProcess, codeBatchIncomplete:
			return 0, true, nil
		}
		if e.Code == 503 {
			return 0, true, nil
		}
		return 0, false, fmt.Errorf("natsqueue: the server: %s (%d)", e.Description, e.ErrorCode)
	}
	if ack.Sequence == 0 {
		return 0, false, errors.New("natsqueue: an answer of the server without a sequence")
	}
	return ack.Sequence, false, nil
}
