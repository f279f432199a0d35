package memqueue

import (
	"bytes"
	"context"
	"iter"
	"strings"

	"github.com/hookferry/analytics/webhook/store"
)

// Document implements store.DocumentStore.
func (s *Store) Document(ctx context.Context, folder, name string) (store.Document, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable(ctx); err != nil {
		return store.Document{}, err
	}
	return s.documents.Get(folder, name), nil
}

// Documents implements store.DocumentStore. It yields the documents that there were when the loop began.
func (s *Store) Documents(ctx context.Context, folder, after string) iter.Seq2[store.Document, error] {
	return page(ctx, s, func() []store.Document { return s.documents.List(folder, after) })
}

// SetDocument implements store.DocumentStore.
func (s *Store) SetDocument(ctx context.Context, d store.Document) (version uint64, err error) {
	if err := d.Check(); err != nil {
		return 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable(ctx); err != nil {
		return 0, err
	}
	if s.documents.Get(d.Folder, d.Name).Version != d.Version {
		return 0, store.ErrConflict
	}
	s.seq++
	d.Folder, d.Name, d.Value, d.Version = strings.Clone(d.Folder), strings.Clone(d.Name), bytes.Clone(d.Value), s.seq
	s.documents.Set(d, now())
	return d.Version, nil
}

// Changes implements store.DocumentStore.
func (s *Store) Changes(ctx context.Context, since uint64) ([]store.DocumentChange, uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable(ctx); err != nil {
		return nil, 0, err
	}
	return s.documents.Changes(since)
}
