package queuetest

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/hookferry/analytics/webhook/store"
)

// path is the folder and the name of a document.
type path struct{ folder, name string }

// documents has the documents that a store must have. One that was removed stays here with a nil
// Value and the version of its removal.
type documents map[path]store.Document

// version returns the version of a document, zero if there is none.
func (m documents) version(at path) uint64 {
	if d := m[at]; d.Value != nil {
		return d.Version
	}
	return 0
}

// write calls SetDocument, and makes the change in the model.
func (c *checker) write(folder, name string, value []byte, version uint64) {
	at, lent := path{folder, name}, bytes.Clone(value)
	v, err := c.s.SetDocument(c.ctx, store.Document{Folder: folder, Name: name, Value: lent, Version: version})
	clear(lent)
	switch held := c.documents.version(at); {
	case held != version && !errors.Is(err, store.ErrConflict):
		c.Fatalf("SetDocument of %q with version %d, while %d is held = %d, %v, want ErrConflict", at, version, held, v, err)
	case held != version:
	case err != nil || v <= c.latest:
		c.Fatalf("SetDocument of %q, version %d = %d, %v, want a version above %d", at, version, v, err, c.latest)
	default:
		c.documents[at], c.latest = store.Document{Folder: folder, Name: name, Value: value, Version: v}, v
	}
}

// compareDocuments compares the documents of all folders with the model.
func (c *checker) compareDocuments() {
	s := c.s
	folders := map[string][]store.Document{"a folder without documents": nil}
	for at, d := range c.documents {
		folders[at.folder] = append(folders[at.folder], d)
		got, err := s.Document(c.ctx, at.folder, at.name)
		if err != nil {
			c.Fatalf("Document(%q): %v", at, err)
		}
		if d.Value == nil {
			d.Version = 0
		}
		equal(c, fmt.Sprintf("Document(%q)", at), got, d)
	}
	for folder, ds := range folders {
		ds = slices.DeleteFunc(ds, func(d store.Document) bool { return d.Value == nil })
		slices.SortFunc(ds, func(a, b store.Document) int { return cmp.Compare(a.Name, b.Name) })
		equalLists(c, fmt.Sprintf("Documents(%q)", folder), all(c, s.Documents(c.ctx, folder, "")), ds)
		if n := len(ds) / 2; n > 0 {
			equalLists(c, fmt.Sprintf("Documents(%q, %q)", folder, ds[n-1].Name), all(c, s.Documents(c.ctx, folder, ds[n-1].Name)), ds[n:])
		}
	}
}

// compareChanges compares the changes since a version with the model.
func (c *checker) compareChanges(since uint64) {
	var want, got []store.DocumentChange
	for _, d := range slices.SortedFunc(maps.Values(c.documents), func(a, b store.Document) int { return cmp.Compare(a.Version, b.Version) }) {
		if d.Version > since {
			want = append(want, store.DocumentChange{Folder: d.Folder, Name: d.Name, Version: d.Version, Removed: d.Value == nil})
		}
	}
	for from := since; ; {
		some, upTo, err := c.s.Changes(c.ctx, from)
		if err != nil {
			c.Fatalf("Changes(%d): %v", from, err)
		}
		if len(some) == 0 {
			break
		}
		if upTo < some[len(some)-1].Version {
			c.Fatalf("Changes(%d) has looked up to %d, but returned version %d", from, upTo, some[len(some)-1].Version)
		}
		got, from = append(got, some...), upTo
	}
	equalLists(c, fmt.Sprintf("Changes(%d)", since), got, want)
}

