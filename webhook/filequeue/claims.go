package filequeue

// A claim is a delivery that Fetch or Put has handed out.
type claim struct {
	entry
	lane  *lane
	id    uint64 // what the caller knows it by, 0 in a free slot
	body  int64  // how long the body is
	retry bool   // of which queue it is
	busy  bool   // a settlement of it is being written
}

// claims holds what is claimed. The lower bits of an id are a slot, those above a serial
// number: at 200,000 claims a second, four days pass before one comes again.
type claims struct {
	slots  []*claim
	free   []uint32
	serial uint64
}

const slotBits = 28

func (c *claims) len() int { return len(c.slots) - len(c.free) }

// add claims an entry that is in no queue.
func (c *claims) add(e entry, l *lane, retry bool, body int64) *claim {
	if len(c.free) == 0 {
		c.free = append(c.free, uint32(len(c.slots)))
		c.slots = append(c.slots, nil)
	}
	last := len(c.free) - 1
	slot := c.free[last]
	c.free = c.free[:last]
	if c.serial += 1 << slotBits; c.serial == 0 { // no id is 0
		c.serial = 1 << slotBits
	}
	k := &claim{entry: e, lane: l, id: c.serial | uint64(slot), retry: retry, body: body}
	c.slots[slot] = k
	l.claimed++
	return k
}

// get returns the claim with this id, nil if it does not hold.
func (c *claims) get(id uint64) *claim {
	slot := id & (1<<slotBits - 1)
	if slot >= uint64(len(c.slots)) || c.slots[slot] == nil || c.slots[slot].id != id {
		return nil
	}
	return c.slots[slot]
}

// end ends a claim.
func (c *claims) end(k *claim) {
	slot := uint32(k.id & (1<<slotBits - 1))
	c.slots[slot] = nil
	c.free = append(c.free, slot)
	k.lane.claimed--
}

// bySeq returns the claims by sequence number.
func (c *claims) bySeq() map[uint64]*claim {
	all := make(map[uint64]*claim, c.len())
	for _, k := range c.slots {
		if k != nil {
			all[k.seq] = k
		}
	}
	return all
}
