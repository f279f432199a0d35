package webhook

import (
	"context"
	"errors"
	"time"
)

// A sweeper discards the dead letters that exceed the bounds of the Config.
type sweeper struct {
	config   *Config
	recorder *recorder
}

// run calls sweep each hour, but first after a minute, because a sweep would slow down the
// start. The forwarder enforces the bounds, so that they are the same for every store. Several
// forwarders on one store may do so.
func (s *sweeper) run(ctx context.Context) {
	for wait := time.Minute; ; wait = time.Hour {
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return
		}
		if err := s.sweep(ctx); err != nil && ctx.Err() == nil && !errors.Is(err, ErrClosed) {
			s.config.Logger.Error("webhook: the store fails; dead letters over the bounds are kept for another hour", "error", err)
		}
	}
}

// sweep discards the dead letters that exceed the bounds, and counts and logs them. It reads none
// if the counts of the store show that no bound is exceeded.
func (s *sweeper) sweep(ctx context.Context) error {
	counts, err := s.config.Store.Count(ctx)
	if err != nil || counts.Dead == 0 {
		return err
	}
	var oldest time.Time // dead letters that died before it are too old
	if s.config.DeadMaxAge != Unlimited {
		oldest = s.config.now().Add(-s.config.DeadMaxAge)
	}
	excess := int64(0) // bytes
	if s.config.DeadMaxBytes != Unlimited {
		excess = counts.DeadBytes - s.config.DeadMaxBytes
		if counts.DeadBytes < 0 { // the store does not know the total
			excess = -s.config.DeadMaxBytes
			for d, err := range s.config.Store.Dead(ctx, EndedFilter{}, "") {
				if err != nil {
					return err
				}
				excess += d.Size()
			}
		}
	}
	if excess <= 0 && !counts.OldestDead.Before(oldest) {
		return nil
	}
	aged := 0 // dead letters that are too old: the first ones
	keys := func(yield func(string, error) bool) {
		for d, err := range s.config.Store.Dead(ctx, EndedFilter{}, "") {
			switch {
			case err != nil:
			case d.At.Before(oldest):
				aged++
			case excess <= 0:
				return
			}
			excess -= d.Size()
			if !yield(d.Key, err) {
				return
			}
		}
	}
	total := 0
	for total, err = range inChunks(keys, chunk, func(keys []string) (int, error) { return s.config.Store.Discard(ctx, keys...) }) {
	}
	aged = min(aged, total)
	s.recorder.count(func(n *Stats) {
		n.Forgotten.Age += int64(aged)
		n.Forgotten.Size += int64(total - aged)
	})
	for bound, n := range map[string]int{"age": aged, "size": total - aged} {
		if n > 0 {
			s.config.Logger.Warn("webhook: discarded dead letters that exceeded DeadMaxAge or DeadMaxBytes", "bound", bound, "count", n)
		}
	}
	return err
}

// Forgotten counts the dead letters that the forwarder has discarded.
type Forgotten struct {
	Age  int64 // older than Config.DeadMaxAge
	Size int64 // the oldest, while all together were larger than Config.DeadMaxBytes
}
