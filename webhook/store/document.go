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
	// their versions, each with its latest change. It returns up to MaxChanges of them, and upTo, the
	// version up to which it has looked: the caller goes on from there until there are no more.
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

// MaxChanges is how many changes DocumentStore.Changes returns at most.
const MaxChanges = 250

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

// DocumentChanges remembers which documents have changed lately, for a store that does not find that
// out from its documents. It is not safe for concurrent use.
type DocumentChanges struct {
	changes  []change // the latest ones, in the order of their versions
	versions map[path]uint64
	// latest is the version of the latest change, forgotten that of the latest one that was removed
	// from changes.
	latest, forgotten uint64
}

// A change is a change that was made at a time. It is superseded if versions has another one.
type change struct {
	DocumentChange
	at time.Time
}

type path struct{ folder, name string }

const maxRemembered = 20_000 // changes, by DocumentChanges

// Add adds a change, whose Version is greater than that of all others.
func (m *DocumentChanges) Add(c DocumentChange, now time.Time) {
	if m.versions == nil {
		m.versions = make(map[path]uint64)
	}
	m.latest, m.versions[path{c.Folder, c.Name}] = c.Version, c.Version
	m.changes = append(m.changes, change{c, now})
	n := 0
	for n < len(m.changes)-maxRemembered || now.Sub(m.changes[n].at) > RememberRemoved {
		old := &m.changes[n]
		if at := (path{old.Folder, old.Name}); m.versions[at] == old.Version {
			delete(m.versions, at)
		}
		m.forgotten = old.Version
		n++
	}
	clear(m.changes[:n])
	m.changes = m.changes[n:]
}

// Forget forgets what has changed, up to a version. A store that was opened anew calls it with the
// version of the latest change.
func (m *DocumentChanges) Forget(version uint64) {
	*m = DocumentChanges{latest: version, forgotten: version}
}

// Since is DocumentStore.Changes.
func (m *DocumentChanges) Since(since uint64) (changed []DocumentChange, upTo uint64, err error) {
	if since >= m.latest {
		return nil, m.latest, nil
	}
	if since < m.forgotten {
		return nil, 0, ErrTooOld
	}
	from, _ := slices.BinarySearchFunc(m.changes, since+1, func(c change, version uint64) int { return cmp.Compare(c.Version, version) })
	for _, c := range m.changes[from:] {
		if len(changed) == MaxChanges {
			return changed, upTo, nil
		}
		upTo = c.Version
		if m.versions[path{c.Folder, c.Name}] == c.Version {
			changed = append(changed, c.DocumentChange)
		}
	}
	return changed, m.latest, nil
}
