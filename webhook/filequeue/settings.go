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
		s.mu.Lock()
		defer s.mu.Unlock()
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
func (s *Store) Set(ctx context.Context, e webhook.Setting) (uint64, error) {
	if n := len(e.Name); n < 1 || n > 512 || len(e.Value) > webhook.MaxSetting {
		return 0, fmt.Errorf("filequeue: setting with a name of %d bytes and a value of %d", n, len(e.Value))
	}
	o := &setOp{Setting: webhook.Setting{Name: strings.Clone(e.Name), Value: bytes.Clone(e.Value), Version: e.Version}}
	if e.Value != nil {
		b := binary.AppendUvarint(nil, uint64(len(e.Name)))
		b = binary.AppendUvarint(append(b, e.Name...), uint64(len(e.Value)))
		o.record = newRecord(kindSetting, append(b, e.Value...))
		o.name = o.Name
	}
	if err := s.do(ctx, o, recordSize(len(o.payload))); err != nil {
		return 0, err
	}
	return o.version, nil
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

// A setOp changes a setting. Others see the change before it is durable, for as long as that
// takes.
type setOp struct {
	webhook.Setting
	record  // none if it removes the setting
	gone    record
	was     stored
	had     bool
	version uint64
}

func (o *setOp) plan(g *group) error {
	i, had := g.settings.find(o.Name)
	if had && g.settings[i].Version != o.Version || !had && o.Version != 0 {
		return webhook.ErrConflict
	}
	if o.had = had; had {
		o.was = g.settings[i]
		o.gone = listRecord(kindGone, []ref{{o.was.Version, o.was.put.seg}})
		g.add(&o.gone)
		o.version = o.gone.seq
		g.settings = slices.Delete(g.settings, i, i+1)
	}
	if o.payload != nil {
		g.add(&o.record)
		o.version = o.seq
		e := stored{o.Setting, entry{}}
		e.Version = o.version
		g.settings = slices.Insert(g.settings, i, e)
	} else if !had {
		g.depends = true // nothing to remove
		o.version = g.seq
		g.seq++
	}
	return nil
}

func (o *setOp) undo(x *index) {
	i, found := x.settings.find(o.Name)
	if found {
		x.settings = slices.Delete(x.settings, i, i+1)
	}
	if o.had {
		x.settings = slices.Insert(x.settings, i, o.was)
	}
}

func (o *setOp) apply(x *index, seg *segment) {
	if o.had {
		x.segs.count(&o.was.entry, -1)
	}
	if o.payload == nil {
		return
	}
	// Another Set of the same commit may have come after this one.
	if i, found := x.settings.find(o.Name); found && x.settings[i].Version == o.version {
		x.settings[i].entry = o.entryOf(seg.number)
		x.segs.count(&x.settings[i].entry, 1)
	}
}
