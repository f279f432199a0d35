package natsqueue

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/hookferry/analytics/webhook"
)

const (
	// writeTimeout bounds a call of the server with all its repetitions.
	writeTimeout = 30 * time.Second
	// resend is how long an answer may take before the message is sent again; twice as long
	// after each time, up to maxResend.
	resend    = time.Second
	maxResend = 4 * time.Second
	// pause is the wait after an answer that there is none to be had just now.
	pause = 100 * time.Millisecond
)

// Headers of the server.
const (
	headerID         = "Nats-Msg-Id"
	headerExpected   = "Nats-Expected-Last-Subject-Sequence"
	headerExpectedOf = "Nats-Expected-Last-Subject-Sequence-Subject"
)

// Error codes of the server.
const (
	codeAccountFull  = 10002
	codeMemoryFull   = 10023
	codeStorageFull  = 10047
	codeStoreFailed  = 10077
	codeNoMessage    = 10037
	codeNoSequence   = 10043
	codeNotDeleted   = 10057
	codeWrongLast    = 10071
	codeWrongLastNow = 10164
	codeInProcess    = 10158
)

// errChanged says that something was stored under a subject that was not
// expected.
var errChanged = errors.New("natsqueue: the subject has changed")

// A message is one to be stored, and the server's answer to it.
type message struct {
	subject string
	header  nats.Header
	data    []byte

	answered  bool
	seq       uint64
	duplicate bool
	err       error
}

// A publisher stores messages, many at a time, and repeats those that were not
// answered: by their ids the server stores each once. It does without
// jetstream.PublishMsgAsync, which takes twice the time for each message.
type publisher struct {
	nc    *nats.Conn
	inbox string
	sub   *nats.Subscription

	mu      sync.Mutex
	next    uint64
	sending map[uint64]*sending
}

// A sending is a call of send.
type sending struct {
	messages []*message
	left     int           // that are not answered
	done     chan struct{} // closed when none is left
	refused  chan struct{} // has a value when some are to be sent again soon
}

func newPublisher(nc *nats.Conn) (*publisher, error) {
	p := &publisher{nc: nc, inbox: nc.NewInbox() + ".", sending: make(map[uint64]*sending)}
	var err error
	if p.sub, err = nc.Subscribe(p.inbox+"*.*", p.answer); err != nil {
		return nil, err
	}
	return p, p.sub.SetPendingLimits(-1, -1) // no more than were asked for
}

func (p *publisher) close() { p.sub.Unsubscribe() }

// send stores messages. It returns once each has an answer, which its fields
// tell, or an error where that is not to be had: then each may be stored or not.
func (p *publisher) send(ctx context.Context, messages ...*message) error {
	if len(messages) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	s := &sending{messages: messages, left: len(messages), done: make(chan struct{}), refused: make(chan struct{}, 1)}
	p.mu.Lock()
	p.next++
	id := p.next
	p.sending[id] = s
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		delete(p.sending, id)
		p.mu.Unlock()
	}()
	reply := p.inbox + strconv.FormatUint(id, 36) + "."
	patience := resend
	for again := false; ; again = true {
		// The connection would keep messages until it is a new one, which may be long after
		// nobody waits for them.
		away := p.nc.IsReconnecting()
		for i, m := range messages {
			if away || again && p.isAnswered(m) {
				continue
			}
			err := p.nc.PublishMsg(&nats.Msg{Subject: m.subject, Reply: reply + strconv.Itoa(i), Header: m.header, Data: m.data})
			if err != nil {
				return fmt.Errorf("natsqueue: sending: %w", err)
			}
		}
		timer := time.NewTimer(patience)
		select {
		case <-s.done:
			timer.Stop()
			return nil
		case <-s.refused:
			timer.Reset(pause)
			select {
			case <-s.done:
				timer.Stop()
				return nil
			case <-timer.C:
			case <-ctx.Done():
			}
		case <-timer.C:
			patience = min(2*patience, maxResend)
		case <-ctx.Done():
		}
		timer.Stop()
		if ctx.Err() != nil {
			return fmt.Errorf("natsqueue: no answer of the server: %w", ctx.Err())
		}
	}
}

// again sends again what was not answered: the connection is a new one.
func (p *publisher) again() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.sending {
		select {
		case s.refused <- struct{}{}:
		default:
		}
	}
}

func (p *publisher) isAnswered(m *message) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return m.answered
}

// store is send, and returns the first error of a message too.
func (p *publisher) store(ctx context.Context, messages ...*message) error {
	if err := p.send(ctx, messages...); err != nil {
		return err
	}
	for _, m := range messages {
		if m.err != nil {
			return m.err
		}
	}
	return nil
}

// answer takes an answer of the server.
func (p *publisher) answer(m *nats.Msg) {
	number, index, _ := strings.Cut(m.Subject[len(p.inbox):], ".")
	id, err1 := strconv.ParseUint(number, 36, 64)
	i, err2 := strconv.Atoi(index)
	if err1 != nil || err2 != nil {
		return
	}
	seq, duplicate, again, err := parseAck(m)
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.sending[id]
	if s == nil || i < 0 || i >= len(s.messages) || s.messages[i].answered {
		return
	}
	if again {
		select {
		case s.refused <- struct{}{}:
		default:
		}
		return
	}
	a := s.messages[i]
	a.answered, a.seq, a.duplicate, a.err = true, seq, duplicate, err
	if s.left--; s.left == 0 {
		close(s.done)
	}
}

// parseAck reads the answer to a message that was to be stored. Again says that
// it is to be sent again: there is no leader at the moment, or no answer yet.
func parseAck(m *nats.Msg) (seq uint64, duplicate, again bool, err error) {
	if len(m.Data) == 0 { // nobody listens to the subject
		return 0, false, true, nil
	}
	var ack struct {
		Sequence  uint64 `json:"seq"`
		Duplicate bool   `json:"duplicate"`
		Error     *struct {
			Code        int    `json:"code"`
			ErrorCode   int    `json:"err_code"`
			Description string `json:"description"`
		} `json:"error"`
	}
	if err := json.Unmarshal(m.Data, &ack); err != nil {
		return 0, false, false, fmt.Errorf("natsqueue: an answer of the server: %w", err)
	}
	if e := ack.Error; e != nil {
		switch e.ErrorCode {
		case codeWrongLast, codeWrongLastNow:
			return 0, false, false, errChanged
		case codeAccountFull, codeMemoryFull, codeStorageFull, codeStoreFailed:
			return 0, false, false, fmt.Errorf("%w: %s", webhook.ErrQueueFull, e.Description)
		case codeInProcess: // it was sent before, and is on its way to the replicas
			return 0, false, true, nil
		}
		if e.Code == 503 {
			return 0, false, true, nil
		}
		return 0, false, false, fmt.Errorf("natsqueue: the server: %s (%d)", e.Description, e.ErrorCode)
	}
	if ack.Sequence == 0 {
		return 0, false, false, errors.New("natsqueue: an answer of the server without a sequence")
	}
	return ack.Sequence, ack.Duplicate, false, nil
}
