package analytics

// Stats counts the messages of a Client since New. Each Stats is a consistent snapshot,
// for which this equation holds:
//
//	Queued + Recovered == Delivered + Dropped + Pending + Spooled
type Stats struct {
	Queued    uint64            // accepted: the call returned nil
	Recovered uint64            // found in SpoolDir at the start
	Delivered uint64            // acknowledged by the collector
	Dropped   uint64            // given up
	ByReason  map[Reason]uint64 // Dropped by reason; every Reason has an entry
	Pending   int               // in memory: collecting, waiting, under way or in back-off
	Spooled   int               // in SpoolDir alone, to be sent later
	Unspooled uint64            // part of Queued: held in memory alone because SpoolDir could not be written
	Memory    int               // bytes of all messages in memory, at most MaxMemory; each counts until OnDelivery returns
	Refused   uint64            // calls that returned ErrQueueFull or ErrNotSpooled; not in Queued
	Batches   uint64            // batches that were delivered or given up
	Attempts  uint64            // requests made, including those for batches that are still to be delivered
}

// counters hold the running totals for Stats. In the embedded Stats, the fields Dropped,
// ByReason and Memory stay zero.
type counters struct {
	Stats
	dropped [len(reasons)]uint64
}

func (n *counters) settle(b *batch) {
	n.Batches++
	n.Pending -= b.n
	b.deliveries(func(d Delivery) {
		if d.Reason == "" {
			n.Delivered += uint64(d.Count)
			return
		}
		n.drop(d.Reason, d.Count)
	})
}

// drop counts dropped messages.
func (n *counters) drop(why Reason, count int) {
	n.dropped[why.index()] += uint64(count)
}

// Stats returns a snapshot of the client's counts.
func (c *Client) Stats() Stats {
	c.lock()
	defer c.unlock()
	s := c.count.Stats
	s.Memory = c.memory
	s.ByReason = make(map[Reason]uint64, len(reasons))
	for i, reason := range reasons {
		s.ByReason[reason] = c.count.dropped[i]
		s.Dropped += c.count.dropped[i]
	}
	return s
}
