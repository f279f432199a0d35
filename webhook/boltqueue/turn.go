package boltqueue

import (
	"fmt"
	"slices"
	"time"
)

// maxTail is what the tail that commits go to may come to while the one before is being
// written to the database: then puts wait.
const maxTail = 2 * tailBytes

// usable reports whether commits may go to the journal: the database is open, and so
// locked, and names its epoch.
func (q *Queue) usable() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.file != nil && q.begun
}

// pause has the writer do what r says before a commit.
func (q *Queue) pause(r *request) error {
	q.committing.Unlock()
	defer q.committing.Lock()
	return q.await(r)
}

// room sees to it that an entry of n bytes, so many of which are puts, may be written. It
// waits where the database has to be written before.
func (q *Queue) room(n int, puts int64) error {
	tried := false
	for range 5 {
		q.mu.Lock()
		ready, sealed := q.file != nil && q.begun, q.sealed != nil
		full := q.full(puts) && q.removals() > 0
		heavy := puts > 0 && q.crowded()
		again := time.Since(q.failed) >= time.Second
		q.mu.Unlock()
		switch {
		case !ready:
		case full && !tried:
			// There may be room afterwards; the log is told if it fails.
			tried = true
			q.pause(&request{work: nothing})
			continue
		case !heavy && (q.journal.fits(n) || q.journal.ready):
			err := q.journal.reserve(n)
			if err == nil {
				return nil
			}
			// The disk is full, and the other file may have room, or get it.
			if q.journal.ready || sealed && !again {
				return fmt.Errorf("boltqueue: writing %s: %w", q.journal.path, err)
			}
		}
		if err := q.pause(&request{}); err != nil {
			return err
		}
	}
	return fmt.Errorf("boltqueue: no room in %s for an entry of %d bytes", q.journal.path, n)
}

// crowded reports whether puts have to wait for the database. The queue is locked.
func (q *Queue) crowded() bool { return q.sealed != nil && q.tail.bytes > maxTail }

// full reports whether the file has no room for so many bytes more. The queue is locked.
func (q *Queue) full(n int64) bool {
	return q.config.MaxBytes > 0 && n > 0 && q.used+q.pending()+n > q.config.MaxBytes
}

// pending returns how many bytes of rows the file does not have yet. The queue is locked.
func (q *Queue) pending() int64 {
	n := q.tail.rows
	if q.sealed != nil {
		n += q.sealed.rows
	}
	return n
}

// nothing is the work of a request that has the database hold everything.
func nothing(*edit, *request) error { return nil }

// removals returns how many rows the next transactions take out of the database. The
// queue is locked.
func (q *Queue) removals() int {
	n := q.tail.removals
	if q.sealed != nil {
		n += q.sealed.removals
	}
	return n
}

// turn has the writer begin the next epoch if there is enough for the database to be
// written. When that has failed it is left alone for a while; the journal has room
// meanwhile.
func (q *Queue) turn() {
	q.mu.Lock()
	due := q.file != nil && time.Since(q.failed) >= time.Second && (q.sealed != nil || q.heavy())
	q.mu.Unlock()
	if !due {
		return
	}
	select {
	case q.due <- struct{}{}:
	default:
	}
}

// heavy reports whether there is enough for the next epoch to begin. The queue is
// locked.
func (q *Queue) heavy() bool { return q.tail.full() || q.written > journalSize }

// seal ends the epoch, if it has entries: commits go on in the other file, with a new
// tail, and what there was is to be written to the database. There is nothing else that
// is.
func (q *Queue) seal() error {
	next := q.other()
	q.committing.Lock()
	empty, size := q.journal.ready, min(q.journal.size, journalSize)
	if !empty && next.release() {
		q.unwatch(next) // commits go on while it is made
	}
	q.committing.Unlock()
	if empty {
		return nil
	}
	if next.open() == nil {
		next.grow(size) // if it can, so that commits need not wait for that
	}
	if !next.ready || next.epoch.number() <= q.journal.epoch.number() {
		if err := next.prepare(q.journal.epoch.next()); err != nil {
			return fmt.Errorf("boltqueue: writing %s: %w", next.path, err)
		}
	}
	q.committing.Lock()
	defer q.committing.Unlock()
	q.watch(next)
	if err := q.lost(nil); err != nil {
		return err
	}
	if err := q.journal.end(next.epoch); err != nil {
		return fmt.Errorf("boltqueue: writing %s: %w", q.journal.path, err)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.sealed, q.tail = q.tail, q.unused
	if q.unused = nil; q.tail == nil {
		q.tail = &tail{}
	}
	q.journal, q.written = next, 0
	return nil
}

// watch has a file of the journal be looked after.
func (q *Queue) watch(j *journal) {
	q.unwatch(j)
	q.files = append(q.files, fileID{j.path, j.info})
}

func (q *Queue) unwatch(j *journal) {
	q.files = slices.DeleteFunc(q.files, func(f fileID) bool { return f.path == j.path })
}

// other returns the file that is not written.
func (q *Queue) other() *journal {
	if q.journal == q.journals[0] {
		return q.journals[1]
	}
	return q.journals[0]
}

// fail notes, and has the log say, that the database was not written.
func (q *Queue) fail(err error) {
	q.mu.Lock()
	q.failed = time.Now()
	q.mu.Unlock()
	q.complain(err)
}

// complain logs that a commit failed: at most once a second, since on a full disk each
// does, and the log may be on the same one.
func (q *Queue) complain(err error) {
	q.mu.Lock()
	now := time.Now()
	log := now.Sub(q.complained) >= time.Second
	unlogged := q.unlogged
	if log {
		q.complained, q.unlogged = now, 0
	} else {
		q.unlogged++
	}
	q.mu.Unlock()
	if log {
		q.config.Logger.Error("boltqueue: commit failed", "file", q.path, "error", err, "unlogged", unlogged)
	}
}
