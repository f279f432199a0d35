package filequeue

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/hookferry/analytics/webhook"
)

// Rescue writes what can be read of the store in the folder from to a new store in the folder to,
// which must not exist. It changes nothing of the old one, which no process may have open. The
// Report is about the new one, but for Missing.
func Rescue(from, to string) (Report, error) {
	return RescueContext(context.Background(), from, to, nil)
}

// RescueContext is Rescue until ctx is done: then it returns the error of ctx, and there is no new
// store. It calls progress as CheckContext does.
func RescueContext(ctx context.Context, from, to string, progress func(read, of int64)) (r Report, err error) {
	if !missingFile(to) {
		return r, fmt.Errorf("filequeue: %s exists", to)
	}
	ld, err := examine(ctx, from, progress)
	if err != nil {
		return r, err
	}
	defer ld.closeFiles()
	s, err := Open(to, Config{HistoryAge: Unlimited, HistoryBytes: Unlimited, DedupMax: ld.config.DedupMax, Logger: ld.config.Logger})
	if err != nil {
		return r, err
	}
	defer func() {
		s.index.mu.Lock()
		r.Waiting, r.Dead, r.Delivered, r.Settings = s.index.waiting, s.index.dead.len, s.index.history.len, len(s.index.settings)
		r.Bytes, r.Needed = s.index.segs.bytes()
		s.index.mu.Unlock()
		if cerr := s.Close(); err == nil {
			err = cerr
		}
		if ctx.Err() != nil {
			err = errors.Join(ctx.Err(), os.RemoveAll(to))
		}
	}()
	x := ld.index
	for _, e := range x.settings {
		e.Version = 0
		if _, err := s.Set(ctx, e.Setting); err != nil {
			return r, err
		}
	}
	for name, l := range x.lanes {
		for _, q := range []*queue{&l.fresh, &l.retries} {
			if err := ld.copyTo(ctx, s, q, 0, name); err != nil {
				return r, err
			}
		}
	}
	if err := ld.copyTo(ctx, s, &x.dead.queue, webhook.Bury, ""); err != nil {
		return r, err
	}
	if err := ld.copyTo(ctx, s, &x.history.queue, webhook.Done, ""); err != nil {
		return r, err
	}
	if err := ld.copyKeys(ctx, s); err != nil {
		return r, err
	}
	if err := copyRoster(from, to); err != nil {
		ld.report("the audiences cannot be read, and are missing: %v", err)
	}
	r.Missing = ld.missing
	return r, nil
}

// copyTo puts the deliveries of a queue into another store, and settles them by the verdict if there is
// one.
func (ld *loader) copyTo(ctx context.Context, s *Store, q *queue, verdict webhook.Verdict, dest string) error {
	const some, bytes = 256, 4 << 20
	var ps []webhook.Put
	var ds []webhook.DeadLetter
	size := 0
	flush := func() error {
		out := make([]webhook.Result, len(ps))
		if err := s.Put(ctx, ps, out); err != nil {
			return err
		}
		var ss []webhook.Settlement
		for i, r := range out {
			if ps[i].Claim = r.Claim; ps[i].Keep && r.Stored {
				ss = append(ss, webhook.Settlement{Verdict: verdict, Delivery: ps[i].Delivery, Reason: ds[i].Reason, At: ds[i].Died})
			}
		}
		ps, ds, size = ps[:0], ds[:0], 0
		_, err := s.Settle(ctx, ss)
		return err
	}
	for chunk := range slices.Values(q.chunks) {
		for _, e := range chunk {
			var d webhook.DeadLetter
			p := ld.index.segs.pin(e)
			err := p.load(&d)
			p.release()
			switch {
			case errors.Is(err, errState):
				if d.Due, d.Died = e.dueAt(), e.dueAt(); d.Due.UnixMicro() == 0 {
					d.Due, d.Died = s.Now(), s.Now()
				}
			case err != nil: // was read a moment ago
				ld.report("%s: the delivery at %d cannot be read, and is missing: messageId %q, destination %q: %v", segmentName(e.put.seg), e.put.off, d.MessageID, dest, err)
				continue
			}
			ps, ds = append(ps, webhook.Put{Delivery: d.Delivery, Keep: verdict != 0}), append(ds, d)
			if size += len(d.Body); len(ps) == some || size > bytes {
				if err := flush(); err != nil {
					return err
				}
			}
		}
	}
	if len(ps) == 0 {
		return nil
	}
	return flush()
}

// copyKeys has another store remember what was put before.
func (ld *loader) copyKeys(ctx context.Context, s *Store) error {
	for chunk := range slices.Chunk(ld.keys, 4096) {
		var keys []byte
		for _, k := range chunk {
			keys = append(keys, k.key[:]...)
		}
		if err := s.writer.do(ctx, func(g *group) error {
			g.remember(keys, chunk[len(chunk)-1].at, g.seen.Turns())
			return nil
		}, recordSize(len(keys)), false); err != nil {
			return err
		}
	}
	return nil
}

// copyRoster copies the database of the audiences, if there is one and it can be read.
func copyRoster(from, to string) error {
	path := filepath.Join(from, rosterName)
	if missingFile(path) {
		return nil
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	copied := filepath.Join(to, rosterName)
	if err := os.WriteFile(copied, b, 0o600); err != nil {
		return err
	}
	if err := checkRoster(copied); err != nil {
		return errors.Join(err, os.Remove(copied))
	}
	return nil
}
