package natsqueue

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"

	"github.com/hookferry/analytics/webhook/store"
)

// resend is how long a request waits for its answer before it is sent again. Another server may
// answer then.
const resend = time.Second

// A conn reads and writes the stream.
type conn struct {
	config  *Config
	id      string // of this node
	nc      *nats.Conn
	js      jetstream.JetStream
	stream  jetstream.Stream
	reserve atomic.Bool // the stream has the reserve; see reserveBytes
}

// Headers of the server.
const (
	headerID       = "Nats-Msg-Id"                         // the server stores the same id only once
	headerExpected = "Nats-Expected-Last-Subject-Sequence" // the server stores the message only if the last one of its subject has this sequence
	headerRollup   = "Nats-Rollup"                         // "sub": the message replaces all earlier ones of its subject
	headerTTL      = "Nats-TTL"                            // the server deletes the message after this duration
	headerWrite    = "Hookferry-Write"                     // with headerExpected: tells apart what nodes have written
)

// Error codes of the server that the jetstream package has no names for.
const (
	codeAccountFull     = 10002
	codeMemoryFull      = 10023
	codeStorageFull     = 10047
	codeStoreFailed     = 10077
	codeInProcess       = 10158
	codeBatchIncomplete = 10176
	codeBatchTooLarge   = 10199
	codeBatchStored     = 10201 // a message of the batch has an id that the stream has
)

// errChanged is the error for a message that the server has refused because of headerExpected.
var errChanged = errors.New("natsqueue: another node has written to the same subject")

// errStored is the error for an atomic batch that the server has stored before; see headerID.
var errStored = errors.New("natsqueue: the batch is stored already")

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

// next returns a parcel that is stored only if the last message of its subject has the sequence seq,
// or, if seq is 0, if there is none.
func next(subject string, seq uint64, data []byte, headers ...string) *parcel {
	return one(subject, data, append(headers, headerExpected, decimal(seq), headerWrite, nuid.Next())...)
}

// goneTTL is how long the server keeps the message of a removed document: store.RememberRemoved and
// five minutes.
const goneTTL = "3900s"

// document is next for a document: a message that replaces all earlier ones of its subject. Empty
// data removes the document.
func document(subject string, seq uint64, data []byte) *parcel {
	if len(data) == 0 {
		return next(subject, seq, data, headerRollup, "sub", headerTTL, goneTTL)
	}
	return next(subject, seq, data, headerRollup, "sub")
}

func decimal(n uint64) string { return strconv.FormatUint(n, 10) }

// store stores parcels, and returns once the server has answered each, at the latest after
// callTimeout. It sets the fields seq and err of each parcel, and returns the first error. A
// refusal is an error, too. If a parcel gets no answer, store sends the parcel again, so the server
// may store it twice, unless its messages have a headerID or headerExpected. A parcel with the error
// errNoAnswer may be stored or not.
func (cn *conn) store(ctx context.Context, parcels ...*parcel) error {
	ctx, cancel := context.WithTimeoutCause(ctx, callTimeout, errNoAnswer)
	defer cancel()
	var wg sync.WaitGroup
	for _, c := range parcels {
		wg.Go(func() { c.seq, c.err = cn.storeOne(ctx, c) })
	}
	wg.Wait()
	for _, c := range parcels {
		if c.err != nil {
			return c.err
		}
	}
	return nil
}

func (cn *conn) storeOne(ctx context.Context, c *parcel) (seq uint64, err error) {
	err = within(ctx, resend, func(ctx context.Context) error {
		seq, err = cn.publish(ctx, c)
		if refused, ok := errors.AsType[*jetstream.APIError](err); ok {
			err = refusal(refused)
		} else if errors.Is(err, nats.ErrMaxPayload) {
			err = fmt.Errorf("%w: %w", store.ErrTooLarge, err)
		}
		if err == errChanged {
			seq, err = cn.changedBy(ctx, c)
		}
		if err == errStored {
			return nil
		}
		if errors.Is(err, store.ErrQueueFull) && c.vital && cn.relieve(ctx) {
			err = errAgain
		}
		return err
	})
	return seq, err
}

