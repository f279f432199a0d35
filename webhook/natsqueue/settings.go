package natsqueue

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
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

// Settings implements webhook.Keeper. It keeps all settings with the prefix in memory.
func (s *Store) Settings(ctx context.Context, prefix string) iter.Seq2[webhook.Setting, error] {
	return page(ctx, s.conn, func() ([]webhook.Setting, error) {
		last, _, err := s.last(ctx, s.config.setting("*"))
		for wait := behind; err == nil; wait *= 2 {
			all := make(map[string]webhook.Setting)
			var seen uint64
			for m, failed := range s.list(ctx, s.config.setting("*")) {
				if err = failed; err != nil {
					break
				}
				seen = m.seq
				name, bad := lastToken(m.subject)
				if bad != nil || len(m.data) <= settingID {
					s.config.Logger.Error("natsqueue: ignoring a setting that cannot be read", "sequence", m.seq)
					continue
				}
				delete(all, name)
				if strings.HasPrefix(name, prefix) && m.data[settingID] == settingValue {
					all[name] = webhook.Setting{Name: name, Value: m.data[settingID+1:], Version: m.seq}
				}
			}
			if err == nil && seen >= last { // the replica that answered has all that the leader had
				return slices.SortedFunc(maps.Values(all), func(a, b webhook.Setting) int { return strings.Compare(a.Name, b.Name) }), nil
			}
			if err = cmp.Or(err, sleep(ctx, wait)); err == nil { // the last setting may be gone by now
				last, _, err = s.last(ctx, s.config.setting("*"))
			}
		}
		return nil, fmt.Errorf("natsqueue: settings: %w", err)
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
