package analytics

import "math/rand/v2"

// An outage is what the client knows of a collector that does not take batches. It
// matters for batches in SpoolDir alone: others do not outlive their attempts.
//
// A batch that fails in all its attempts shows that the collector is down. From
// then on one batch at a time is sent, in a single attempt, with a pause after
// each. Once one is taken, limit grows again, by one with each that follows. A batch
// that cannot be read, because the process has too many open files, does the same.
//
// The Client's mutex guards it.
type outage struct {
	limit       int      // how many batches may be under way
	down        bool     // the latest batch failed in all its attempts, or could not be read
	unreachable *outcome // of the latest attempt, if it found no collector
}

// noteDown notes that a batch failed in all its attempts, as f says. c.mu is held.
func (c *Client) noteDown(f outcome) {
	c.outage.limit, c.outage.down = 1, true
	c.resolveSpooled(f, nil)
	c.closeGate(maxBackoff/6 + rand.N(maxBackoff/6))
}

// noteTaken lets one more batch be under way, now that the collector has taken one.
// c.mu is held.
func (c *Client) noteTaken() {
	c.outage.down = false
	if c.outage.limit < maxUploads {
		c.outage.limit++
		c.dispatch()
	}
}

// noteAttempt notes whether an attempt found the collector. If not, callers that wait
// for messages in SpoolDir wait no longer: the messages are safe there, and the outage
// may take hours. f says what the attempt met.
func (c *Client) noteAttempt(found bool, f outcome) {
	c.lock()
	defer c.unlock()
	c.outage.unreachable = nil
	if !found {
		c.outage.unreachable = &f
		c.resolveSpooled(f, c.uploading)
	}
}

// resolveSpooled tells the waiters of batches with a segment that these stay in SpoolDir,
// because of f: batches that wait to be sent, and those in uploading. c.mu is held.
func (c *Client) resolveSpooled(f outcome, uploading []*batch) {
	for _, list := range [][]*batch{uploading, c.allSpooled(), c.waiting, {c.collecting}} {
		for _, b := range list {
			if b != nil && b.seg != nil {
				b.resolve(f, true)
			}
		}
	}
}

// isDown reports whether the collector is down, as far as is known, so that a
// single attempt tells whether it still is.
func (c *Client) isDown() bool {
	c.lock()
	defer c.unlock()
	return c.outage.down
}
