package filequeue

import (
	"bytes"
	"context"
	"iter"
	"slices"
	"strings"

	"github.com/hookferry/analytics/webhook/store"
)

// A setting is a setting with the entry of its record. The version of a setting is the sequence
// number of the record.
type setting struct {
	store.Setting
	entry entry
}

// Settings implements store.Keeper.
func (s *Store) Settings(ctx context.Context, prefix string) iter.Seq2[store.Setting, error] {
	return store.Page(func() (some []store.Setting, err error) {
		err = s.view(ctx, func(x *index) {
			for name, e := range x.settings {
				if strings.HasPrefix(name, prefix) {
					some = append(some, e.Setting)
				}
			}
		})
		slices.SortFunc(some, func(a, b store.Setting) int { return strings.Compare(a.Name, b.Name) })
		return some, err
	})
}

// Set implements store.Keeper.
func (s *Store) Set(ctx context.Context, e store.Setting) (version uint64, err error) {
	if err := e.Check(); err != nil {
		return 0, err
	}
	if err := s.gate.Enter(ctx); err != nil {
		return 0, err
	}
	defer s.gate.Leave()
	e.Name, e.Value = strings.Clone(e.Name), bytes.Clone(e.Value)
	err = s.writer.do(ctx, func(g *group) (err error) {
		version, err = g.set(e)
		return err
	}, alone, false)
	if err != nil {
		return 0, err
	}
	return version, nil
}

// set changes a setting, or removes it if e.Value is nil. It returns the new version. It must be the
// only op of its group, because it does not see the changes of other ops in the same group.
func (g *group) set(e store.Setting) (uint64, error) {
	old, had := g.settings[e.Name]
	if had && old.Version != e.Version || !had && e.Version != 0 {
		return 0, store.ErrConflict
	}
	var refs []ref
	if had {
		refs = []ref{{old.Version, old.entry.put.seg}}
		g.then(func() {
			g.count(&old.entry, -1)
			delete(g.settings, e.Name)
		})
	}
	gone := listing(kindGone, refs)
	if had || e.Value == nil {
		g.add(&gone)
	}
	if e.Value == nil {
		return gone.seq, nil
	}
	e.Version = 0
	r := settingRecord(&e)
	g.add(&r)
	e.Version = r.seq
	g.then(func() { g.keep(&r, e) })
	return e.Version, nil
}

// keep adds a setting with its record to the index.
func (x *index) keep(r *record, e store.Setting) {
	s := &setting{e, entryOf(r)}
	x.settings[e.Name] = s
	x.count(&s.entry, 1)
}
