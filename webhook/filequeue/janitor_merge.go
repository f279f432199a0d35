package filequeue

import (
	"time"

	"github.com/hookferry/analytics/webhook/store"
)

// A move copies an entry, of a delivery or of a document, to the active segment.
type move struct {
	entry entry
	from  queueID // or the queue to which the delivery may return, if it is claimed; of a document, its path
	copy  record  // without a payload if there is nothing to copy; of a document, moves makes it
}

// maxMove is about how many bytes a merge copies in one commit. Then it pauses movePace times as long
// as the commit took, so that callers have most of the disk's time.
const (
	maxMove  = 1 << 20
	movePace = 4
)

// merge copies the needed records of a segment to the active one. It may miss a delivery that changes
// meanwhile. The error is errUnread if the disk cannot read one.
func (j *janitor) merge(g *segment) error {
	lost := func(m *move, d *store.Record, cause error) {
		j.store.lose(d, m.entry.seq, cause, leaving(m.from, m.entry.rank()))
	}
	// An op of the same group could take an entry out of its queue, and put it back later in another
	// state. So the copies have groups to themselves.
	return j.store.reader.copyAll(j.store.index.moves(g), g, lost, func(some []move) error {
		began := time.Now()
		err := j.store.writer.do(j.ctx, func(group *group) error { group.move(some, g); return nil }, alone, false)
		now := time.Now()
		j.sleep(now.Add(movePace*now.Sub(began)), nil)
		return err
	})
}