var documentCases = []testCase{
	{"Documents", "Documents yields the documents of a folder whose names are greater than after, in the order of the bytes of their names. It holds no lock between two yields. A nil Value removes the document.", func(k *kit) {
		long := strings.Repeat("x", 255)
		for i := range 300 { // more than a store reads in one page
			k.write("list", fmt.Sprintf("%04d", i*7%300), fmt.Append(nil, "value ", i), 0)
		}
		for _, at := range []path{{"list/a", "1"}, {"list/a", "b/1"}, {"list", "a/1"}, {"lis", "t"}, {long, long}, {"\xff", "\xff"}, {"pause", "odd \x00\xff\"\\*.>"}, {"*", ">"}} {
			k.write(at.folder, at.name, []byte(at.name), 0)
		}
		k.write("list", "long", make([]byte, store.MaxDocument), 0)
		k.write("list", "empty", []byte{}, 0)
		k.compareDocuments()
		k.restart()
		k.compareDocuments()
		for d, err := range k.s.Documents(k.ctx, "list", "0100") {
			if err != nil {
				k.Fatal(err)
			}
			k.write("list", d.Name, nil, d.Version)
		}
		k.compareDocuments()
	}},
	{"Changes", "Changes returns the documents of all folders that have changed since a version, in the order of their versions, each with its latest change. With Latest as since there are no changes, and upTo is the version of the latest change.", func(k *kit) {
		s := k.s
		latest := func() uint64 {
			changed, upTo, err := s.Changes(k.ctx, store.Latest)
			if len(changed) > 0 || err != nil {
				k.Fatalf("Changes(Latest) = %v, %d, %v, want none", changed, upTo, err)
			}
			return upTo
		}
		begin := latest()
		for i := range store.MaxChanges + 50 {
			k.write(fmt.Sprint("folder ", i%3), fmt.Sprint(i), []byte("1"), 0)
		}
		if got, want := latest(), k.latest; got < want {
			k.Fatalf("the latest change is %d, want %d or more", got, want)
		}
		k.compareChanges(begin)
		middle := latest()
		for i := 0; i < 100; i += 2 {
			at := path{fmt.Sprint("folder ", i%3), fmt.Sprint(i)}
			k.write(at.folder, at.name, []byte("2"), k.documents.version(at))
			if i%4 == 0 {
				k.write(at.folder, at.name, nil, k.documents.version(at))
			}
			if i%8 == 0 {
				k.write(at.folder, at.name, []byte("3"), 0)
			}
		}
		k.compareChanges(middle)
		k.compareChanges(k.latest - 1)
		k.compareChanges(latest())
		k.write("folder 1", "1", []byte("5"), k.documents.version(path{"folder 1", "1"})-1) // a conflict changes nothing
		k.compareChanges(latest())
		if k.traits.Bubble {
			k.write("new", "new", []byte("1"), 0)
			before := latest()
			k.write("new", "new", nil, k.documents.version(path{"new", "new"}))
			k.pass(store.RememberRemoved / 2)
			k.write("new", "newer", []byte("1"), 0)
			k.compareChanges(before)
			k.pass(store.RememberRemoved)
			k.write("new", "newest", []byte("1"), 0)
			if changed, _, err := s.Changes(k.ctx, middle); err != nil && !errors.Is(err, store.ErrTooOld) {
				k.Fatalf("Changes after hours = %v, %v, want changes or ErrTooOld", changed, err)
			}
		}
	}},
	{"ChangesAfterRestart", "If it has forgotten a removal since the version, the error is ErrTooOld. The new version is greater than that of every change before it.", func(k *kit) {
		k.write("a", "1", []byte("1"), 0)
		k.write("a", "2", []byte("1"), 0)
		before := k.latest
		k.write("a", "1", nil, k.documents.version(path{"a", "1"}))
		k.restart()
		if _, _, err := k.s.Changes(k.ctx, before); err == nil {
			k.compareChanges(before)
		} else if !errors.Is(err, store.ErrTooOld) {
			k.Fatalf("Changes after a restart: %v, want ErrTooOld", err)
		}
		_, upTo, err := k.s.Changes(k.ctx, store.Latest)
		if err != nil {
			k.Fatal(err)
		}
		k.write("a", "1", []byte("2"), 0)
		k.compareChanges(upTo)
		k.compareDocuments()
	}},
	{"DocumentLimits", "Folder and Name have 1 to 255 bytes, Value up to MaxDocument.", func(k *kit) {
		long := strings.Repeat("x", 256)
		x := []byte("x")
		for _, bad := range []store.Document{{Name: "a", Value: x}, {Folder: "a", Value: x}, {Folder: long, Name: "a", Value: x}, {Folder: "a", Name: long, Value: x}, {Folder: "a", Name: "a", Value: make([]byte, store.MaxDocument+1)}} {
			if _, err := k.s.SetDocument(k.ctx, bad); err == nil || errors.Is(err, store.ErrConflict) {
				k.Errorf("SetDocument of a name of %d bytes and a value of %d: %v, want an error", len(bad.Name), len(bad.Value), err)
			}
		}
		k.compareDocuments()
	}},
}
