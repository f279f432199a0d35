package webhook

import (
	"context"
	"errors"
	"sync/atomic"
	"time"
)

const (
	// firstSweep is how long after its start a forwarder first looks for dead
	// letters over the bounds: a start has other things to do.
	firstSweep = time.Minute
	// sweepEvery is how often it looks again.
	sweepEvery = time.Hour
)

// Forgotten counts the dead letters that the forwarder has discarded by itself.
type Forgotten struct {
	Age  int64 // older than Config.DeadMaxAge
	Size int64 // the oldest of more than Config.DeadMaxBytes
}

// retention keeps the dead letters within the bounds of a Config.
type retention struct {
	config *Config
	count  *counters
}

// run keeps the dead letters within the bounds of the Config until ctx is
// done. The bounds are the forwarder's, not the store's, so that every store
// has the same: all it has to do is list and discard. Several forwarders on a
// store do no harm to each other, as each counts what it has discarded itself.
func (r *retention) run(ctx context.Context) {
	if r.config.DeadMaxAge == Unlimited && r.config.DeadMaxBytes == Unlimited {
		return
	}
	t := time.NewTimer(firstSweep)
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-ctx.Done():
			return
		}
		err := r.forget(ctx, r.config.Store.Now())
		if err != nil && ctx.Err() == nil && !errors.Is(err, ErrClosed) {
			r.config.Logger.Error("webhook: dead letters over the bounds are kept, the store fails", "error", err)
		}
		t.Reset(sweepEvery)
	}
}

// forget discards the dead letters that are over the bounds at now. It reads none where the
// counts of the store say that there are none.
func (r *retention) forget(ctx context.Context, now time.Time) error {
	counts, err := r.config.Store.Count(ctx)
	if err != nil || counts.Dead == 0 {
		return err
	}
	if oldest := now.Add(-r.config.DeadMaxAge); r.config.DeadMaxAge != Unlimited && counts.OldestDead.Before(oldest) {
		every := func(*DeadLetter) bool { return true }
		if err := r.forgetWhile(ctx, DeadFilter{To: oldest}, "age", &r.count.forgottenAge, every); err != nil {
			return err
		}
	}
	if r.config.DeadMaxBytes == Unlimited {
		return nil
	}
	bytes, err := r.deadBytes(ctx)
	excess := bytes - r.config.DeadMaxBytes
	if err != nil || excess <= 0 {
		return err
	}
	return r.forgetWhile(ctx, DeadFilter{}, "size", &r.count.forgottenSize, func(d *DeadLetter) bool {
		if excess <= 0 {
			return false
		}
		excess -= d.Size()
		return true
	})
}

// deadBytes returns the Sizes of all dead letters. Only where the store does not know them
// are the letters read.
func (r *retention) deadBytes(ctx context.Context) (int64, error) {
	counts, err := r.config.Store.Count(ctx)
	if err != nil || counts.DeadBytes >= 0 {
		return counts.DeadBytes, err
	}
	bytes := int64(0)
	for d, err := range r.config.Store.Dead(ctx, DeadFilter{}, "") {
		if err != nil {
			return 0, err
		}
		bytes += d.Size()
	}
	return bytes, nil
}

// forgetWhile discards the dead letters that filter selects, from the oldest on,
// up to the first for which more returns false.
func (r *retention) forgetWhile(ctx context.Context, filter DeadFilter, bound string, count *atomic.Int64, more func(*DeadLetter) bool) error {
	total := 0
	defer func() {
		if total > 0 {
			r.config.Logger.Warn("webhook: dead letters discarded, over the bound", "bound", bound, "count", total)
		}
	}()
	keys := make([]string, 0, replayChunk)
	flush := func() error {
		n, err := r.config.Store.Discard(ctx, keys...)
		count.Add(int64(n))
		total += n
		keys = keys[:0]
		return err
	}
	for d, err := range r.config.Store.Dead(ctx, filter, "") {
		if err != nil {
			return err
		}
		if !more(&d) {
			break
		}
		if keys = append(keys, d.Key); len(keys) == replayChunk {
			if err := flush(); err != nil {
				return err
			}
		}
	}
	if len(keys) == 0 {
		return nil
	}
	return flush()
}
