package natsqueue

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	// consumerBeat is how often the server gives a sign when there is nothing to read.
	consumerBeat = time.Second
	// consumerIdle is when the server forgets a consumer that nobody listens to.
	consumerIdle = 30 * time.Second
	// createSoon is how long the creation of a consumer may take at first, as it may be put on
	// a server that is out of reach; twice as long after each time, up to createTimeout.
	createSoon    = time.Second
	createTimeout = 5 * time.Second
)

// A tail reads what is, and what will be, under subjects of a stream, in order
// and without a gap, whatever becomes of the connection and of the server.
type tail struct {
	nc       *nats.Conn
	js       jetstream.JetStream
	stream   string
	subject  string
	next     uint64        // the sequence to read from
	patience time.Duration // with the next consumer
	// take is called with each message. It returns false when it has enough.
	take func(seq uint64, m *nats.Msg) bool
	// refused is called when the server will not have a consumer.
	refused func(error)
}

// run reads until take has enough or ctx ends.
func (t *tail) run(ctx context.Context) error {
	for wait := pause; ; {
		err := t.consume(ctx)
		if err == nil || ctx.Err() != nil || errors.Is(err, nats.ErrConnectionClosed) {
			return err
		}
		if refused := new(jetstream.APIError); errors.As(err, &refused) && refused.Code != 503 { // not just now
			t.refused(err)
			wait = min(2*wait, createTimeout)
		} else {
			wait = pause
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
	}
}

// errGap says that messages were not delivered, or that the server is silent.
var errGap = errors.New("natsqueue: the server has left something out")

// consume reads by a new consumer, until something goes wrong with it.
func (t *tail) consume(ctx context.Context) error {
	sub, err := t.nc.SubscribeSync(t.nc.NewInbox())
	if err != nil {
		return err
	}
	defer sub.Unsubscribe()
	if err := sub.SetPendingLimits(-1, -1); err != nil { // the server waits for us
		return err
	}
	creating, cancel := context.WithTimeout(ctx, t.patience)
	defer cancel()
	c, err := t.js.CreatePushConsumer(creating, t.stream, jetstream.ConsumerConfig{
		DeliverSubject: sub.Subject, DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: t.next,
		FilterSubject: t.subject, AckPolicy: jetstream.AckNonePolicy, MaxDeliver: 1,
		FlowControl: true, IdleHeartbeat: consumerBeat, InactiveThreshold: consumerIdle, MemoryStorage: true, Replicas: 1,
	})
	if err != nil {
		t.patience = min(2*t.patience, createTimeout)
		return err
	}
	t.patience = createSoon
	name := c.CachedInfo().Name
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), createSoon)
		defer cancel()
		t.js.DeleteConsumer(ctx, t.stream, name) // else the server forgets it soon
	}()
	silence := time.AfterFunc(3*consumerBeat, func() { sub.Unsubscribe() })
	defer silence.Stop()
	for delivered := uint64(0); ; {
		m, err := sub.NextMsgWithContext(ctx)
		if err != nil {
			if ctx.Err() == nil {
				err = errGap
			}
			return err
		}
		silence.Reset(3 * consumerBeat)
		if len(m.Data) == 0 && m.Header.Get("Status") == "100" {
			if reply := m.Header.Get("Nats-Consumer-Stalled"); reply != "" {
				t.nc.Publish(reply, nil)
			} else if m.Reply != "" {
				m.Respond(nil)
			} else if m.Header.Get("Nats-Last-Consumer") != "" && m.Header.Get("Nats-Last-Consumer") != decimal(delivered) {
				return errGap
			}
			continue
		}
		meta, err := m.Metadata()
		if err != nil {
			return err
		}
		if delivered++; meta.Sequence.Consumer != delivered {
			return errGap
		}
		t.next = meta.Sequence.Stream + 1
		if !t.take(meta.Sequence.Stream, m) {
			return nil
		}
	}
}
