package natsqueue

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/hookferry/analytics/webhook/store"
)

// Settle implements store.Store. It returns an error if the settlements are not recorded within 4.5
// s. They may still be recorded later. A later call that settles the same claims has no effect on
// them, and waits until it is known whether the first settlements are recorded.
func (s *Store) Settle(ctx context.Context, ss []store.Settlement) (int, error) {
	if err := s.calls.Enter(ctx); err != nil {
		return 0, err
	}
	defer s.calls.Leave()
	n := len(ss)
	var refused error
	for i := range ss {
		if refused = ss[i].Check(); refused != nil {
			n, refused = i, fmt.Errorf("natsqueue: settlement %d: %w", i, refused)
			break
		}
	}
	var writes, others []*write // writes: of this call, one for each partition; others: of earlier calls that settle some of ss
	s.mu.Lock()
	if err := s.lapsed(); err != nil { // others may have claimed the deliveries
		s.mu.Unlock()
		return 0, fmt.Errorf("natsqueue: settling: %w", err)
	}
	for i := range ss[:n] {
		e := s.claims[ss[i].Delivery.Claim]
		switch {
		case e == nil:
		case e.write != nil:
			others = append(others, e.write)
		case ss[i].Verdict == store.Return:
			s.putBack(e)
		default:
			at := slices.IndexFunc(writes, func(w *write) bool { return w.p == e.block.p })
			if at < 0 {
				at = len(writes)
				writes = append(writes, newWrite(e.block.p))
			}
			w := writes[at]
			e.write = w
			w.endings = append(w.endings, s.ending(e, e.delivery, &ss[i]))
		}
	}
	s.mu.Unlock()
	ctx, cancel := context.WithTimeoutCause(ctx, callTimeout+resend/2, errNoAnswer)
	defer cancel()
	if err := cmp.Or(s.write(ctx, writes...), await(ctx, others)); err != nil {
		return 0, fmt.Errorf("natsqueue: settling: %w", err)
	}
	return n, refused
}

// An ending is an entry with its outcome, which is about to be written into a record.
type ending struct {
	*entry
	verdict store.Verdict
	again   *store.Delivery // the delivery with what the settlement changes
	record  []byte          // the encoded delivery to put back, or the dead letter
	subject string          // of the dead letter
	from    *block          // for a move: the block that the delivery was in
	news    bool            // Heads has to yield the lane, because no caller of Settle knows of the ending
	erase   bool            // the cleaner has to purge the message
	unfit   bool            // the record is larger than a message may be; see stay
}

// putsBack reports whether the delivery goes on in the record.
func (e *ending) putsBack() bool { return e.verdict == store.Retry || e.verdict == store.Return }

// ending returns the ending of e by a settlement. d is the delivery of e. If the attempts do not
// fit into a message, ending leaves them out. The store is locked.
func (s *index) ending(e *entry, d *store.Delivery, by *store.Settlement) *ending {
	end := &ending{entry: e, verdict: by.Verdict}
	if by.Verdict == store.Done {
		return end
	}
	again := *d
	again.Tries, again.Closed, again.Attempts = by.Delivery.Tries, exactly(by.Delivery.Closed), exactly(by.Delivery.Attempts)
	end.again = &again
	for limit := s.recordRoom(); ; again.Attempts = nil {
		if by.Verdict == store.Retry {
			again.Due, again.Expires = by.Delivery.Due, by.Delivery.Expires
			end.record, _ = again.AppendBinary(nil) // no error: Settle has checked it
		} else {
			dead := store.Ended{Delivery: again, Reason: by.Reason, At: by.At}
			end.subject = s.config.deadSubject(&dead)
			end.record, _ = dead.AppendBinary(nil)
		}
		if end.unfit = len(end.record) > limit; !end.unfit || again.Attempts == nil {
			return end
		}
	}
}

// buryLater is when a delivery is to be buried again that does not fit into a dead letter.
const buryLater = time.Hour

// stay leaves a delivery where it is in the stream, because the server's max_payload was lowered and
// has no room for it any more. What the settlement changes is in the memory of this node alone, so
// the next owner attempts the delivery again, as if it had not been attempted. A delivery that was to
// be buried waits. The store is locked.
func (s *index) stay(e *ending) {
	if s.unfit[e.entry] == nil {
		s.config.Logger.Error("natsqueue: a delivery is larger than the server's max_payload, which was lowered; its attempts are not stored, and it cannot become a dead letter; raise max_payload", "destination", e.lane.name, "delivery", e.again.ID, "bytes", len(e.record), "max_payload", s.nc.MaxPayload())
	}
	if e.verdict == store.Bury {
		e.again.Due = now().Add(buryLater)
	}
	changed := *e.again
	changed.Body = nil
	s.unfit[e.entry] = &changed
	s.unclaim(e.entry)
	s.describe(e.entry, e.again)
	e.lane.push(e.entry)
	s.hold(e.entry)
	s.tell(e.lane.name)
}

// exactly returns a copy without spare capacity, for a slice that is kept for long.
func exactly[T any](all []T) []T { return slices.Clip(slices.Clone(all)) }
