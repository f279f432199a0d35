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
	setting store.Setting
	entry   entry
}

// Settings implements store.Keeper.
func (s *Store) Settings(ctx context.Context, prefix string) iter.Seq2[store.Setting, error] {
	return store.Page(func() (some []store.Setting, err error) {
		err = s.view(ctx, func(x *index) {
			for name, e := range x.settings {
				if strings.HasPrefix(name, prefix) {
					some = append(some, e.setting)
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
