package natsqueue

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"

	"github.com/nats-io/nuid"

	"github.com/hookferry/analytics/webhook"
)

// A setting is the last message of its subject. The message consists of an id of settingID bytes, a
// byte that says whether there is a value, and the value. The id lets a node recognise its own
// message if the server's answer was lost.
const (
	settingID    = 22
	settingGone  = 'x'
	settingValue = 'v'
)

// Settings implements webhook.Keeper. It reads the names of all settings, and then the settings with
// the prefix. Both come from the leader of the stream. While the servers elect one, any replica may
// answer with the names, so Settings waits until this replica has all settings.
func (s *Store) Settings(ctx context.Context, prefix string) iter.Seq2[webhook.Setting, error] {
	return page(ctx, s.conn, func() (all []webhook.Setting, _ error) {
		last, _, err := s.last(ctx, s.config.setting("*"))
		if err != nil {
			return nil, fmt.Errorf("natsqueue: settings: %w", err)
		}
		info, err := s.info(ctx, s.config.setting("*"))
		for wait := behind; err == nil && info.State.LastSeq < last; wait *= 2 {
			if err = sleep(ctx, wait); err == nil {
				info, err = s.info(ctx, s.config.setting("*"))
			}
		}
		if err != nil {
			return nil, fmt.Errorf("natsqueue: settings: %w", err)
		}
		for subject := range info.State.Subjects {
			name, bad := lastToken(subject)
			if bad == nil && !strings.HasPrefix(name, prefix) {
				continue
			}
			seq, data, err := s.last(ctx, subject)
			switch {
			case err != nil:
				return nil, fmt.Errorf("natsqueue: settings: %w", err)
			case seq == 0: // it was removed in the meantime
			case bad != nil || len(data) <= settingID:
				s.config.Logger.Error("natsqueue: ignoring a setting that cannot be read", "sequence", seq)
			case data[settingID] == settingValue:
				all = append(all, webhook.Setting{Name: name, Value: data[settingID+1:], Version: seq})
			}
		}
		slices.SortFunc(all, func(a, b webhook.Setting) int { return strings.Compare(a.Name, b.Name) })
		return all, nil
	})
}

// Set implements webhook.Keeper.
func (s *Store) Set(ctx context.Context, e webhook.Setting) (version uint64, err error) {
	if err := e.Check(); err != nil {
		return 0, fmt.Errorf("natsqueue: %w", err)
	}
	if err := s.calls.Enter(ctx); err != nil {
		return 0, err
	}
	defer s.calls.Leave()
	subject, id, kind := s.config.setting(token(e.Name)), nuid.Next(), byte(settingValue)
	if e.Value == nil {
		kind = settingGone
	}
	data := append(append([]byte(id), kind), e.Value...)
	for expected := e.Version; ; {
		c := one(subject, data, headerExpected, decimal(expected), headerRollup, "sub")
		err := s.store(ctx, c)
		seq, held, done := c.seq, []byte(nil), err == nil
		if errors.Is(err, errChanged) {
			seq, held, err = s.last(ctx, subject)
			done = len(held) > settingID && string(held[:settingID]) == id // the answer was lost
		}
		switch {
		case err != nil:
			return 0, fmt.Errorf("natsqueue: setting %q: %w", e.Name, err)
		case done && kind == settingGone:
			if err := s.purge(ctx, subject, seq+1); err != nil {
				s.config.Logger.Debug("natsqueue: a setting is removed, but its message could not be erased from the stream", "error", err)
			}
			return seq, nil
		case done:
			return seq, nil
		case len(held) <= settingID || held[settingID] != settingGone || e.Version != 0 || seq == expected:
			return 0, webhook.ErrConflict
		}
		expected = seq // the setting was removed, and its message is still there
	}
}
