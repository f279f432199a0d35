package filequeue

// A claim is a delivery that Fetch or Put has handed out.
type claim struct {
	entry
	lane  *lane
	id    uint64 // what the caller knows it by
	body  int64  // how long the body is
	retry bool   // of which queue it is
	busy  bool   // a settlement of it is being written
}

// claims holds what is claimed, by ids that never come again.
type claims struct {
	byID map[uint64]*claim
	last uint64 // the latest id; 0 is none
}

// add claims an entry that is in no queue.
func (c *claims) add(e entry, l *lane, retry bool, body int64) *claim {
	c.last++
	k := &claim{entry: e, lane: l, id: c.last, retry: retry, body: body}
	c.byID[k.id] = k
	l.claimed++
	return k
}

// end ends a claim.
func (c *claims) end(k *claim) {
	delete(c.byID, k.id)
	k.lane.claimed--
}

// bySeq returns the claims by sequence number.
func (c *claims) bySeq() map[uint64]*claim {
	all := make(map[uint64]*claim, len(c.byID))
	for _, k := range c.byID {
		all[k.seq] = k
	}
	return all
}
