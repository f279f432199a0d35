package fileroster

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/hookferry/analytics/audience"
	"github.com/hookferry/analytics/audience/rostertest"
)

// openUnsynced is Open without syncs, for tests that do not simulate a loss of power.
func openUnsynced(t testing.TB, dir string) *Roster {
	t.Helper()
	r, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	r.unsynced = true
	return r
}

func TestRoster(t *testing.T) {
	rostertest.Run(t, func(t testing.TB, dir string) rostertest.Store { return openUnsynced(t, dir) }, rostertest.Traits{Durable: true, Bubble: true})
}

// set makes users members of the audience "vip".
func set(t *testing.T, r *Roster, users ...string) {
	t.Helper()
	if err := r.UpdateAudience(t.Context(), "vip", func(rec *audience.Record, members audience.Members) error {
		rec.Generation = 1
		return members.Set(users, 1)
	}); err != nil {
		t.Fatal(err)
	}
}

// If the file is damaged, calls return errors, and the process goes on. Copy copies nothing.
func TestDamagedFileIsAnError(t *testing.T) {
	dir, to := t.TempDir(), t.TempDir()
	r := openUnsynced(t, dir)
	users := make([]string, 20_000)
	for i := range users {
		users[i] = fmt.Sprintf("user-%06d", i)
	}
	set(t, r, users...)
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "roster.db")
	info, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(file, info.Size()/4); err != nil {
		t.Fatal(err)
	}
	if err := Copy(dir, to); !errors.Is(err, ErrDamaged) {
		t.Errorf("Copy of a damaged file = %v, want ErrDamaged", err)
	}
	if files, err := os.ReadDir(to); err != nil || len(files) != 0 {
		t.Errorf("Copy of a damaged file leaves %v, %v; want nothing", files, err)
	}
	r = openUnsynced(t, dir)
	defer r.Close()
	for range 2 {
		var last error
		for _, err := range r.Members(t.Context(), "vip") {
			last = err
		}
		if !errors.Is(last, ErrDamaged) {
			t.Errorf("Members of an audience in a damaged file yields %v, want ErrDamaged", last)
		}
	}
}

// A Roster that nobody uses makes no file. Copy accepts a folder without a file, and copies a file
// that no Roster has open.
func TestCopy(t *testing.T) {
	from, to := t.TempDir(), t.TempDir()
	r := openUnsynced(t, from)
	defer r.Close()
	if err := Copy(from, to); err != nil {
		t.Errorf("Copy of a folder without a file = %v, want nil", err)
	}
	set(t, r, "ann")
	if err := Copy(from, to); !errors.Is(err, ErrLocked) {
		t.Errorf("Copy of a file in use = %v, want ErrLocked", err)
	}
	other := openUnsynced(t, from)
	defer other.Close()
	for _, err := range other.Audiences(t.Context()) {
		if !errors.Is(err, ErrLocked) {
			t.Errorf("Audiences of a file in use yields %v, want ErrLocked", err)
		}
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if err := Copy(from, to); err != nil {
		t.Fatal(err)
	}
	copied := openUnsynced(t, to)
	defer copied.Close()
	n := 0
	for user, err := range copied.Members(t.Context(), "vip") {
		if n++; user != "ann" || err != nil {
			t.Errorf("Members yields %q, %v; want ann", user, err)
		}
	}
	if n != 1 {
		t.Errorf("got %d members, want 1", n)
	}
}
