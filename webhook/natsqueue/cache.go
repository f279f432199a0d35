package natsqueue

import (
	"container/list"
	"time"
)

const (
	// cacheAhead is how long before its due time a delivery may be kept in memory.
	cacheAhead = 10 * time.Second
	// cacheEntry is about how many bytes a delivery in memory takes in addition to Delivery.Size.
	cacheEntry = 512
)

// A cache bounds the memory of unclaimed deliveries. It counts whole blocks, and evicts the oldest
// block first. Fetch reads evicted deliveries from the stream again.
type cache struct {
	limit, used int64
	blocks      list.List // of *block
}

// add removes the unclaimed deliveries of b that are not due within cacheAhead from memory, and
// counts the other unclaimed ones. If the cache then exceeds its limit, add evicts the oldest
// blocks.
func (c *cache) add(b *block) {
	c.drop(b)
	horizon := time.Now().Add(cacheAhead).UnixMicro()
	for _, e := range b.entries {
		switch {
		case e == nil || e.delivery == nil || e.claim != 0:
		case e.due > horizon:
			e.delivery = nil
		default:
			b.cached += e.delivery.Size() + cacheEntry
		}
	}
	if b.cached == 0 {
		return
	}
	c.used += b.cached
	b.element = c.blocks.PushBack(b)
	for c.used > c.limit {
		first := c.blocks.Front().Value.(*block)
		c.drop(first)
		for _, e := range first.entries {
			if e != nil && e.claim == 0 {
				e.delivery = nil
			}
		}
	}
}

// drop stops counting b. The deliveries of b stay in memory.
func (c *cache) drop(b *block) {
	if b.element != nil {
		c.blocks.Remove(b.element)
		c.used -= b.cached
		b.element, b.cached = nil, 0
	}
}
