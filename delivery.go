package analytics

import "iter"

// A Delivery reports some messages of one batch that had the same outcome.
type Delivery struct {
	Count    int    // the number of messages
	Attempts int    // the number of requests made for their batch
	Reason   Reason // empty if the messages were delivered
	Err      error  // nil if the messages were delivered; for rejected messages, the error of the first

	batch *batch
}

// Messages yields each message as the JSON object that was sent, and an error. The error is
// nil if the message was delivered, and otherwise says why not. The bytes are valid during
// the call of OnDelivery that got the Delivery, and must not be changed. Messages yields
// nothing for a Delivery that does not come from OnDelivery, or whose messages the disk
// under SpoolDir has lost.
func (d Delivery) Messages() iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		if d.batch == nil {
			return
		}
		text := d.batch.text()
		if text == nil {
			return
		}
		left := d.batch.outcome.rejected
		for i := range d.batch.n {
			err, rejected := d.Err, len(left) > 0 && left[0].index == i
			if rejected {
				err, left = left[0].err, left[1:]
			}
			if rejected == (d.Reason == ReasonRejected) && !yield(d.batch.message(text, i), err) {
				return
			}
		}
	}
}

// deliveries yields the messages of a batch in up to two groups: first the messages that
// share the batch's outcome, then the messages that the collector rejected.
func (b *batch) deliveries(yield func(Delivery)) {
	f := &b.outcome
	if n := b.n - len(f.rejected); n > 0 {
		yield(Delivery{Count: n, Attempts: f.attempts, Reason: f.reason, Err: f.err, batch: b})
	}
	if n := len(f.rejected); n > 0 {
		yield(Delivery{Count: n, Attempts: f.attempts, Reason: ReasonRejected, Err: f.rejected[0].err, batch: b})
	}
}
