package filequeue_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hookferry/analytics/audience"
	"github.com/hookferry/analytics/audience/rostertest"
	"github.com/hookferry/analytics/webhook/filequeue"
)

func TestRoster(t *testing.T) {
	rostertest.Run(t, func(t testing.TB, dir string) rostertest.Store {
		s, err := filequeue.OpenUnsynced(dir, filequeue.Config{})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}, rostertest.Traits{Durable: true, Bubble: true})
}

// If the file of the audiences is damaged, calls about audiences return errors, and the process goes
// on. Rescue copies all else.
func TestDamagedAudiencesAreAnError(t *testing.T) {
	dir, to := t.TempDir(), filepath.Join(t.TempDir(), "rescued")
	open := func(dir string) *filequeue.Store {
		s, err := filequeue.OpenUnsynced(dir, filequeue.Config{Logger: quiet})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	s := open(dir)
	users := make([]string, 20_000)
	for i := range users {
		users[i] = fmt.Sprintf("user-%06d", i)
	}
	if err := s.UpdateAudience(t.Context(), "vip", func(_ *audience.Record, members audience.Members) error { return members.Set(users, 1) }); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
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
	if r, err := filequeue.Rescue(t.Context(), dir, to, nil); err != nil || len(r.Missing) != 1 || !strings.Contains(r.Missing[0], "audiences") {
		t.Errorf("Rescue = %+v, %v; want the audiences reported as missing", r, err)
	}
	s = open(dir)
	defer s.Close()
	for range 2 {
		var last error
		for _, err := range s.Members(t.Context(), "vip") {
			last = err
		}
		if !errors.Is(last, filequeue.ErrDamaged) {
			t.Errorf("Members of an audience in a damaged file yields %v, want ErrDamaged", last)
		}
	}
	rescued := open(to)
	defer rescued.Close()
	for _, err := range rescued.Audiences(t.Context()) {
		t.Errorf("the rescued store has an audience, %v; want none", err)
	}
}
