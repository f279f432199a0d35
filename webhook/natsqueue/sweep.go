package natsqueue

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

const (
	// sweepEvery is how often what is settled is erased, at most.
	sweepEvery = 250 * time.Millisecond
	// purges is how many requests to erase are under way at a time.
	purges = 16
	// deletions is how many messages of a subject are erased one by one at a time.
	deletions = 1000
)

// sweep erases what is settled from the server, until the Queue is closed. One
// request erases much: all below a sequence under a subject.
func (q *Queue) sweep() {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	failing := false
	for {
		select {
		case <-tick.C:
		case <-q.background.Done():
			return
		}
		ctx, cancel := context.WithTimeout(q.background, writeTimeout)
		err := q.erase(ctx)
		cancel()
		if err != nil && !failing && q.background.Err() == nil {
			q.config.Logger.Warn("natsqueue: what is settled cannot be erased just now", "error", err)
		}
		failing = err != nil
		if q.owes() {
			q.recordOwed(q.background)
		}
	}
}

// owes reports whether a record is due that no settlement makes. The queue is not
// locked.
func (q *Queue) owes() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, p := range q.owned {
		if p != nil && (len(p.owed) > 0 || p.seen > p.recorded+seenKept) {
			return true
		}
	}
	return false
}

// An erasure is a request to erase something.
type erasure struct {
	p      *partition
	ask    func(context.Context) error
	erased func() // notes that it is done, with the queue locked
}

// erase erases what is settled and seen to be. It may run more than once at a time.
func (q *Queue) erase(ctx context.Context) error {
	var all []erasure
	purge := func(p *partition, subject string, below uint64, erased func()) {
		all = append(all, erasure{p, func(ctx context.Context) error { return q.purge(ctx, q.config.Stream, subject, below) }, erased})
	}
	q.mu.Lock()
	for _, p := range q.owned {
		if p == nil {
			continue
		}
		for _, s := range p.shelves {
			if len(s.done) == 0 {
				continue
			}
			below := s.settledBelow()
			intact := s.intactBelow(below)
			if s.doneBelow(intact) {
				purge(p, s.subject, intact, func() { s.erased(intact) })
			}
			if intact == below {
				continue
			}
			// A purge would take the damaged with it.
			n := 0
			for seq := range s.done {
				if seq > intact && seq < below && n < deletions {
					n++
					all = append(all, erasure{p, func(ctx context.Context) error {
						_, err := q.delete(ctx, q.config.Stream, seq)
						return err
					}, func() { s.deleted(seq) }})
				}
			}
		}
		if whole := p.whole; whole > p.erased && whole <= p.seen {
			purge(p, p.prefix+kindDone, whole, func() { p.erased = max(p.erased, whole) })
			purge(p, p.prefix+kindOwner, p.epoch, func() {})
		}
	}
	q.mu.Unlock()
	errs := make(chan error)
	slots := make(chan struct{}, purges)
	go func() { // ends when all are done, which erase waits for
		for _, e := range all {
			slots <- struct{}{}
			go func() {
				err := e.ask(ctx)
				if err == nil {
					q.mu.Lock()
					if !e.p.lost {
						e.erased()
					}
					q.mu.Unlock()
				}
				<-slots
				errs <- err
			}()
		}
	}()
	var failed error
	for range all {
		failed = cmp.Or(failed, <-errs)
	}
	return failed
}

// doneBelow reports whether the shelf has something that is settled below seq.
func (s *shelf) doneBelow(below uint64) bool {
	for seq := range s.done {
		if seq < below {
			return true
		}
	}
	return false
}

// purge erases what a stream has under a subject, below a sequence if it is not 0.
func (q *Queue) purge(ctx context.Context, stream, subject string, below uint64) error {
	text, err := json.Marshal(struct {
		Filter   string `json:"filter"`
		Sequence uint64 `json:"seq,omitempty"`
	}{subject, below})
	if err != nil {
		return err
	}
	return q.request(ctx, "STREAM.PURGE."+stream, text)
}

// delete erases a message, and reports whether it was there.
func (q *Queue) delete(ctx context.Context, stream string, seq uint64) (bool, error) {
	err := q.request(ctx, "STREAM.MSG.DELETE."+stream, fmt.Appendf(nil, `{"seq":%d,"no_erase":true}`, seq))
	var refused *refusal
	if errors.As(err, &refused) && refused.noMessage() {
		return false, nil
	}
	return err == nil, err
}

// request asks the server to do something.
func (q *Queue) request(ctx context.Context, what string, text []byte) error {
	m, err := q.nc.RequestWithContext(ctx, "$JS.API."+what, text)
	if err != nil {
		return fmt.Errorf("natsqueue: asking the server: %w", err)
	}
	var answer struct {
		Success bool `json:"success"`
		Error   *struct {
			ErrorCode   int    `json:"err_code"`
			Description string `json:"description"`
		} `json:"error"`
	}
	if err := json.Unmarshal(m.Data, &answer); err != nil {
		return fmt.Errorf("natsqueue: an answer of the server: %w", err)
	}
	if e := answer.Error; e != nil {
		return &refusal{e.ErrorCode, e.Description}
	}
	return nil
}

// A refusal is an error that the server answers with.
type refusal struct {
	code int
	text string
}

func (r *refusal) Error() string {
	return fmt.Sprintf("natsqueue: the server: %s (%d)", r.text, r.code)
}

// noMessage reports whether what was to be deleted is not there.
func (r *refusal) noMessage() bool {
	return r.code == codeNoMessage || r.code == codeNoSequence || r.code == codeNotDeleted && r.text == "no message found"
}
