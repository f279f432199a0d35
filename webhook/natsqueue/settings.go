package natsqueue

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"

	"github.com/nats-io/nuid"

	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/storekit"
)

// settings are in the stream alone, the last message of a subject for each.
type settings struct {
	*conn
}

// setting is the subject of a setting. Its message has an id of its own, so that one whose answer
// was lost is known again, a byte that says whether it has a value, and that.
func (c *Config) setting(name string) string { return c.Stream + ".setting." + token(name) }

const (
	settingID    = 22
	settingGone  = 'x'
	settingValue = 'v'
)

// Settings implements webhook.Keeper. It has all settings with the prefix in memory.
func (s *settings) Settings(ctx context.Context, prefix string) iter.Seq2[webhook.Setting, error] {
	return storekit.Page(func() ([]webhook.Setting, error) {
		if err := s.enter(ctx); err != nil {
			return nil, err
		}
		defer s.calls.Leave()
		// A replica that answers is to have what the leader has.
		last, _, err := s.last(ctx, s.config.Stream+".setting.*")
		for wait := behind; err == nil; wait *= 2 {
			var all map[string]webhook.Setting
			var seen uint64
			if all, seen, err = s.all(ctx, prefix); err == nil && seen >= last {
				sorted := make([]webhook.Setting, 0, len(all))
				for _, e := range all {
					sorted = append(sorted, e)
				}
				slices.SortFunc(sorted, func(a, b webhook.Setting) int { return strings.Compare(a.Name, b.Name) })
				return sorted, nil
			}
			err = cmp.Or(err, sleep(ctx, wait))
		}
		return nil, fmt.Errorf("natsqueue: settings: %w", err)
	})
}

// all returns the settings with a prefix, and the last sequence of any.
func (s *settings) all(ctx context.Context, prefix string) (all map[string]webhook.Setting, seen uint64, err error) {
	all = make(map[string]webhook.Setting)
	for m, err := range s.list(ctx, s.config.Stream+".setting.*") {
		if err != nil {
			return nil, 0, err
		}
		seen = m.seq
		name, err := lastToken(m.subject)
		if err != nil || len(m.data) <= settingID {
			s.config.Logger.Error("natsqueue: a setting cannot be read and is left out", "sequence", m.seq)
			continue
		}
		delete(all, name)
		if strings.HasPrefix(name, prefix) && m.data[settingID] == settingValue {
			all[name] = webhook.Setting{Name: name, Value: m.data[settingID+1:], Version: m.seq}
		}
	}
	return all, seen, nil
}

// Set implements webhook.Keeper.
func (s *settings) Set(ctx context.Context, e webhook.Setting) (uint64, error) {
	if n := len(e.Name); n < 1 || n > 512 || len(e.Value) > webhook.MaxSetting {
		return 0, fmt.Errorf("natsqueue: setting with a name of %d bytes and a value of %d", n, len(e.Value))
	}
	if err := s.enter(ctx); err != nil {
		return 0, err
	}
	defer s.calls.Leave()
	version, err := s.set(ctx, e)
	if err != nil && !errors.Is(err, webhook.ErrConflict) {
		err = fmt.Errorf("natsqueue: setting %q: %w", e.Name, err)
	}
	return version, err
}

func (s *settings) set(ctx context.Context, e webhook.Setting) (uint64, error) {
	subject, id, kind := s.config.setting(e.Name), nuid.Next(), byte(settingValue)
	if e.Value == nil {
		kind = settingGone
	}
	data := append(append([]byte(id), kind), e.Value...)
	c := &parcel{}
	for expected := e.Version; ; {
		c = &parcel{messages: append(c.messages[:0], expect(subject, expected, data, true))}
		err := s.store(ctx, c)
		if err == nil {
			break
		}
		if !errors.Is(err, errChanged) {
			return 0, err
		}
		seq, held, err := s.last(ctx, subject)
		switch {
		case err != nil:
			return 0, err
		case len(held) > settingID && string(held[:settingID]) == id: // the answer was lost
			c.seq = seq
		case len(held) > settingID && held[settingID] == settingGone && e.Version == 0 && seq != expected:
			expected = seq
			continue
		default:
			return 0, webhook.ErrConflict
		}
		break
	}
	if kind == settingGone {
		if err := s.purge(ctx, subject, c.seq+1); err != nil {
			s.config.Logger.Debug("natsqueue: a removed setting stays as one that is marked so", "error", err)
		}
	}
	return c.seq, nil
}
