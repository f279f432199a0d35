package natsqueue

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/hookferry/analytics/webhook/store"
)

// Put implements store.Store. It stores its deliveries in one message or in one atomic batch. If
// they need more than 1,000 messages of 128 KB, Put returns store.ErrTooLarge. The package
// comment says when Put reports duplicates as stored.
func (s *Store) Put(ctx context.Context, ps []store.Put, out []store.Result) error {
	if err := s.life.calls.Enter(ctx); err != nil {
		return err
	}
	defer s.life.calls.Leave()
	p, err := s.putter.newPut(ps...)
	if err != nil || len(ps) == 0 {
		return err
	}
	if err := s.putter.put(ctx, p); err != nil {
		return err
	}
	s.index.mu.Lock()
	defer s.index.mu.Unlock()
	for i := range p.items {
		out[i] = p.items[i].Result
	}
	return nil
}

// Heads implements store.Store.
func (s *Store) Heads(ctx context.Context, all bool) iter.Seq2[store.Head, error] {
	return page(ctx, s.life, "listing heads", func() (heads []store.Head, _ error) {
		s.index.mu.Lock()
		defer s.index.mu.Unlock()
		if !all {
			for name := range s.index.news {
				heads = append(heads, s.index.head(name))
			}
			clear(s.index.news)
			return heads, nil
		}
		for name := range s.index.lanes {
			if h := s.index.head(name); !h.Earliest().IsZero() {
				heads = append(heads, h)
			}
		}
		return heads, nil
	})
}

// Fetch implements store.Store.
func (s *Store) Fetch(ctx context.Context, wants []store.Want, maxBytes int64, dst []store.Delivery) ([]store.Delivery, error) {
	if err := s.life.calls.Enter(ctx); err != nil {
		return dst, err
	}
	defer s.life.calls.Leave()
	if err := s.lease.lapsed(); err != nil {
		return dst, err
	}
	picked := s.index.pick(wants, maxBytes)
	err := s.loader.load(ctx, picked, func(ds []*store.Delivery) (err error) {
		if err = s.lease.lapsed(); err != nil {
			return err
		}
		for i, e := range picked {
			if ds[i] != nil { // otherwise it is lost or cannot be read
				d := *ds[i]
				d.Claim = e.claim
				dst = append(dst, d)
			}
		}
		s.index.next(wants)
		return nil
	})
	if err != nil {
		s.index.putBackAll(picked)
	}
	return dst, err
}

// Settle implements store.Store. It returns an error if the settlements are not recorded within 4.5
// s. They may still be recorded later. A later call that settles the same claims has no effect on
// them, and waits until it is known whether the first settlements are recorded.
func (s *Store) Settle(ctx context.Context, ss []store.Settlement) (int, error) {
	if err := s.life.calls.Enter(ctx); err != nil {
		return 0, err
	}
	defer s.life.calls.Leave()
	n := len(ss)
	var refused error
	for i := range ss {
		ss[i].Released = time.Time{}
		if refused = ss[i].Check(); refused != nil {
			n, refused = i, fmt.Errorf("natsqueue: settlement %d: %w", i, refused)
			break
		}
	}
	var writes, others []*write // writes: of this call, one for each partition; others: of earlier calls that settle some of ss
	ends := make([]*ending, n)
	s.index.mu.Lock()
	if err := s.lease.lapsed(); err != nil { // others may have claimed the deliveries
		s.index.mu.Unlock()
		return 0, fmt.Errorf("natsqueue: settling: %w", err)
	}
	for i := range ss[:n] {
		e := s.index.claims[ss[i].Delivery.Claim]
		switch {
		case e == nil:
		case e.write != nil:
			others = append(others, e.write)
		case ss[i].Verdict == store.Return:
			s.index.putBack(e)
		default:
			at := slices.IndexFunc(writes, func(w *write) bool { return w.p == e.block.p })
			if at < 0 {
				at = len(writes)
				writes = append(writes, newWrite(e.block.p))
			}
			w := writes[at]
			e.write = w
			ends[i] = s.recorder.ending(e, e.delivery, &ss[i])
			w.endings = append(w.endings, ends[i])
		}
	}
	s.index.mu.Unlock()
	ctx, cancel := context.WithTimeoutCause(ctx, callTimeout+resend/2, errNoAnswer)
	defer cancel()
	if err := cmp.Or(s.recorder.write(ctx, writes...), await(ctx, others)); err != nil {
		s.index.mu.Lock()
		defer s.index.mu.Unlock()
		for _, e := range ends { // what they have released, or will release, is news
			if e != nil {
				e.news = true
				s.index.tell(e.entry.lane.name)
			}
		}
		return 0, fmt.Errorf("natsqueue: settling: %w", err)
	}
	for i, e := range ends {
		if ss[i].Released = (time.Time{}); e != nil {
			ss[i].Released = e.released
		}
	}
	return n, refused
}
