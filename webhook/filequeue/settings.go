package filequeue

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"iter"
	"slices"
	"strings"

	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/storekit"
)

// settings are sorted by their names.
type settings []stored

// A stored is a setting and the entry of its record, whose segment is 0 until it is durable.
type stored struct {
	webhook.Setting
	entry
}

func (all settings) find(name string) (int, bool) {
	return slices.BinarySearchFunc(all, name, func(e stored, name string) int { return strings.Compare(e.Name, name) })
}

// Settings implements webhook.Keeper.
func (s *Store) Settings(ctx context.Context, prefix string) iter.Seq2[webhook.Setting, error] {
	return storekit.Pages(prefix, func(from string) (some []webhook.Setting, next string, err error) {
		if err := s.enter(ctx); err != nil {
			return nil, "", err
		}
		defer s.calls.Done()
		s.index.mu.Lock()
		defer s.index.mu.Unlock()
		i, _ := s.index.settings.find(from)
		for _, e := range s.index.settings[i:] {
			if !strings.HasPrefix(e.Name, prefix) {
				break
			}
			if len(some) == page {
				return some, e.Name, nil
			}
			some = append(some, e.Setting)
		}
		return some, "", nil
	})
}

// Set implements webhook.Keeper.
func (s *Store) Set(ctx context.Context, e webhook.Setting) (version uint64, err error) {
	if n := len(e.Name); n < 1 || n > 512 || len(e.Value) > webhook.MaxSetting {
		return 0, fmt.Errorf("filequeue: setting with a name of %d bytes and a value of %d", n, len(e.Value))
	}
	e.Name, e.Value = strings.Clone(e.Name), bytes.Clone(e.Value)
	var b []byte
	if e.Value != nil {
		b = binary.AppendUvarint(nil, uint64(len(e.Name)))
		b = binary.AppendUvarint(append(b, e.Name...), uint64(len(e.Value)))
		b = append(b, e.Value...)
	}
	err = s.do(ctx, func(g *group) (err error) {
		var r *record
		if b != nil {
			r = new(record)
			*r = newRecord(kindSetting, b)
			r.name = e.Name
		}
		version, err = g.set(e, r)
		return err
	}, recordSize(len(b)))
	if err != nil {
		return 0, err
	}
	return version, nil
}

func readSetting(payload []byte) (e webhook.Setting, err error) {
	r := payloadReader{b: payload}
	e = webhook.Setting{Name: string(r.text()), Value: bytes.Clone(r.text())}
	if r.failed || e.Name == "" {
		return e, errPayload
	}
	if e.Value == nil {
		e.Value = []byte{}
	}
	return e, nil
}

// set changes a setting, or removes it if r is nil, and returns its new version. Others see the
// change before it is durable, for as long as that takes.
func (g *group) set(e webhook.Setting, r *record) (uint64, error) {
	i, had := g.settings.find(e.Name)
	if had && g.settings[i].Version != e.Version || !had && e.Version != 0 {
		return 0, webhook.ErrConflict
	}
	if had {
		was := g.settings[i]
		e.Version = g.list(kindGone, []ref{{was.Version, was.put.seg}}).seq
		g.settings = slices.Delete(g.settings, i, i+1)
		g.undo(func() { g.settings = slices.Insert(g.settings, i, was) })
		g.then(func(*segment) { g.segs.count(&was.entry, -1) })
	}
	switch {
	case r != nil:
		g.add(r)
		e.Version = r.seq
		g.settings = slices.Insert(g.settings, i, stored{e, entry{}})
		g.undo(func() { g.settings = slices.Delete(g.settings, i, i+1) })
		g.then(func(seg *segment) {
			// Another Set of the same commit may have come after this one.
			if i, found := g.settings.find(e.Name); found && g.settings[i].Version == e.Version {
				own := r.entryOf(seg.number)
				g.settings[i].entry = own
				g.segs.count(&own, 1)
			}
		})
	case !had: // nothing to remove
		g.request.depends = true
		e.Version = g.seq
		g.seq++
	}
	return e.Version, nil
}
