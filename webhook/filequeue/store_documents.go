package filequeue

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/hookferry/analytics/webhook/store"
)

// Changes of documents are records of the log, and rows of the memtable. When the memtable has
// memtableBytes, the janitor writes its rows to a table, and merges tables, so that there are few. A
// record of kindTables says which tables the store needs; each segment has one behind its first record.

// documents are the documents of a store. index.mu guards the fields.
type documents struct {
	memtable []*memrow // in the order of their paths
	bytes    int64     // of the records of the memtable
	tables   []*table  // the newest first
	flushes  int       // counts the changes of tables
	flushed  uint64    // rows up to this version are not in the memtable any more
	changes  store.DocumentChanges
}

// A memrow is a row of the memtable, with the entry of its record.
type memrow struct {
	row   row
	entry entry
}

// find returns where the row with a path is in the memtable, or would be.
func (ds *documents) find(path string) (i int, found bool) {
	return slices.BinarySearchFunc(ds.memtable, path, func(r *memrow, path string) int { return strings.Compare(r.row.path, path) })
}

// tablesRecord returns the record of kindTables that lists tables of documents, which have all changes
// up to a version, and those of the history.
func tablesRecord(documents, history []*table, flushed uint64) record {
	var refs []ref
	for _, t := range slices.Concat(documents, history) {
		_, number, _ := parseTable(t.name)
		refs = append(refs, ref{uint64(t.size), number})
	}
	r := listing(kindTables, refs)
	r.due, r.size = int64(flushed), uint32(len(documents))
	return r
}

// merger returns a merger of n tables and, with them, the memtable, from a path to another; an empty one
// is no bound. It pins the tables; the caller calls unpin when it has read what it wants.
func (ds *documents) merger(path, to string, n int, skip func(error)) (m merger, unpin func()) {
	i, _ := ds.find(path)
	newest := &cursor{}
	for _, r := range ds.memtable[i:] {
		if to != "" && r.row.path > to {
			break
		}
		newest.rows = append(newest.rows, r.row)
	}
	m = merger{newest}
	tables := ds.tables[:n]
	for _, t := range tables {
		t.pins.Add(1)
		m = append(m, t.from(path, to, skip))
	}
	return m, func() {
		for _, t := range tables {
			t.unpin()
		}
	}
}

// keep adds the row of a record of kindDocument to the memtable.
func (x *index) keep(r *record, d *row) {
	ds, kept := &x.documents, &memrow{*d, entryOf(r)}
	i, found := ds.find(d.path)
	if found {
		x.release(ds.memtable[i])
		ds.memtable[i] = kept
	} else {
		ds.memtable = slices.Insert(ds.memtable, i, kept)
	}
	x.count(&kept.entry, 1)
	if ds.bytes += recordSize(int(kept.entry.length)); ds.bytes >= x.memtableBytes {
		x.tidy.Set()
	}
}

// release says that a row of the memtable, and its record, are not needed any more.
func (x *index) release(r *memrow) {
	x.count(&r.entry, -1)
	x.documents.bytes -= recordSize(int(r.entry.length))
}

// newest returns the newest row of a document, without a version if there is none. flushes is the
// value that documents.flushes had when newest looked. The caller is inside of gate.
func (s *Store) newest(path string) (found row, flushes int, err error) {
	x := s.index
	x.mu.Lock()
	if i, found := x.documents.find(path); found {
		defer x.mu.Unlock()
		return x.documents.memtable[i].row, x.documents.flushes, nil
	}
	tables := slices.Clone(x.documents.tables)
	for _, t := range tables {
		t.pins.Add(1)
		defer t.unpin()
	}
	flushes = x.documents.flushes
	x.mu.Unlock()
	for _, t := range tables {
		at := t.find(path)
		if at == len(t.blocks) {
			continue
		}
		rows, err := t.rows(at, path, path)
		if err != nil {
			return row{}, 0, err
		}
		if len(rows) > 0 {
			return rows[0], flushes, nil
		}
	}
	return row{}, flushes, nil
}

// Document implements store.DocumentStore.
func (s *Store) Document(ctx context.Context, folder, name string) (store.Document, error) {
	d := store.Document{Folder: folder, Name: name}
	if err := s.gate.Enter(ctx); err != nil {
		return d, err
	}
	defer s.gate.Leave()
	r, _, err := s.newest(pathOf(folder, name))
	if r.value != nil {
		d.Value, d.Version = bytes.Clone(r.value), r.version
	}
	return d, err
}

const documentPage, documentPageBytes = 256, 1 << 20 // that Documents reads at once

