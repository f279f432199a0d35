package filequeue

import (
	"bytes"
	"context"
	"iter"
	"strings"

	"github.com/hookferry/analytics/webhook/store"
)

// Document implements store.DocumentStore.
func (s *Store) Document(ctx context.Context, folder, name string) (d store.Document, err error) {
	err = s.view(ctx, func(x *index) { d = x.documents.Get(folder, name) })
	return d, err
}

// Documents implements store.DocumentStore.
func (s *Store) Documents(ctx context.Context, folder, after string) iter.Seq2[store.Document, error] {
	return store.Page(func() (some []store.Document, err error) {
		err = s.view(ctx, func(x *index) { some = x.documents.List(folder, after) })
		return some, err
	})
}

// SetDocument implements store.DocumentStore.
func (s *Store) SetDocument(ctx context.Context, d store.Document) (version uint64, err error) {
	if err := d.Check(); err != nil {
		return 0, err
	}
	if err := s.gate.Enter(ctx); err != nil {
		return 0, err
	}
	defer s.gate.Leave()
	d.Folder, d.Name, d.Value = strings.Clone(d.Folder), strings.Clone(d.Name), bytes.Clone(d.Value)
	err = s.writer.do(ctx, func(g *group) (err error) {
		version, err = g.set(d)
		return err
	}, alone, false)
	if err != nil {
		return 0, err
	}
	return version, nil
}

// Changes implements store.DocumentStore. It does not know what changed before the store was opened.
func (s *Store) Changes(ctx context.Context, since uint64) (changed []store.DocumentChange, upTo uint64, err error) {
	failed := s.view(ctx, func(x *index) { changed, upTo, err = x.documents.Changes(since) })
	if failed != nil {
		return nil, 0, failed
	}
	return changed, upTo, err
}
