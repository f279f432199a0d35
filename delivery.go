package analytics

import "iter"

// A Delivery reports some messages of one batch that had the same outcome.
type Delivery struct {
	Count    int    // the number of messages
	Attempts int    // the number of requests made for their batch
	Reason   Reason // empty if the messages were delivered
	Err      error  // nil if the messages were delivered; if their errors differ, the first one

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
		f := &d.batch.outcome
		left := f.rejected
		for i := range d.batch.n {
			reason, err := f.reason, f.err
			if i < f.from {
				reason, err = "", nil
			}
			if len(left) > 0 && left[0].index == i {
				reason, err, left = left[0].reason, left[0].err, left[1:]
			}
			if reason == d.Reason && !yield(d.batch.message(text, i), err) {
				return
			}
		}
	}
}

// deliveries yields the messages of a batch in groups with the same Reason, first those that
// were delivered.
func (b *batch) deliveries(yield func(Delivery)) {
	f := &b.outcome
	var groups [1 + len(reasons)]Delivery
	add := func(n int, reason Reason, err error) {
		d := &groups[1+reason.index()]
		d.Count += n
		if d.Err == nil {
			d.Err = err
		}
	}
	add(f.from, "", nil)
	add(b.n-f.from, f.reason, f.err)
	for _, r := range f.rejected {
		add(1, r.reason, r.err)
		if r.index < f.from {
			add(-1, "", nil)
		} else {
			add(-1, f.reason, nil)
		}
	}
	for i, d := range groups {
		if d.Count == 0 {
			continue
		}
		if i > 0 {
			d.Reason = reasons[i-1]
		}
		d.Attempts, d.batch = f.attempts, b
		yield(d)
	}
}