// Documents implements store.DocumentStore.
func (s *Store) Documents(ctx context.Context, folder, after string) iter.Seq2[store.Document, error] {
	prefix := pathOf(folder, "")
	last := len(prefix) - 1
	for prefix[last] == 0xff { // the first byte is none
		last--
	}
	end := prefix[:last] + string([]byte{prefix[last] + 1}) // sorts behind all paths of the folder
	return store.Pages(after, func(after string) (some []store.Document, next string, err error) {
		if err := s.gate.Enter(ctx); err != nil {
			return nil, "", err
		}
		defer s.gate.Leave()
		s.index.mu.Lock()
		m, unpin := s.index.documents.merger(prefix+after+"\x00", end, len(s.index.documents.tables), nil)
		s.index.mu.Unlock()
		defer unpin()
		for size := 0; ; {
			r, err := m.next()
			if err != nil || r == nil || !strings.HasPrefix(r.path, prefix) {
				return some, "", err
			}
			if r.value == nil {
				continue
			}
			some = append(some, r.document())
			if size += len(r.value); len(some) == documentPage || size > documentPageBytes {
				return some, some[len(some)-1].Name, nil
			}
		}
	})
}

// errFlushed says that the tables have changed since they were read.
var errFlushed = errors.New("the tables have changed")

// SetDocument implements store.DocumentStore. If the janitor does not keep up, SetDocument flushes the
// memtable itself.
func (s *Store) SetDocument(ctx context.Context, d store.Document) (version uint64, err error) {
	if err := d.Check(); err != nil {
		return 0, err
	}
	if err := s.gate.Enter(ctx); err != nil {
		return 0, err
	}
	defer s.gate.Leave()
	if err := s.makeRoom(ctx); err != nil {
		return 0, err
	}
	r := row{path: pathOf(d.Folder, d.Name), value: bytes.Clone(d.Value)}
	for err = errFlushed; err == errFlushed; {
		held, flushes, rerr := s.newest(r.path)
		if rerr != nil {
			return 0, rerr
		}
		err = s.writer.do(ctx, func(g *group) (err error) {
			version, err = g.set(&r, d.Version, &held, flushes)
			return err
		}, alone, false)
	}
	if err != nil {
		return 0, err
	}
	return version, nil
}

// makeRoom flushes the memtable if it has four times as many bytes as it should.
func (s *Store) makeRoom(ctx context.Context) error {
	s.index.mu.Lock()
	full := s.index.documents.bytes >= 4*s.index.memtableBytes
	s.index.mu.Unlock()
	if !full {
		return nil
	}
	if err := s.janitor.hold(ctx); err != nil {
		return err
	}
	defer s.janitor.resume()
	return s.janitor.flush()
}

// set changes a document that has the version old, and returns its new version. held is the row that
// newest has returned, with flushes. It must be the only op of its group, because it does not see the
// changes of other ops in the same group.
func (g *group) set(d *row, old uint64, held *row, flushes int) (uint64, error) {
	x := g.index
	if i, found := x.documents.find(d.path); found {
		held = &x.documents.memtable[i].row
	} else if x.documents.flushes != flushes {
		return 0, errFlushed
	}
	if held.value != nil && held.version != old || held.value == nil && old != 0 {
		return 0, store.ErrConflict
	}
	r := documentRecord(d)
	g.add(&r)
	kept := *d
	kept.version = r.seq
	g.then(func() {
		x.keep(&r, &kept)
		made := kept.document()
		x.documents.changes.Add(store.DocumentChange{Folder: made.Folder, Name: made.Name, Version: made.Version, Removed: made.Value == nil}, time.Now())
	})
	return r.seq, nil
}

// Changes implements store.DocumentStore. It does not know what changed before the store was opened.
func (s *Store) Changes(ctx context.Context, since uint64) (changed []store.DocumentChange, upTo uint64, err error) {
	failed := s.view(ctx, func(x *index) { changed, upTo, err = x.documents.changes.Since(since) })
	if failed != nil {
		return nil, 0, failed
	}
	return changed, upTo, err
}

// flush writes the memtable to a new table, together with the newest tables while the next one is at
// most twice as large as what it writes already. So a document is written to tables about as often as
// the number of documents doubles. If a table cannot be read, flush leaves all tables as they are.
func (j *janitor) flush() error {
	x := j.store.index
	x.mu.Lock()
	ds := &x.documents
	size, n := ds.bytes, 0
	for n < len(ds.tables) && ds.tables[n].size <= 2*size {
		size += ds.tables[n].size
		n++
	}
	upTo := ds.flushed
	for _, r := range ds.memtable {
		upTo = max(upTo, r.row.version)
	}
	old := ds.tables[:n]
	oldest := n == len(ds.tables)
	m, unpin := ds.merger("", "", n, nil)
	alone, none := ds.merger("", "", 0, nil)
	x.mu.Unlock()
	defer unpin()
	defer none()
	err := j.install(&ds.tables, m.all(oldest), old, upTo, nil)
	if errors.Is(err, ErrDamaged) && n > 0 {
		err = j.install(&ds.tables, alone.all(false), nil, upTo, nil)
	}
	return err
}

