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

// A setting is a setting with the entry of its record. The version of a setting is the sequence
// number of the record.
type setting struct {
	webhook.Setting
	entry entry
}

// settings holds all settings in the order of their names.
type settings []setting

func (all settings) find(name string) (int, bool) {
	return slices.BinarySearchFunc(all, name, func(s setting, name string) int { return strings.Compare(s.Name, name) })
}

// Settings implements webhook.Keeper.
func (s *Store) Settings(ctx context.Context, prefix string) iter.Seq2[webhook.Setting, error] {
	return storekit.Page(func() (some []webhook.Setting, err error) {
		err = s.view(ctx, func(x *index) {
			i, _ := x.settings.find(prefix)
			for ; i < len(x.settings) && strings.HasPrefix(x.settings[i].Name, prefix); i++ {
				some = append(some, x.settings[i].Setting)
			}
		})
		return some, err
	})
}

// Set implements webhook.Keeper.
func (s *Store) Set(ctx context.Context, e webhook.Setting) (version uint64, err error) {
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
func (g *group) set(e webhook.Setting) (uint64, error) {
	i, had := g.settings.find(e.Name)
	if had && g.settings[i].Version != e.Version || !had && e.Version != 0 {
		return 0, webhook.ErrConflict
	}
	var old []ref
	if had {
		e := g.settings[i].entry
		old = []ref{{e.seq, e.put.seg}}
		g.then(func() {
			g.count(&e, -1)
			g.settings = slices.Delete(g.settings, i, i+1)
		})
	}
	gone := listing(kindGone, old)
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
func (x *index) keep(r *record, e webhook.Setting) {
	i, _ := x.settings.find(e.Name)
	s := setting{e, entryOf(r)}
	x.settings = slices.Insert(x.settings, i, s)
	x.count(&s.entry, 1)
}

// moveSettings copies settings, about maxMove bytes of them, out of a segment. It must be the only
// op of its group. It reports whether there may be more.
func (g *group) moveSettings(from *segment) (more bool) {
	for i := range g.settings {
		s := &g.settings[i]
		if s.entry.put.seg != from.number {
			continue
		}
		if g.bytes >= maxMove {
			return true
		}
		r := settingRecord(&s.Setting)
		g.add(&r)
		g.then(func() {
			g.count(&s.entry, -1)
			s.entry, from.copied = entryOf(&r), true
			g.count(&s.entry, 1)
		})
	}
	return false
}
