package filequeue

import (
	"cmp"
	"log/slog"
	"sync"

	"github.com/hookferry/analytics/webhook"
)

// Lost returns how many deliveries and dead letters could not be read, were set aside and
// are counted nowhere else, since the folder was made.
func (s *Store) Lost() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.index.losses
}

// maxTold is how many deliveries are complained of once.
const maxTold = 1000

// complaints tell the log, once each, of deliveries that cannot be read.
type complaints struct {
	logger *slog.Logger
	mu     sync.Mutex
	told   map[uint64]bool // at most maxTold
}

// add complains of a delivery. d has what is known of it.
func (c *complaints) add(what string, seq uint64, d *webhook.DeadLetter, err error) {
	c.mu.Lock()
	told := c.told[seq]
	if len(c.told) < maxTold {
		c.told[seq] = true
	}
	c.mu.Unlock()
	if told {
		return
	}
	args := []any{"error", err}
	if id := cmp.Or(d.MessageID, d.ID); id != "" {
		args = append(args, "messageId", id, "destination", d.Destination)
	}
	c.logger.Error("filequeue: "+what, args...)
}

// addLost counts what a record lists if it is a kindLost.
func (x *index) addLost(r *record, seg *segment) {
	if r.kind != kindLost || seg == nil || len(r.refs) == 0 {
		return
	}
	e := r.entryOf(seg.number)
	x.segs.count(&e, 1)
	x.lost = append(x.lost, e)
	x.losses += len(r.refs)
}
