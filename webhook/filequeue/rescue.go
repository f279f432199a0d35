package filequeue

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/hookferry/analytics/webhook"
)

// Rescue copies the readable part of one store to a new store. The argument from is the
// folder of the old store. The argument to is the folder of the new store, and must not exist. No
// process may have the old store open. Rescue does not change the old store. The Report
// counts the contents of the new store. Its Missing describes the unreadable parts of the old one.
// If ctx ends, Rescue removes the new store. It calls progress as Check does.
func Rescue(ctx context.Context, from, to string, progress func(read, of int64)) (r Report, err error) {
	if !missingFile(to) {
		return r, fmt.Errorf("filequeue: %s exists", to)
	}
	ld, err := examine(ctx, from, progress)
	if err != nil {
		return r, err
	}
	defer closeFiles(ld.Store)
	s, err := Open(to, Config{HistoryAge: Unlimited, HistoryBytes: Unlimited, DedupMax: ld.config.DedupMax, Logger: ld.config.Logger})
	if err != nil {
		return r, err
	}
	err = ld.copyTo(ctx, s)
	if rerr := copyRoster(from, to); rerr != nil {
		ld.report("the audiences cannot be read, and are missing: %v", rerr)
	}
	r = reportOf(s, ld.missing)
	err = errors.Join(err, s.Close())
	if ctx.Err() != nil {
		err = errors.Join(ctx.Err(), os.RemoveAll(to))
	}
	return r, err
}

// copyTo copies everything that was loaded to another store.
func (ld *loader) copyTo(ctx context.Context, s *Store) error {
	x := ld.index
	for _, e := range x.settings {
		e.Version = 0
		if _, err := s.Set(ctx, e); err != nil {
			return err
		}
	}
	for _, l := range x.lanes {
		for _, q := range []*queue{&l.fresh, &l.retries} {
			if err := ld.copyQueue(ctx, s, q, 0); err != nil {
				return err
			}
		}
	}
	if err := ld.copyQueue(ctx, s, &x.dead, webhook.Bury); err != nil {
		return err
	}
	if err := ld.copyQueue(ctx, s, &x.history, webhook.Done); err != nil {
		return err
	}
	for chunk := range slices.Chunk(ld.keys, 4096) {
		var keys []byte
		for _, k := range chunk {
			keys = append(keys, k.key[:]...)
		}
		last := chunk[len(chunk)-1].at
		if err := s.writer.do(ctx, func(g *group) error { g.remember(keys, last); return nil }, recordSize(len(keys)), false); err != nil {
			return err
		}
	}
	return nil
}

// copyQueue puts the deliveries of a queue into another store. If verdict is not 0, it settles the
// copies with this verdict.
func (ld *loader) copyQueue(ctx context.Context, s *Store, q *queue, verdict webhook.Verdict) error {
	const page, bytes = 256, 4 << 20
	var ps []webhook.Put
	var ss []webhook.Settlement
	size := 0
	flush := func() error {
		out := make([]webhook.Result, len(ps))
		if err := s.Put(ctx, ps, out); err != nil {
			return err
		}
		for i := range ss {
			ss[i].Delivery.Claim = out[i].Claim
		}
		_, err := s.Settle(ctx, ss)
		ps, ss, size = ps[:0], ss[:0], 0
		return err
	}
	for e := range q.all() {
		var d webhook.DeadLetter
		p := ld.index.segs.pin(e)
		err := p.load(&d, nil)
		p.release()
		if errors.Is(err, errState) { // reported already
			if d.Due, d.Died = e.dueAt(), e.dueAt(); e.due == 0 {
				d.Due, d.Died = s.Now(), s.Now()
			}
		} else if err != nil { // the load could read the record, but now the disk fails
			ld.report("%s: the delivery at %d cannot be read, and is missing: messageId %q, destination %q: %v", ld.index.segs[e.put.seg].name(), e.put.off, d.MessageID, d.Destination, err)
			continue
		}
		ps = append(ps, webhook.Put{Delivery: d.Delivery, Keep: verdict != 0, NoDedup: true})
		if verdict != 0 {
			ss = append(ss, webhook.Settlement{Verdict: verdict, Delivery: d.Delivery, Reason: d.Reason, At: d.Died})
		}
		if size += len(d.Body); len(ps) == page || size > bytes {
			if err := flush(); err != nil {
				return err
			}
		}
	}
	return flush()
}

// copyRoster copies the database of the audiences, if there is one. It returns an error if the copy
// cannot be read.
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

// missingFile reports whether no file or folder is at a path.
func missingFile(path string) bool {
	_, err := os.Lstat(path)
	return errors.Is(err, fs.ErrNotExist)
}
