package natsqueue

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	// consumerBeat is how often the server reports when there is nothing to read.
	consumerBeat = time.Second
	// consumerIdle is when the server forgets a consumer to which nobody listens.
	consumerIdle = 30 * time.Second
	// createSoon is how long the creation of a consumer may take at first, as the servers may choose
	// one that is out of reach. The time doubles with each failure, up to createTimeout.
	createSoon    = time.Second
	createTimeout = 5 * time.Second
)

// A tail reads the messages under a subject that are there, and those that come, in order and without
// a gap, whatever becomes of the connection and the server. The ordered consumers of the driver wait
// ten seconds for a server that is out of reach.
type tail struct {
	nc       *nats.Conn
	js       jetstream.JetStream
	stream   string
	subject  string
	next     uint64        // the sequence to read from
	patience time.Duration // with the creation of the next consumer
	// take is called with each message, and reports whether the tail goes on.
	take func(seq uint64, m *nats.Msg) bool
	// refused is called if the server refuses to create a consumer.
	refused func(error)
}

// run reads until take has enough or ctx ends.
func (t *tail) run(ctx context.Context) error {
	for wait := pause; ; {
		err := t.consume(ctx)
		if err == nil || ctx.Err() != nil || errors.Is(err, nats.ErrConnectionClosed) {
			return err
		}
		if refused := new(jetstream.APIError); errors.As(err, &refused) && refused.Code != 503 { // 503: not now
			t.refused(err)
			wait = min(2*wait, createTimeout)
		} else {
			wait = pause
		}
		if err := sleep(ctx, wait); err != nil {
			return err
		}
	}
}

// errGap says that messages were not delivered, or that the server is silent.
var errGap = errors.New("natsqueue: the server has left something out")

// consume reads through a new consumer until something goes wrong with it.
func (t *tail) consume(ctx context.Context) error {
	sub, err := t.nc.SubscribeSync(t.nc.NewInbox())
	if err != nil {
		return err
	}
	defer sub.Unsubscribe()
	if err := sub.SetPendingLimits(-1, -1); err != nil { // the flow control of the server bounds it
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
		t.js.DeleteConsumer(ctx, t.stream, name) // or the server forgets it soon
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
		if len(m.Data) == 0 && m.Header.Get("Status") == "100" { // flow control, or a report
			last := m.Header.Get("Nats-Last-Consumer")
			if reply := m.Header.Get("Nats-Consumer-Stalled"); reply != "" {
				t.nc.Publish(reply, nil)
			} else if m.Reply != "" {
				m.Respond(nil)
			} else if last != "" && last != decimal(delivered) {
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
