package natsqueue

import (
	"context"
	"errors"
	"iter"
	"slices"
	"strings"

	"github.com/hookferry/analytics/webhook/store"
)

// settingValue is the first byte of the document of a setting. The value follows, which may be empty.
const settingValue = 'v'

// Settings implements store.Keeper.
func (s *Store) Settings(ctx context.Context, prefix string) iter.Seq2[store.Setting, error] {
	return page(ctx, s.conn, "reading settings", func() (all []store.Setting, _ error) {
		group := "*"
		if strings.Contains(prefix, "/") {
			group = settingGroup(prefix)
		}
		found, err := s.documents(ctx, s.config.setting(group, "*"))
		for name, m := range found {
			switch {
			case !strings.HasPrefix(name, prefix):
			case m.Data[0] != settingValue:
				s.config.Logger.Error("natsqueue: ignoring a setting that cannot be read", "sequence", m.Sequence)
			default:
				all = append(all, store.Setting{Name: name, Value: m.Data[1:], Version: m.Sequence})
			}
		}
		slices.SortFunc(all, func(a, b store.Setting) int { return strings.Compare(a.Name, b.Name) })
		return all, err
	})
}

// Set implements store.Keeper.
func (s *Store) Set(ctx context.Context, e store.Setting) (version uint64, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, callTimeout, errNoAnswer) // for both requests
	defer cancel()
	return call(ctx, s.conn, "changing a setting", func() (uint64, error) {
		if err := e.Check(); err != nil {
			return 0, err
		}
		subject := s.config.setting(settingGroup(e.Name), token(e.Name))
		held, err := s.last(ctx, subject)
		if err != nil {
			return 0, err
		}
		if removed := len(held.Data) == 0; removed && e.Version != 0 || !removed && e.Version != held.Sequence {
			return 0, store.ErrConflict
		}
		var data []byte
		if e.Value != nil {
			data = append([]byte{settingValue}, e.Value...)
		}
		c := document(subject, held.Sequence, data)
		if err = s.store(ctx, c); errors.Is(err, errChanged) {
			err = store.ErrConflict
		}
		return c.seq, err
	})
}
