package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"
)

var (
	// ErrConflict says that another call, perhaps on another node, has changed a document.
	ErrConflict = errors.New("webhook: the document has another version")
	// ErrTooOld says that a store may have forgotten documents that were removed since a version.
	ErrTooOld = errors.New("webhook: changes since this version are not known any more")
)

// DocumentStore is the part of a Store for small documents, such as pauses and the destinations of
// tenants. A document is in a folder, and has a name there. What one call costs does not depend on
// how many documents other folders have.
type DocumentStore interface {
	DocumentReader
	// SetDocument stores a document if the store has it with the version d.Version. Zero stands for a
	// document that the store does not have. If the store has another version, SetDocument returns
	// ErrConflict. A nil Value removes the document. The new version, which it returns, is greater
	// than that of every change before it, of any document. All nodes see the change at once.
	SetDocument(ctx context.Context, d Document) (version uint64, err error)
	// Changes returns the documents of all folders that have changed since a version, in the order of
	// their versions, each with its latest change. It returns some thousand of them at most, and upTo,
	// the version up to which it has looked: the caller goes on from there until there are no more.
	// A store remembers a removal for RememberRemoved or longer. If it has forgotten one since the
	// version, the error is ErrTooOld: then the caller reads what it needs anew. With Latest as since
	// there are no changes, and upTo is the version of the latest change.
	Changes(ctx context.Context, since uint64) (changed []DocumentChange, upTo uint64, err error)
}

// DocumentReader is the part of a DocumentStore that reads documents.
type DocumentReader interface {
	// Document returns a document. If the store does not have it, its Version is zero and its Value
	// is nil.
	Document(ctx context.Context, folder, name string) (Document, error)
	// Documents yields the documents of a folder whose names are greater than after, in the order of
	// the bytes of their names. The caller must not change their Values.
	Documents(ctx context.Context, folder, after string) iter.Seq2[Document, error]
}

// A TxDocuments is a DocumentStore, such as pgqueue, that can read documents in a transaction of the
// caller.
type TxDocuments interface {
	// DocumentsTx returns a reader that uses the connection of tx, for one call at a time. Each store
	// says which types tx may have; the calls of others fail.
	DocumentsTx(tx any) DocumentReader
}

// Latest stands for the version of the latest change of any document; see DocumentStore.Changes.
const Latest = ^uint64(0)

// RememberRemoved is how long a store remembers at least that a document was removed.
const RememberRemoved = time.Hour

// MaxDocument is the size of the Value of a Document, in bytes.
const MaxDocument = 64 << 10

// A Document is a small value that a store keeps.
type Document struct {
	Folder string // 1 to 255 bytes, such as "pause"
	Name   string // 1 to 255 bytes, such as the id of a destination
	Value  []byte // up to MaxDocument bytes
	// Version is the number that the store gave the latest change of the document, above zero.
	Version uint64
}

// Check returns an error if the Folder, the Name or the Value is outside its limits.
func (d *Document) Check() error {
	for _, s := range [...]string{d.Folder, d.Name} {
		if n := len(s); n < 1 || n > 255 {
			return fmt.Errorf("webhook: document with a folder or name of %d bytes, want 1 to 255", n)
		}
	}
	if n := len(d.Value); n > MaxDocument {
		return fmt.Errorf("webhook: document with a value of %d bytes, more than %d", n, MaxDocument)
	}
	return nil
}

// A DocumentChange says that a document has a new version, or was removed.
type DocumentChange struct {
	Folder, Name string
	Version      uint64
	Removed      bool
}

// A DocumentMap keeps documents in memory, for a store whose memory has room for all of them. It is
// not safe for concurrent use.
type DocumentMap struct {
	folders map[string]map[string]Document
	changes []change // the latest ones, in the order of their versions
	// latest is the version of the latest change, forgotten that of the latest one that was removed
	// from changes.
	latest, forgotten uint64
}

// A change is a change that was made at a time. It is superseded if its document has another version.
type change struct {
	DocumentChange
	at time.Time
}

const (
	maxChanges = 100_000 // that a DocumentMap remembers
	changePage = 1000    // that Changes returns
)

// Get returns a document, with the Version zero if there is none.
func (m *DocumentMap) Get(folder, name string) Document {
	if d, ok := m.folders[folder][name]; ok {
		return d
	}
	return Document{Folder: folder, Name: name}
}

// List returns the documents of a folder whose names are greater than after, in the order of their
// names.
func (m *DocumentMap) List(folder, after string) (all []Document) {
	for name, d := range m.folders[folder] {
		if name > after {
			all = append(all, d)
		}
	}
	slices.SortFunc(all, func(a, b Document) int { return cmp.Compare(a.Name, b.Name) })
	return all
}

// All yields all documents, in no order.
func (m *DocumentMap) All() iter.Seq[Document] {
	return func(yield func(Document) bool) {
		for _, folder := range m.folders {
			for _, d := range folder {
				if !yield(d) {
					return
				}
			}
		}
	}
}

// Set changes a document to d, which has its new Version, or removes it if the Value is nil. The
// map keeps d and its Value.
func (m *DocumentMap) Set(d Document, now time.Time) {
	folder := m.folders[d.Folder]
	if d.Value == nil {
		delete(folder, d.Name)
		if len(folder) == 0 {
			delete(m.folders, d.Folder)
		}
	} else {
		if folder == nil {
			folder = make(map[string]Document)
			if m.folders == nil {
				m.folders = make(map[string]map[string]Document)
			}
			m.folders[d.Folder] = folder
		}
		folder[d.Name] = d
	}
	m.latest = d.Version
	m.changes = append(m.changes, change{DocumentChange{d.Folder, d.Name, d.Version, d.Value == nil}, now})
	n := 0
	for n < len(m.changes)-maxChanges || now.Sub(m.changes[n].at) > RememberRemoved {
		m.forgotten = m.changes[n].Version
		n++
	}
	m.changes = m.changes[n:]
}

// Latest returns the version of the latest change.
func (m *DocumentMap) Latest() uint64 { return m.latest }

// Forget forgets what has changed, up to a version. A store that has read its documents from
// somewhere calls it with the version of the latest change.
func (m *DocumentMap) Forget(version uint64) {
	m.changes, m.latest, m.forgotten = nil, version, version
}

// Changes is DocumentStore.Changes.
func (m *DocumentMap) Changes(since uint64) (changed []DocumentChange, upTo uint64, err error) {
	if since >= m.latest {
		return nil, m.latest, nil
	}
	if since < m.forgotten {
		return nil, 0, ErrTooOld
	}
	from, _ := slices.BinarySearchFunc(m.changes, since+1, func(c change, version uint64) int { return cmp.Compare(c.Version, version) })
	for _, c := range m.changes[from:] {
		if len(changed) == changePage {
			return changed, upTo, nil
		}
		upTo = c.Version
		if d, ok := m.folders[c.Folder][c.Name]; ok && d.Version == c.Version || !ok && c.Removed {
			changed = append(changed, c.DocumentChange)
		}
	}
	return changed, m.latest, nil
}