// install writes rows to a new table, and has list put it in place of old ones. While install
// works, nothing else changes the tables.
func (j *janitor) install(in *[]*table, rows iter.Seq2[row, error], old []*table, upTo uint64, also func(*group)) error {
	if err := j.resolve(); err != nil {
		return err
	}
	name := documentTable
	if in == &j.store.index.history.tables {
		name = historyTable
	}
	j.store.index.mu.Lock()
	j.store.index.number++
	name = tableName(name, j.store.index.number)
	j.store.index.mu.Unlock()
	t, err := writeTable(j.store.disk, name, func(yield func(row, error) bool) {
		for r, err := range rows {
			if !yield(r, cmp.Or(err, j.ctx.Err())) {
				return
			}
		}
	})
	if err == nil {
		err = j.store.disk.SyncNames()
	}
	if err == nil {
		err = j.list(in, t, old, upTo, also)
	}
	switch {
	case err == nil:
		return j.removeLeftovers()
	case t != nil:
		t.unpin()
		j.doubtful = append(j.doubtful, name) // the record may be on the disk
	default:
		j.leftovers = append(j.leftovers, name)
		_ = j.removeLeftovers() // tidy tries again
	}
	return err
}

// resolve makes leftovers of doubtful tables.
func (j *janitor) resolve() error {
	if len(j.doubtful) == 0 {
		return nil
	}
	return j.list(&j.store.index.documents.tables, nil, nil, 0, nil)
}

// list stores which tables are needed. In the list in, t takes the place of old ones; if t is nil,
// they are only removed. Rows of the memtable up to the version upTo leave it. Unless also is nil,
// it can add records to the commit.
func (j *janitor) list(in *[]*table, t *table, old []*table, upTo uint64, also func(*group)) error {
	ds, h := &j.store.index.documents, &j.store.index.history
	err := j.store.writer.do(j.ctx, func(g *group) error {
		was := *in
		var tables []*table
		if t != nil {
			tables = []*table{t}
		}
		for _, t := range was {
			if !slices.Contains(old, t) {
				tables = append(tables, t)
			}
		}
		upTo = max(upTo, ds.flushed)
		*in = tables
		r := tablesRecord(ds.tables, h.tables, upTo)
		*in = was
		g.add(&r)
		if also != nil {
			also(g)
		}
		g.then(func() {
			*in, ds.flushed = tables, upTo
			ds.flushes++
			flushed := func(r *memrow) bool { return r.row.version <= upTo }
			for _, r := range ds.memtable {
				if flushed(r) {
					g.index.release(r)
				}
			}
			ds.memtable = slices.DeleteFunc(ds.memtable, flushed)
			g.index.tidy.Set() // segments may not be needed any more
		})
		return nil
	}, alone, false)
	if err != nil {
		return err
	}
	for _, t := range old {
		j.release(t.file, t.size, &t.pins, t.unpin)
		j.leftovers = append(j.leftovers, t.name)
	}
	j.leftovers, j.doubtful = append(j.leftovers, j.doubtful...), nil
	return nil
}

// countDocuments returns how many documents there are. skip is told of the parts of tables that cannot
// be read. The caller is the only user of the index.
func (x *index) countDocuments(skip func(error)) (n int) {
	m, unpin := x.documents.merger("", "", len(x.documents.tables), skip)
	defer unpin()
	for r, err := m.next(); r != nil && err == nil; r, err = m.next() {
		if r.value != nil {
			n++
		}
	}
	return n
}

// openTables opens the tables that the log lists. The argument found has the sizes of all tables in the
// folder. Those that are not listed are removed: the last process did not get to list them, or to
// remove them.
func (ld *loader) openTables(found map[string]int64) {
	latest := uint32(0)
	for i, ref := range ld.tables {
		of := documentTable
		if i >= ld.documentTables {
			of = historyTable
		}
		name := tableName(of, ref.seg)
		latest = max(latest, ref.seg)
		ld.openTable(name, int64(ref.seq))
		delete(found, name)
	}
	for _, name := range slices.Sorted(maps.Keys(found)) {
		if _, number, _ := parseTable(name); number < latest || !ld.untabled && ld.err == nil {
			ld.leftovers = append(ld.leftovers, name)
			continue
		}
		ld.report("%s may be needed or not: the part of the log that says this cannot be read; the documents in it may be old, or the deliveries there twice", name)
		ld.err = cmp.Or(ld.err, fmt.Errorf("%w: it is not known whether %s is needed", ErrDamaged, name))
		if ld.lenient {
			ld.openTable(name, found[name])
			ts := ld.store.index.documents.tables
			slices.SortFunc(ts, func(a, b *table) int { return strings.Compare(b.name, a.name) })
		}
	}
}

// openTable opens a table that has this size.
func (ld *loader) openTable(name string, size int64) {
	in, with := &ld.store.index.documents.tables, "documents"
	if strings.HasPrefix(name, historyTable) {
		in, with = &ld.store.index.history.tables, "delivered deliveries"
	}
	t, err := openTable(ld.store.disk, name, size)
	switch {
	case err == nil:
		*in = append(*in, t)
		ld.seq = max(ld.seq, t.sum.high)
	case errors.Is(err, fs.ErrNotExist):
		ld.lacks(name, with)
	default:
		ld.report("%s cannot be opened, and all %s in it are missing: %v", name, with, err)
		ld.err = cmp.Or(ld.err, err)
	}
}
