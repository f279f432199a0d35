package analytics

import "github.com/hookferry/analytics/internal/random"

// An outage is the client's state while the collector does not take batches. It matters only with
// SpoolDir: without SpoolDir, the client drops a batch after its last attempt.
//
// If a batch fails in all its attempts, or is misdirected, the collector counts as down. From then
// on the client sends one batch at a time, with a single attempt, and pauses after each failure. A
// batch in memory alone still gets all attempts, because it may be dropped after them. For each
// batch that the collector then takes, the client allows one more batch under way, up to
// maxUploads. If the client cannot read a batch from the disk, for example because the process has
// too many open files, the collector counts as down, too.
//
// The queue's mutex guards the outage.
type outage struct {
	q           *queue
	limit       int      // how many batches may be under way at once
	down        bool     // the latest batch failed in all its attempts, was misdirected, or could not be read
	unreachable *outcome // outcome of the latest attempt, if it could not connect, or was misdirected
}

// noteDown records that a batch failed in all its attempts, or was misdirected, with the outcome
// f. q.mu must be held.
func (o *outage) noteDown(f outcome) {
	o.limit, o.down = 1, true
	if f.isMisdirected() {
		o.unreachable = &f
	}
	o.q.resolveSpooled(f, nil)
	o.q.throttle.close(maxBackoff/6 + random.N(maxBackoff/6))
}

// noteTaken records that the collector took a batch, and allows one more batch to be
// under way. q.mu must be held.
func (o *outage) noteTaken() {
	o.down = false
	if o.limit < maxUploads {
		o.limit++
		o.q.dispatch()
	}
}

// noteAttempt records whether an attempt found the collector, that is, could connect to it. If it
// could not connect, Flush and Shutdown stop waiting for messages in SpoolDir: these messages are
// safe there, and the outage may take hours. f is the outcome of the attempt.
func (o *outage) noteAttempt(found bool, f outcome) {
	o.q.lock()
	defer o.q.unlock()
	o.unreachable = nil
	if !found {
		o.unreachable = &f
		o.q.resolveSpooled(f, o.q.uploading)
	}
}

// resolveSpooled tells the waiters of all batches with a file that these batches stay in
// SpoolDir because of f. It includes only those batches under way that are in the argument
// uploading. q.mu must be held.
func (q *queue) resolveSpooled(f outcome, uploading []*batch) {
	for _, list := range [][]*batch{uploading, q.allSpooled(), q.waiting, {q.collecting}} {
		for _, b := range list {
			if b != nil && b.isKept() {
				b.resolve(f, true)
			}
		}
	}
}

// isDown reports whether the collector counts as down and b is on disk. Then b gets a single
// attempt, which shows whether the collector still is down.
func (o *outage) isDown(b *batch) bool {
	o.q.lock()
	defer o.q.unlock()
	return o.down && b.isKept()
}
