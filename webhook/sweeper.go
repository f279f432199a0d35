package webhook

import (
	"context"
	"errors"
	"time"

	"github.com/hookferry/analytics/webhook/store"
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

// dead selects the dead letters, those first that were accepted first.
var dead = Query{States: []State{StateDead}, Oldest: true}

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
	excess, err := s.excess(ctx, &counts)
	if err != nil || excess <= 0 && !counts.OldestDead.Before(oldest) {
		return err
	}
	gone, err := s.discard(ctx, oldest, excess)
	s.recorder.count(func(n *Stats) {
		n.Forgotten.Age += gone.Age
		n.Forgotten.Size += gone.Size
	})
	for bound, n := range map[string]int64{"age": gone.Age, "size": gone.Size} {
		if n > 0 {
			s.config.Logger.Warn("webhook: discarded dead letters that exceeded DeadMaxAge or DeadMaxBytes", "bound", bound, "count", n)
		}
	}
	return err
}

// excess returns by how many bytes the dead letters exceed their bound. If the store does not know how
// many they have, excess reads all of them.
func (s *sweeper) excess(ctx context.Context, counts *store.Counts) (int64, error) {
	if s.config.DeadMaxBytes == Unlimited {
		return 0, nil
	}
	if counts.DeadBytes >= 0 {
		return counts.DeadBytes - s.config.DeadMaxBytes, nil
	}
	total := int64(0)
	for d, err := range store.Records(ctx, s.config.Store, dead) {
		if err != nil {
			return 0, err
		}
		total += d.Size()
	}
	return total - s.config.DeadMaxBytes, nil
}

// discard discards the dead letters that died before a time, and the first ones until they have this
// many bytes. After an error it returns how many there are at least.
func (s *sweeper) discard(ctx context.Context, before time.Time, excess int64) (gone Forgotten, err error) {
	for page, err := range store.PagesOf(ctx, s.config.Store, dead, chunk) {
		if err != nil {
			return gone, err
		}
		var aged, large []Ref
		for i := range page {
			if d := &page[i]; d.At.Before(before) {
				aged = append(aged, d.Ref())
				excess -= d.Size()
			} else if excess > 0 {
				large = append(large, d.Ref())
				excess -= d.Size()
			}
		}
		n, _, err := s.config.Store.Discard(ctx, append(aged, large...)...)
		gone.Age += int64(min(n, len(aged)))
		gone.Size += int64(max(n-len(aged), 0))
		if err != nil || excess <= 0 && len(page) > 0 && !page[len(page)-1].Accepted.Before(before) {
			return gone, err
		}
	}
	return gone, nil
}

// Forgotten counts the dead letters that the forwarder has discarded.
type Forgotten struct {
	Age  int64 // older than Config.DeadMaxAge
	Size int64 // the oldest, while all together were larger than Config.DeadMaxBytes
}
