package analytics

import "math/rand/v2"

// An outage is what the client knows of a collector that does not take batches. It matters
// only with SpoolDir: without it, batches do not outlive their attempts.
//
// A batch that fails in all its attempts shows that the collector is down. From
// then on one batch at a time is sent, in a single attempt, with a pause after
// each. Once one is taken, limit grows again, by one with each that follows. A batch
// that cannot be read, because the process has too many open files, does the same.
//
// The queue's mutex guards it.
type outage struct {
	q           *queue
	limit       int      // how many batches may be under way
	down        bool     // the latest batch failed in all its attempts, or could not be read
	unreachable *outcome // of the latest attempt, if it found no collector
}

// noteDown notes that a batch failed in all its attempts, as f says. q.mu is held.
func (o *outage) noteDown(f outcome) {
	o.limit, o.down = 1, true
	o.q.resolveSpooled(f, nil)
	o.q.gate.close(maxBackoff/6 + rand.N(maxBackoff/6))
}

// noteTaken lets one more batch be under way, now that the collector has taken one.
// q.mu is held.
func (o *outage) noteTaken() {
	o.down = false
	if o.limit < maxUploads {
		o.limit++
		o.q.dispatch()
	}
}

// noteAttempt notes whether an attempt found the collector. If not, callers that wait
// for messages in SpoolDir wait no longer: the messages are safe there, and the outage
// may take hours. f says what the attempt met.
func (o *outage) noteAttempt(found bool, f outcome) {
	o.q.lock()
	defer o.q.unlock()
	o.unreachable = nil
	if !found {
		o.unreachable = &f
		o.q.resolveSpooled(f, o.q.uploading)
	}
}

// resolveSpooled tells the waiters of batches that these stay in SpoolDir because of f. It
// looks at the batches that wait to be sent and those in uploading, and skips batches
// without a file. q.mu is held.
func (q *queue) resolveSpooled(f outcome, uploading []*batch) {
	for _, list := range [][]*batch{uploading, q.allSpooled(), q.waiting, {q.collecting}} {
		for _, b := range list {
			if b != nil && b.hasFile() {
				b.resolve(f, true)
			}
		}
	}
}

// isDown reports whether the collector is down, as far as is known, so that a
// single attempt tells whether it still is.
func (o *outage) isDown() bool {
	o.q.lock()
	defer o.q.unlock()
	return o.down
}
