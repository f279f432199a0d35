package natsqueue

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	// consumerBeat is how often the server sends an idle heartbeat when there is nothing to read.
	consumerBeat = time.Second
	// consumerIdle is how long the server keeps a consumer that nobody reads.
	consumerIdle = 30 * time.Second
	// createSoon is the time limit of the first attempt to create a consumer: its server may be out of
	// reach. A busy server may need longer, so further attempts have callTimeout.
	createSoon = time.Second
)

// A follower reads messages of a partition.
type follower struct {
	p        *partition
	subjects string
	headers  bool                               // read only the headers
	saw      func(seq uint64, m *nats.Msg) bool // processes the next message, and reports whether more are needed
	idle     func() bool                        // reports, when the server has sent all that it has, whether that is all; may be nil
}

// follow reads the messages, from the first one on, until no more are needed or p is lost. It misses no
// message and keeps their order, even when connections or servers fail. It does not use the driver's ordered
// consumers, because these wait ten seconds for a server that is out of reach. The driver's push
// consumers do not notice that the server has left out the last message.
func (f *follower) follow() {
	p := f.p
	told := false
	for next, patience := uint64(1), createSoon; p.live.Err() == nil; {
		err := f.consume(&next, patience)
		if patience = createSoon; err != errGap { // there is no consumer yet
			patience = callTimeout
		}
		if err == nil || errors.Is(err, nats.ErrConnectionClosed) {
			return
		}
		wait := pause
		if refused := new(jetstream.APIError); errors.As(err, &refused) && refused.Code != 503 { // 503: not now
			if !told { // for example because the account has reached its limit of consumers
				told = true
				p.conn.config.Logger.Error("natsqueue: the server refuses the consumer by which this node reads a partition; deliveries of the partition wait until the server allows it", "partition", p.n, "error", err)
			}
			wait = createSoon
		}
		sleep(p.live, wait)
	}
}

// errGap says that the server left out a message or fell silent. follow then creates a new
// consumer.
var errGap = errors.New("natsqueue: the server left out a message of the stream")

// consume reads from a new consumer until the consumer fails, no more are needed or p is lost. It keeps *next at the
// sequence of the next message. The first attempt to create the consumer ends after patience.
func (f *follower) consume(next *uint64, patience time.Duration) error {
	p := f.p
	var sub *nats.Subscription
	var c jetstream.PushConsumer
	if err := within(p.live, patience, func(ctx context.Context) (err error) {
		if sub, err = p.conn.nc.SubscribeSync(p.conn.nc.NewInbox()); err != nil {
			return err
		}
		if err = sub.SetPendingLimits(-1, -1); err == nil { // the server's flow control bounds what is pending
			c, err = p.conn.js.CreatePushConsumer(ctx, p.conn.config.Stream, jetstream.ConsumerConfig{
				DeliverSubject: sub.Subject, DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: *next,
				FilterSubject: f.subjects, HeadersOnly: f.headers, AckPolicy: jetstream.AckNonePolicy, MaxDeliver: 1,
				FlowControl: true, IdleHeartbeat: consumerBeat, InactiveThreshold: consumerIdle, MemoryStorage: true, Replicas: 1,
			})
		}
		if err != nil {
			sub.Unsubscribe()
		}
		return err
	}); err != nil {
		return err
	}
	defer sub.Unsubscribe()
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(p.live), createSoon)
		defer cancel()
		p.conn.js.DeleteConsumer(ctx, p.conn.config.Stream, c.CachedInfo().Name) // if this fails, the server deletes the consumer after consumerIdle
	}()
	silence := time.AfterFunc(3*consumerBeat, func() { sub.Unsubscribe() })
	defer silence.Stop()
	for delivered := uint64(0); ; {
		m, err := sub.NextMsgWithContext(p.live)
		if p.live.Err() != nil {
			return nil
		}
		if err != nil {
			return errGap
		}
		silence.Reset(3 * consumerBeat)
		if len(m.Data) == 0 && m.Header.Get("Status") == "100" { // flow control, or an idle heartbeat
			last := m.Header.Get("Nats-Last-Consumer")
			if reply := m.Header.Get("Nats-Consumer-Stalled"); reply != "" {
				p.conn.nc.Publish(reply, nil)
			} else if m.Reply != "" {
				m.Respond(nil)
			} else if last != "" && last != decimal(delivered) {
				return errGap
			} else if f.idle != nil && f.idle() {
				return nil
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
		*next = meta.Sequence.Stream + 1
		if !f.saw(meta.Sequence.Stream, m) {
			return nil
		}
	}
}
