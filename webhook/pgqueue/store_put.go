package pgqueue

import (
	"context"
	"errors"
	"time"

	"github.com/hookferry/analytics/webhook/store"
)

const (
	// writeTimeout bounds each transaction that puts, claims, settles or revives deliveries, and each
	// one of maintenance. Other transactions last until the caller's context ends.
	writeTimeout = 30 * time.Second
	// maxBatch bounds, approximately, how many bytes one transaction stores.
	maxBatch = 4 << 20
)

// lockWait is how long a transaction waits for another transaction that is adding one of the same
// keys. After that, and after a deadlock, each put is tried again in a transaction of its own, one at
// a time. So a put that has to wait delays the others by lockWait. One that shared its transaction
// waits longer: until each put that is tried again has had its turn.
const lockWait = "100ms"

const setLockWait = "SELECT set_config('lock_timeout', $1, true)"

// A put is a call of Put.
type put struct {
	entries []*entry
	done    chan struct{} // closed when the transaction has ended; err is its error
	err     error
}

// Put implements store.Store. If ctx is cancelled during the transaction, Put waits for its end. If
// ctx reaches its deadline, Put returns at once, and its deliveries may be stored or not; put again,
// they are stored once. If an open transaction of PutTx has put one of ps, or one with the same
// Key, Put waits for the end of that transaction, for half a minute at most.
func (s *Store) Put(ctx context.Context, ps []store.Put, out []store.Result) error {
	return s.db.call(ctx, "storing", func() error {
		all, err := newEntries(ps)
		if err != nil {
			return err
		}
		p, size := &put{entries: all}, 0
		batcher, alone := s.puts, s.alone
		for _, e := range all {
			size += len(e.record)
			if e.order.Valid {
				batcher, alone = s.ordered, s.orderedAlone
			}
		}
		for began := time.Now(); ; batcher = alone {
			p.done = make(chan struct{})
			batcher.Add(p, size)
			select {
			case <-p.done:
			case <-ctx.Done():
				if batcher.Drop(p) {
					return ctx.Err()
				}
				if errors.Is(ctx.Err(), context.DeadlineExceeded) {
					s.goroutines.Go(func() { s.disown(p) })
					return held(ctx, ctx.Err())
				}
				<-p.done
			}
			if !hasCode(p.err, lockNotAvailable, deadlockDetected) || time.Since(began) >= writeTimeout {
				break
			}
		}
		if p.err != nil {
			return p.err
		}
		for i, e := range p.entries {
			out[i] = store.Result{Stored: !e.known, Behind: e.behind, Claim: e.claim}
		}
		return nil
	})
}

// disown waits until p is stored, and ends its claims, which its caller does not know. Then Heads yields
// its destinations.
func (s *Store) disown(p *put) {
	<-p.done
	var names []string
	s.memory.mu.Lock()
	for _, e := range p.entries {
		names = append(names, e.queue.destination)
		if it := s.memory.claims[e.claim]; it != nil {
			s.memory.takeBack(it)
		}
	}
	s.memory.mu.Unlock()
	s.memory.hear(names...)
}
