package filequeue

import (
	"bytes"
	"context"
	"iter"
	"slices"
	"strings"

	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/storekit"
)

// settings holds all settings in the order of their names. The version of a setting is the sequence
// number of its record.
type settings []webhook.Setting

func (all settings) find(name string) (int, bool) {
	return slices.BinarySearchFunc(all, name, func(e webhook.Setting, name string) int { return strings.Compare(e.Name, name) })
}

// Settings implements webhook.Keeper.
func (s *Store) Settings(ctx context.Context, prefix string) iter.Seq2[webhook.Setting, error] {
	return storekit.Pages(prefix, func(from string) (some []webhook.Setting, next string, err error) {
		err = s.view(ctx, func(x *index) {
			i, _ := x.settings.find(from)
			for _, e := range x.settings[i:] {
				if !strings.HasPrefix(e.Name, prefix) {
					return
				}
				if len(some) == page {
					next = e.Name
					return
				}
				some = append(some, e)
			}
		})
		return some, next, err
	})
}

// Set implements webhook.Keeper.
func (s *Store) Set(ctx context.Context, e webhook.Setting) (version uint64, err error) {
	if err := e.Check(); err != nil {
		return 0, err
	}
	if err := s.enter(ctx); err != nil {
		return 0, err
	}
	defer s.calls.Done()
	e.Name, e.Value = strings.Clone(e.Name), bytes.Clone(e.Value)
	err = s.writer.do(ctx, func(g *group) (err error) {
		version, err = g.set(e)
		return err
	}, recordSize(len(e.Name)+len(e.Value)), false)
	if err != nil {
		return 0, err
	}
	return version, nil
}

// set changes a setting, or removes it if e.Value is nil. It returns the new version. Readers see
// the change before it is durable. If the commit fails, the change is reverted.
func (g *group) set(e webhook.Setting) (uint64, error) {
	i, had := g.settings.find(e.Name)
	if had && g.settings[i].Version != e.Version || !had && e.Version != 0 {
		return 0, webhook.ErrConflict
	}
	version := g.seq // the result if a missing setting is removed
	if had {
		was := g.settings[i]
		version = g.gone(kindGone, []ref{{was.Version, g.noteSegment(was.Version)}})
		g.settings = slices.Delete(g.settings, i, i+1)
		g.undo(func() { g.settings = slices.Insert(g.settings, i, was) })
		g.then(func(*segment) { g.unnote(&g.notes, point{0, was.Version}) })
	}
	if e.Value == nil {
		g.request.depends = true
		g.seq = max(g.seq, version+1)
		return version, nil
	}
	r := settingRecord(&e)
	g.add(&r)
	e.Version = r.seq
	g.settings = slices.Insert(g.settings, i, e)
	g.undo(func() { g.settings = slices.Delete(g.settings, i, i+1) })
	g.then(func(seg *segment) { g.note(&g.notes, entryOf(&r, seg.number)) })
	return e.Version, nil
}
