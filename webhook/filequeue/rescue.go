package filequeue

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"github.com/hookferry/analytics/webhook/store"
)

// Rescue copies the readable part of the store in the folder from, which no process may have open, to
// a new store in the folder to, which must not exist. It does not change the old store. The Report
// counts the contents of the new store. Its Missing describes the unreadable parts of the old one. If
// ctx ends, Rescue removes the new store. It calls progress as Check does, while it reads the old
// store.
func Rescue(ctx context.Context, from, to string, progress func(read, of int64)) (r Report, err error) {
	if _, err := os.Lstat(to); !errors.Is(err, fs.ErrNotExist) {
		return r, fmt.Errorf("filequeue: %s exists", to)
	}
	ld, err := inspect(ctx, from, progress)
	if err != nil {
		return r, err
	}
	defer closeFiles(ld.Store)
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(to))
		}
	}()
	s, err := Open(to, ld.config)
	if err != nil {
		return r, err
	}
	err = ld.copyTo(s)
	if rerr := copyRoster(from, to); rerr != nil {
		ld.report("the audiences cannot be read, and are missing: %v", rerr)
	}
	s.index.mu.Lock()
	r = ld.reportOn(s.index)
	s.index.mu.Unlock()
	return r, errors.Join(err, s.Close())
}

// copyTo copies what was loaded to a new store, with the same sequence numbers.
func (ld *loader) copyTo(s *Store) error {
	err := s.writer.do(ld.ctx, func(g *group) error {
		g.seq = max(g.seq, ld.seq+1)
		g.gone(nil, ld.index.losses+len(ld.lost))
		for _, e := range ld.index.settings {
			r := settingRecord(&e.Setting)
			g.add(&r)
			g.then(func() { g.keep(&r, e.Setting) })
		}
		return nil
	}, alone, true)
	for some := range slices.Chunk(ld.keys, maxKeys) {
		var b []byte
		for _, k := range some {
			b = append(b, k.key[:]...)
		}
		keys := []record{keysRecord(b, some[len(some)-1].at)}
		if err == nil {
			err = s.writer.do(ld.ctx, func(g *group) error { g.remember(keys); return nil }, alone, true)
		}
	}
	if err != nil {
		return err
	}
	var moves []move
	ld.index.visit(func(w where, e entry) { moves = append(moves, move{entry: e, from: w}) })
	lost := func(m *move, d *store.Ended, cause error) {
		ld.report("a delivery cannot be read any more, and is missing: messageId %q: %v", d.MessageID, cause)
	}
	return ld.copyAll(moves, nil, lost, func(some []move) error {
		var ts []transition
		for _, m := range some {
			if m.copy.stored = noDedup; m.copy.payload != nil { // the dedup keys are stored already
				ts = append(ts, transition{record: m.copy, put: true, entry: m.entry, from: spot{where: m.from}})
			}
		}
		return s.writer.do(ld.ctx, func(g *group) error { g.transit(ts); return nil }, alone, true)
	})
}
