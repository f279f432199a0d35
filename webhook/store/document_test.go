package store

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// DocumentChanges forget changes that are old, or too many, and say so to a caller who may have
// missed a removal.
func TestDocumentChangesForgetOldOnes(t *testing.T) {
	var m DocumentChanges
	at := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	set := func(name string, version uint64, value []byte, now time.Time) {
		m.Add(DocumentChange{Folder: "f", Name: name, Version: version, Removed: value == nil}, now)
	}
	set("a", 1, []byte("x"), at)
	set("b", 2, []byte("x"), at)
	set("a", 3, nil, at)
	changed, upTo, err := m.Since(1)
	want := []DocumentChange{{Folder: "f", Name: "b", Version: 2}, {Folder: "f", Name: "a", Version: 3, Removed: true}}
	if diff := cmp.Diff(want, changed); diff != "" || upTo != 3 || err != nil {
		t.Errorf("Since(1) up to %d, %v, want 3 (-want +got)\n%s", upTo, err, diff)
	}
	set("c", 4, []byte("x"), at.Add(RememberRemoved+1))
	if _, _, err := m.Since(2); !errors.Is(err, ErrTooOld) {
		t.Errorf("Since(2) after more than an hour = %v, want ErrTooOld", err)
	}
	if changed, _, err := m.Since(3); len(changed) != 1 || err != nil {
		t.Errorf("Since(3) = %v, %v, want that of c", changed, err)
	}
	for i := range maxRemembered {
		set(fmt.Sprint(i%10), uint64(5+i), []byte("x"), at.Add(RememberRemoved+1))
	}
	if _, _, err := m.Since(3); !errors.Is(err, ErrTooOld) {
		t.Errorf("Since(3) after %d changes = %v, want ErrTooOld", maxRemembered, err)
	}
	if changed, upTo, err := m.Since(4); len(changed) != 10 || upTo != uint64(4+maxRemembered) || err != nil {
		t.Errorf("Since(4) = %d changes up to %d, %v, want the ten documents that changed", len(changed), upTo, err)
	}
	if _, upTo, err := m.Since(Latest); upTo != uint64(4+maxRemembered) || err != nil {
		t.Errorf("Since(Latest) = %d, %v, want %d", upTo, err, 4+maxRemembered)
	}
	m.Forget(200_000)
	if _, _, err := m.Since(199_999); !errors.Is(err, ErrTooOld) {
		t.Errorf("Since(199999) after Forget(200000) = %v, want ErrTooOld", err)
	}
}
