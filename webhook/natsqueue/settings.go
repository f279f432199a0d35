package natsqueue

import (
	"context"
	"errors"
	"iter"
	"slices"
	"strings"

	"github.com/hookferry/analytics/webhook"
)

// settingValue is the first byte of the document of a setting. The value follows, which may be empty.
const settingValue = 'v'

// Settings implements webhook.Keeper. It reads the names of all settings from the leader of the
// stream, and then the settings with the prefix from a replica that has all messages up to then.
// While the servers elect a leader, any replica may answer with the names, so Settings waits until
// this replica has all settings.
func (s *Store) Settings(ctx context.Context, prefix string) iter.Seq2[webhook.Setting, error] {
	return page(ctx, s.conn, "reading settings", func() ([]webhook.Setting, error) {
		all, err := s.settings(ctx, prefix)
		slices.SortFunc(all, func(a, b webhook.Setting) int { return strings.Compare(a.Name, b.Name) })
		return all, err
	})
}

func (s *conn) settings(ctx context.Context, prefix string) (all []webhook.Setting, _ error) {
	last, err := s.last(ctx, s.config.setting("*"))
	if err != nil {
		return nil, err
	}
	info, err := s.info(ctx, s.config.setting("*"))
	for wait := behind; err == nil && info.State.LastSeq < last.Sequence; wait *= 2 {
		if err = sleep(ctx, wait); err == nil {
			info, err = s.info(ctx, s.config.setting("*"))
		}
	}
	if err != nil {
		return nil, err
	}
	var subjects []string
	for subject := range info.State.Subjects {
		if name, err := lastToken(subject); err == nil && strings.HasPrefix(name, prefix) {
			subjects = append(subjects, subject)
		}
	}
	for some := range slices.Chunk(subjects, pageLen) {
		found, err := s.lasts(ctx, last.Sequence, some...)
		if err != nil {
			return nil, err
		}
		for _, m := range found {
			name, _ := lastToken(m.Subject)
			switch {
			case len(m.Data) == 0: // it is removed
			case m.Data[0] != settingValue:
				s.config.Logger.Error("natsqueue: ignoring a setting that cannot be read", "sequence", m.Sequence)
			default:
				all = append(all, webhook.Setting{Name: name, Value: m.Data[1:], Version: m.Sequence})
			}
		}
	}
	return all, nil
}

// Set implements webhook.Keeper.
func (s *Store) Set(ctx context.Context, e webhook.Setting) (version uint64, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, callTimeout, errNoAnswer) // for both requests
	defer cancel()
	return call(ctx, s.conn, "changing a setting", func() (uint64, error) {
		if err := e.Check(); err != nil {
			return 0, err
		}
		subject := s.config.setting(token(e.Name))
		held, err := s.last(ctx, subject)
		if err != nil {
			return 0, err
		}
		if removed := len(held.Data) == 0; removed && e.Version != 0 || !removed && e.Version != held.Sequence {
			return 0, webhook.ErrConflict
		}
		var data []byte
		if e.Value != nil {
			data = append([]byte{settingValue}, e.Value...)
		}
		c := document(subject, held.Sequence, data)
		if err = s.store(ctx, c); errors.Is(err, errChanged) {
			err = webhook.ErrConflict
		}
		return c.seq, err
	})
}
