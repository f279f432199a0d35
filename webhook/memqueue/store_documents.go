package memqueue

import (
	"bytes"
	"context"
	"iter"
	"slices"
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
	if i, found := find(s.documents[folder], name); found {
		return *s.documents[folder][i], nil
	}
	return store.Document{Folder: folder, Name: name}, nil
}

// find returns where the document with a name is, or would be, in a folder.
func find(in []*store.Document, name string) (i int, found bool) {
	return slices.BinarySearchFunc(in, name, func(d *store.Document, name string) int { return strings.Compare(d.Name, name) })
}

const documentPage = 256 // documents that Documents reads at once

// Documents implements store.DocumentStore.
func (s *Store) Documents(ctx context.Context, folder, after string) iter.Seq2[store.Document, error] {
	return store.Pages(after, func(after string) (some []store.Document, next string, err error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if err := s.usable(ctx); err != nil {
			return nil, "", err
		}
		i, found := find(s.documents[folder], after)
		if found {
			i++
		}
		for _, d := range s.documents[folder][i:] {
			if some = append(some, *d); len(some) == documentPage {
				return some, d.Name, nil
			}
		}
		return some, "", nil
	})
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
	in := s.documents[d.Folder]
	i, found := find(in, d.Name)
	if found && in[i].Version != d.Version || !found && d.Version != 0 {
		return 0, store.ErrConflict
	}
	s.seq++
	d.Folder, d.Name, d.Value, d.Version = strings.Clone(d.Folder), strings.Clone(d.Name), bytes.Clone(d.Value), s.seq
	switch {
	case d.Value == nil && found:
		in = slices.Delete(in, i, i+1)
	case d.Value == nil:
	case found:
		in[i] = &d
	default:
		in = slices.Insert(in, i, &d)
	}
	if s.documents[d.Folder] = in; len(in) == 0 {
		delete(s.documents, d.Folder)
	}
	s.changes.Add(store.DocumentChange{Folder: d.Folder, Name: d.Name, Version: d.Version, Removed: d.Value == nil}, now())
	return d.Version, nil
}

// Changes implements store.DocumentStore.
func (s *Store) Changes(ctx context.Context, since uint64) ([]store.DocumentChange, uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable(ctx); err != nil {
		return nil, 0, err
	}
	return s.changes.Since(since)
}
