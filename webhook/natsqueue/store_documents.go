package natsqueue

import (
	"context"
	"errors"
	"iter"
	"slices"
	"strings"

	"github.com/hookferry/analytics/webhook/store"
)

// documentValue is the first byte of the message of a document. The value follows, which may be empty.
const documentValue = 'v'

// Document implements store.DocumentStore. It asks the leader of the stream.
func (s *Store) Document(ctx context.Context, folder, name string) (store.Document, error) {
	return call(ctx, s.life, "reading a document", func() (store.Document, error) {
		d := store.Document{Folder: folder, Name: name}
		held, err := s.conn.last(ctx, s.conn.config.document(folder, name))
		if err == nil && len(held.Data) > 0 {
			d.Value, d.Version = held.Data[1:], held.Sequence
		}
		return d, err
	})
}

// Documents implements store.DocumentStore. It reads the whole folder, and keeps it in memory.
func (s *Store) Documents(ctx context.Context, folder, after string) iter.Seq2[store.Document, error] {
	return page(ctx, s.life, "reading documents", func() (all []store.Document, _ error) {
		found, err := s.conn.documents(ctx, s.conn.config.documents(folder))
		for path, m := range found {
			in, name := splitPath(path)
			switch {
			case in != folder || name <= after:
			case m.Data[0] != documentValue:
				s.conn.config.Logger.Error("natsqueue: ignoring a document that cannot be read", "sequence", m.Sequence)
			default:
				all = append(all, store.Document{Folder: folder, Name: name, Value: m.Data[1:], Version: m.Sequence})
			}
		}
		slices.SortFunc(all, func(a, b store.Document) int { return strings.Compare(a.Name, b.Name) })
		return all, err
	})
}

// SetDocument implements store.DocumentStore.
func (s *Store) SetDocument(ctx context.Context, d store.Document) (version uint64, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, callTimeout, errNoAnswer) // for both requests
	defer cancel()
	return call(ctx, s.life, "changing a document", func() (uint64, error) {
		if err := d.Check(); err != nil {
			return 0, err
		}
		subject := s.conn.config.document(d.Folder, d.Name)
		held, err := s.conn.last(ctx, subject)
		if err != nil {
			return 0, err
		}
		if removed := len(held.Data) == 0; removed && d.Version != 0 || !removed && d.Version != held.Sequence {
			return 0, store.ErrConflict
		}
		var data []byte
		if d.Value != nil {
			data = append([]byte{documentValue}, d.Value...)
		}
		c := document(subject, held.Sequence, data)
		if err = s.conn.store(ctx, c); errors.Is(err, errChanged) {
			err = store.ErrConflict
		}
		return c.seq, err
	})
}

// Changes implements store.DocumentStore. A removed document is a message that the server deletes after
// goneTTL. So a node knows what was removed since a version only if it has seen that version less
// than store.RememberRemoved ago; otherwise the error is ErrTooOld.
func (s *Store) Changes(ctx context.Context, since uint64) (changed []store.DocumentChange, upTo uint64, err error) {
	upTo, err = call(ctx, s.life, "reading changes of documents", func() (uint64, error) {
		last, err := s.conn.last(ctx, s.conn.config.allDocuments())
		switch {
		case err != nil:
			return 0, err
		case since >= last.Sequence:
			s.seen.add(last.Sequence)
			return last.Sequence, nil
		case !s.seen.since(since):
			return 0, store.ErrTooOld
		}
		for m, err := range s.conn.list(ctx, s.conn.config.allDocuments(), since+1) {
			if err != nil {
				return 0, err
			}
			path, err := lastToken(m.Subject)
			if err != nil {
				continue
			}
			c := store.DocumentChange{Version: m.Sequence, Removed: len(m.Data) == 0}
			c.Folder, c.Name = splitPath(path)
			if changed = append(changed, c); len(changed) == store.MaxChanges {
				return m.Sequence, nil
			}
		}
		s.seen.add(last.Sequence)
		return last.Sequence, nil
	})
	if err != nil {
		return nil, 0, err
	}
	return changed, upTo, nil
}
