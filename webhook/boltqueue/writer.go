package boltqueue

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"
)

// writer writes to the database, until Close: what the journal has, and what calls want
// to be there at once.
func (q *Queue) writer() {
	defer close(q.rested)
	var group []*request
	for {
		select {
		case <-q.errands.wake:
		case <-q.due:
			q.mu.Lock()
			heavy := q.heavy()
			q.mu.Unlock()
			if heavy {
				q.checkpoint() // the log is told if it fails
			} else {
				q.land()
			}
		case <-q.stopped:
			q.rest()
			return
		}
		for {
			if group = q.errands.take(group[:0]); len(group) == 0 {
				break
			}
			q.store(group)
			for i, r := range group {
				close(r.done)
				group[i] = nil
			}
		}
	}
}

// ready returns nil if the database can be written, once it is open again if it had to
// be closed.
func (q *Queue) ready() error {
	// Before the database is opened again, which would make one. What was sealed is in
	// memory, and after the transaction its file is not needed.
	q.committing.Lock()
	err := q.lost(q.other())
	q.committing.Unlock()
	if err != nil {
		return err
	}
	return q.recover()
}

// land has the database hold what was sealed, and name the epoch of the journal.
func (q *Queue) land() error {
	if err := q.ready(); err != nil {
		return err
	}
	q.mu.Lock()
	landed := q.sealed == nil && q.begun
	q.mu.Unlock()
	if landed {
		return nil
	}
	if err := q.begin(); err != nil {
		return err
	}
	r := &request{work: nothing}
	q.write([]*request{r})
	return r.err
}

// begin prepares the first epoch of the journal, if that could not be done by Open.
func (q *Queue) begin() error {
	q.committing.Lock()
	defer q.committing.Unlock()
	j := q.journal
	if q.begun || j.ready {
		return nil
	}
	if err := j.prepare(j.epoch.next()); err != nil {
		return fmt.Errorf("boltqueue: writing %s: %w", j.path, err)
	}
	q.watch(j)
	return nil
}

// checkpoint has the database hold everything.
func (q *Queue) checkpoint() error {
	if err := q.sealAll(); err != nil {
		return err
	}
	return q.land()
}

// sealAll seals what the journal has, once the database holds what was sealed before.
func (q *Queue) sealAll() error {
	if err := q.land(); err != nil {
		return err
	}
	err := q.seal()
	if err != nil {
		q.fail(err)
	}
	return err
}

// store does what a group of requests wants in the database.
func (q *Queue) store(group []*request) {
	var err error
	if group[0].alone {
		err = q.checkpoint()
	} else {
		err = q.sealAll()
	}
	switch {
	case err != nil:
		failAll(group, err)
	case group[0].work == nil && !group[0].large:
		q.turn() // the database is written when those who wait go on
	default:
		q.write(group)
	}
}

// write has the database hold what was sealed, and what a group of requests wants, by one
// transaction.
func (q *Queue) write(group []*request) {
	q.mu.Lock()
	e := &edit{q: q, db: q.file, now: time.Now(), tail: q.sealed, epoch: q.journal.epoch}
	q.mu.Unlock()
	if e.sealed = e.tail != nil; !e.sealed {
		e.tail = &tail{}
	}
	q.edits++
	e.stamp = stamp(q.session, q.edits)
	err := protect(q.path, func() error { return e.build(group) })
	if err != nil {
		e.rollback()
		q.mu.Lock()
		e.undo()
		q.mu.Unlock()
		if !errors.Is(err, errAlone) {
			failAll(group, err)
			q.fail(err)
		}
		return
	}
	id := e.tx.ID()
	e.db.NoFreelistSync = !e.syncFreelist()
	err = growError(protect(q.path, func() error { return q.commit1(e.tx) }))
	if err == nil {
		e.land(id)
		return
	}
	e.rollback()
	q.fail(err)
	err = fmt.Errorf("boltqueue: writing %s: %w", q.path, err)
	if got, ok := lastTx(e.db); ok && got == id-1 {
		// Nothing of it is to be seen, and bbolt is as it was before.
		q.mu.Lock()
		e.undo()
		q.mu.Unlock()
		failAll(group, err)
		return
	}
	// The new state may be in the file while bbolt believes in the old one, or
	// something panicked halfway. Only reading the file afresh tells, before
	// anything else is written. The journal takes nothing while another may have the
	// lock.
	q.committing.Lock()
	q.mu.Lock()
	q.file, q.failure = nil, err
	q.landed.Broadcast()
	q.mu.Unlock()
	q.committing.Unlock()
	q.doubt = e
	e.db.Close()
	if again := q.ready(); again != nil || !e.landed {
		failAll(group, err)
	}
}

// stamp is what a transaction leaves in the database, by which it is known.
func stamp(session []byte, number uint64) []byte {
	return binary.BigEndian.AppendUint64(slices.Clip(session), number)
}
