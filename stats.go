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

	// Misdirected counts how often a batch stayed in SpoolDir because of an answer that says
	// nothing about its messages: 3xx, 401, 403, 404, 405 or 407. The write key or the
	// Endpoint is wrong, or a proxy has no collector behind it.
	Misdirected uint64
}

// settle counts the messages of a batch that was delivered or given up.
func (s *Stats) settle(b *batch) {
	s.Batches++
	s.Pending -= b.n
	b.deliveries(func(d Delivery) {
		if d.Reason == "" {
			s.Delivered += uint64(d.Count)
			return
		}
		s.drop(d.Reason, d.Count)
	})
}

// drop counts dropped messages.
func (s *Stats) drop(why Reason, count int) {
	if s.ByReason == nil {
		s.ByReason = make(map[Reason]uint64, len(reasons))
	}
	s.ByReason[why] += uint64(count)
	s.Dropped += uint64(count)
}

// Stats returns a snapshot of the client's counts.
func (c *Client) Stats() Stats {
	c.queue.lock()
	defer c.queue.unlock()
	s := c.queue.count
	s.Memory = c.queue.memory
	s.ByReason = make(map[Reason]uint64, len(reasons))
	for _, reason := range reasons {
		s.ByReason[reason] = c.queue.count.ByReason[reason]
	}
	return s
}