// changedBy finds out why the server refused a parcel with headerExpected. It returns the sequence of
// the parcel if the stream has it, and only an earlier answer was lost. The error is errChanged if
// another node has written to the subject, and errAgain if the server must have had another reason.
func (cn *conn) changedBy(ctx context.Context, c *parcel) (seq uint64, err error) {
	want := c.messages[len(c.messages)-1]
	m, err := cn.last(ctx, want.Subject)
	switch {
	case err != nil:
		return 0, err
	case bytes.Contains(m.Header, []byte(want.Header[headerWrite][0])):
		return m.Sequence, nil
	case want.Header[headerExpected][0] != decimal(m.Sequence):
		return 0, errChanged
	}
	return 0, errAgain
}

// publish sends a parcel once, and waits up to resend for the answer.
func (cn *conn) publish(ctx context.Context, c *parcel) (seq uint64, err error) {
	ctx, cancel := context.WithTimeout(ctx, resend)
	defer cancel()
	// Wait for a reconnect. Otherwise the connection would buffer the messages, and could send them
	// after the caller has given up.
	for cn.nc.IsReconnecting() {
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
				if err := cn.nc.PublishMsg(m); err != nil {
					return 0, err
				}
			}
		}
		c.messages[last].Header["Nats-Batch-Commit"] = []string{"1"}
	}
	ack, err := cn.js.PublishMsg(ctx, c.messages[last], jetstream.WithRetryAttempts(0))
	if err != nil {
		return 0, err
	}
	return ack.Sequence, nil
}

// refusal returns the error for a refused parcel: errAgain if the parcel is to be sent again, one
// that callers know, or e.
func refusal(e *jetstream.APIError) error {
	switch e.ErrorCode {
	case jetstream.JSErrCodeStreamWrongLastSequence, jetstream.JSErrCodeStreamWrongLastSequenceConstant:
		return errChanged
	case codeAccountFull, codeMemoryFull, codeStorageFull, codeStoreFailed:
		return fmt.Errorf("%w: %s", store.ErrQueueFull, e.Description)
	case codeBatchStored:
		return errStored
	case codeBatchTooLarge, jetstream.JSErrCodeStreamMessageExceedsMaximum:
		return fmt.Errorf("%w: %s", store.ErrTooLarge, e.Description)
	case codeInProcess, codeBatchIncomplete:
		return errAgain
	}
	return e
}

// answerRoom returns how many bytes an answer may have, so that the server takes it.
func (cn *conn) answerRoom() int64 { return min(pageBytes, cn.nc.MaxPayload()/2) }

// recordRoom returns how many bytes of a message one delivery may take, when it is stored again.
func (cn *conn) recordRoom() int { return int(cn.nc.MaxPayload()) - headerRoom/2 }

// blockRoom returns how many bytes of a message several deliveries or keys may take.
func (cn *conn) blockRoom() int { return min(blockBytes, int(cn.nc.MaxPayload())-2*headerRoom) }

// reserveBytes is the maximum size of the reserve, a message of the stream that only takes up
// space. When the server has no room left, the store deletes the reserve. That makes room for the
// messages that let deliveries go on, and so free more space: records, heartbeats and dedup keys.
// The cleaner stores the reserve again later.
const reserveBytes = 512 << 10

// relieve deletes the reserve. It reports whether that made room.
func (cn *conn) relieve(ctx context.Context) bool {
	if !cn.reserve.Swap(false) {
		return false
	}
	cn.config.Logger.Error("natsqueue: the server has no room left; new deliveries are refused until others have ended or the server has more room")
	return cn.purge(ctx, cn.config.reserve(), 0) == nil
}

// refill stores the reserve, unless this node knows that the stream has it.
func (cn *conn) refill(ctx context.Context) error {
	if cn.reserve.Load() {
		return nil
	}
	size := min(reserveBytes, cn.nc.MaxPayload()-headerRoom)
	if cn.config.MaxBytes > 0 {
		size = min(size, cn.config.MaxBytes/16)
	}
	err := cn.store(ctx, one(cn.config.reserve(), make([]byte, size), headerRollup, "sub"))
	if errors.Is(err, store.ErrQueueFull) {
		return nil // the next call tries again
	}
	cn.reserve.Store(err == nil)
	return err
}
