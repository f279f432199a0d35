package analytics

// Stats counts the messages of a Client since it was made. It is a snapshot in
// which, always,
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
	Unspooled uint64            // of Queued: held in memory alone because SpoolDir could not be written
	Memory    int               // bytes in memory, of at most MaxMemory; 0 once every callback has returned
	Refused   uint64            // calls that returned ErrQueueFull or ErrNotSpooled; not in Queued
	Batches   uint64            // batches that were delivered or given up
	Attempts  uint64            // requests made, also for batches that are still to be delivered
}

// counters are the running totals behind Stats.
type counters struct {
	queued, delivered, refused uint64
	batches, attempts          uint64
	dropped                    [len(reasons)]uint64
	recovered, unspooled       uint64
	pending, spooled           int
}

func (n *counters) settle(b *batch) {
	n.batches++
	n.pending -= b.n
	b.deliveries(func(d Delivery) {
		if d.Reason == "" {
			n.delivered += uint64(d.Count)
			return
		}
		n.drop(d.Reason, d.Count)
	})
}

func (c *Client) countAttempt() {
	c.lock()
	defer c.unlock()
	c.count.attempts++
}

// drop counts messages that are given up.
func (n *counters) drop(why Reason, count int) {
	for i, reason := range reasons {
		if reason == why {
			n.dropped[i] += uint64(count)
		}
	}
}

// Stats returns the counters as they are now.
func (c *Client) Stats() Stats {
	c.lock()
	defer c.unlock()
	s := Stats{
		Queued:    c.count.queued,
		Recovered: c.count.recovered,
		Delivered: c.count.delivered,
		ByReason:  make(map[Reason]uint64, len(reasons)),
		Pending:   c.count.pending,
		Spooled:   c.count.spooled,
		Unspooled: c.count.unspooled,
		Memory:    c.memory,
		Refused:   c.count.refused,
		Batches:   c.count.batches,
		Attempts:  c.count.attempts,
	}
	for i, reason := range reasons {
		s.ByReason[reason] = c.count.dropped[i]
		s.Dropped += c.count.dropped[i]
	}
	return s
}
