package pgqueue

import (
	"context"
	"database/sql"
	"fmt"
	"iter"

	"github.com/jackc/pgx/v5"

	"github.com/hookferry/analytics/webhook/store"
)

// documentColumns are what scanDocument reads.
const documentColumns = `folder, name, value, version`

func scanDocument(r pgx.CollectableRow) (d store.Document, err error) {
	err = r.Scan((*text)(&d.Folder), (*text)(&d.Name), &d.Value, &d.Version)
	return d, err
}

const (
	documentSQL  = `SELECT ` + documentColumns + ` FROM S.document WHERE folder = $1 AND name = $2 AND value IS NOT NULL`
	documentsSQL = `SELECT ` + documentColumns + ` FROM S.document WHERE folder = $1 AND name > $2 AND value IS NOT NULL ORDER BY name LIMIT $3`
)

// Document implements store.DocumentStore.
func (s *Store) Document(ctx context.Context, folder, name string) (store.Document, error) {
	found, err := listed(ctx, s.db, "reading a document", scanDocument, documentSQL, []byte(folder), []byte(name))
	return only(found, folder, name), err
}

// only returns the document that was found, or one that says that there is none.
func only(found []store.Document, folder, name string) store.Document {
	if len(found) == 0 {
		return store.Document{Folder: folder, Name: name}
	}
	return found[0]
}

// Documents implements store.DocumentStore.
func (s *Store) Documents(ctx context.Context, folder, after string) iter.Seq2[store.Document, error] {
	return paged(ctx, s.db, "reading documents", after, func(d store.Document) string { return d.Name }, scanDocument, documentsSQL, []byte(folder))
}

// DocumentsTx implements store.TxDocuments. The transaction is of one of the types that PutTx takes.
func (s *Store) DocumentsTx(tx any) store.DocumentReader { return txDocuments{s.db, tx} }

// txDocuments reads documents in a transaction of the caller, whose settings it leaves alone.
type txDocuments struct {
	db *database
	tx any
}

func (r txDocuments) query(ctx context.Context, sqlText string, args ...any) (all []store.Document, err error) {
	err = r.db.enter(ctx, "reading documents in a transaction", func() error {
		switch tx := r.tx.(type) {
		case pgx.Tx:
			rows, err := tx.Query(ctx, r.db.in(sqlText), args...)
			if err == nil {
				all, err = pgx.CollectRows(rows, scanDocument)
			}
			return err
		case *sql.Tx:
			rows, err := tx.QueryContext(ctx, r.db.in(sqlText), args...)
			if err != nil {
				return err
			}
			defer rows.Close()
			for rows.Next() {
				var d store.Document
				if err := rows.Scan(&d.Folder, &d.Name, &d.Value, &d.Version); err != nil {
					return err
				}
				all = append(all, d)
			}
			return rows.Err()
		}
		return fmt.Errorf("a transaction is a pgx.Tx or a *sql.Tx, not a %T", r.tx)
	})
	return all, err
}

// Document implements store.DocumentReader.
func (r txDocuments) Document(ctx context.Context, folder, name string) (store.Document, error) {
	found, err := r.query(ctx, documentSQL, []byte(folder), []byte(name))
	return only(found, folder, name), err
}

// Documents implements store.DocumentReader.
func (r txDocuments) Documents(ctx context.Context, folder, after string) iter.Seq2[store.Document, error] {
	return store.Pages(after, func(after string) (all []store.Document, next string, err error) {
		all, err = r.query(ctx, documentsSQL, []byte(folder), []byte(after), page)
		if len(all) == page {
			next = all[page-1].Name
		}
		return all, next, err
	})
}

// SetDocument implements store.DocumentStore. Only one transaction at a time changes documents, for the
// time of its commit.
func (s *Store) SetDocument(ctx context.Context, d store.Document) (version uint64, err error) {
	if err := d.Check(); err != nil {
		return 0, fmt.Errorf("pgqueue: %w", err)
	}
	err = s.db.call(ctx, "changing a document", func() error {
		var set *int64
		err := s.db.pool.QueryRow(ctx, s.db.in(`SELECT S.set_document($1, $2, $3, $4)`), []byte(d.Folder), []byte(d.Name), d.Value, int64(d.Version)).Scan(&set)
		switch {
		case err != nil:
			return err
		case set == nil:
			return store.ErrConflict
		}
		version = uint64(*set)
		return nil
	})
	return version, err
}

// Changes implements store.DocumentStore.
func (s *Store) Changes(ctx context.Context, since uint64) (changed []store.DocumentChange, upTo uint64, err error) {
	var latest, forgotten int64
	from := int64(min(since, 1<<63-1))
	scan := func(r pgx.CollectableRow) (c store.DocumentChange, err error) {
		var version *int64
		err = r.Scan(&latest, &forgotten, (*text)(&c.Folder), (*text)(&c.Name), &version, &c.Removed)
		if version != nil {
			c.Version = uint64(*version)
		}
		return c, err
	}
	changed, err = listed(ctx, s.db, "reading changes of documents", scan, changesSQL, from, store.MaxChanges)
	switch {
	case err != nil:
		return nil, 0, err
	case from < forgotten:
		return nil, 0, store.ErrTooOld
	case changed[0].Version == 0: // only the row of document_state
		return nil, uint64(latest), nil
	case len(changed) == store.MaxChanges:
		return changed, changed[store.MaxChanges-1].Version, nil
	}
	return changed, uint64(latest), nil
}

const changesSQL = `SELECT s.latest, s.forgotten, coalesce(d.folder, ''), coalesce(d.name, ''), d.version, d.value IS NULL
FROM S.document_state s LEFT JOIN LATERAL (
	SELECT * FROM S.document WHERE version > $1 ORDER BY version LIMIT $2
) d ON true ORDER BY d.version`
