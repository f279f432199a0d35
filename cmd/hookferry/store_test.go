package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hookferry/analytics/audience"
	"github.com/hookferry/analytics/audience/fileroster"
	"github.com/hookferry/analytics/cmd/hookferry/internal/server"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/filequeue"
	"github.com/hookferry/analytics/webhook/store"
)

// makeStore makes a store with n deliveries of 8 KB in a data folder.
func makeStore(t *testing.T, data string, n int) (folder string) {
	t.Helper()
	folder = server.StorePath(data)
	s, err := filequeue.Open(folder, filequeue.Config{})
	if err != nil {
		t.Fatal(err)
	}
	body := []byte(`{"type":"track","event":"` + strings.Repeat("x", 7_900) + `"}`)
	now := time.Now()
	var ps []store.Put
	for i := range n {
		ps = append(ps, store.Put{Delivery: webhook.Delivery{Destination: "crm", ID: fmt.Sprint(i), Type: "track", Body: body, Accepted: now, Due: now}})
		if len(ps) == 500 || i == n-1 {
			if err := s.Put(context.Background(), ps, make([]store.Result, len(ps))); err != nil {
				t.Fatal(err)
			}
			ps = ps[:0]
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return folder
}

// filesOf returns the names and sizes of the files in a folder.
func filesOf(t *testing.T, folder string) []string {
	t.Helper()
	files, err := os.ReadDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, f := range files {
		info, err := f.Info()
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, fmt.Sprint(f.Name(), " ", info.Size()))
	}
	return all
}

// An errContext calls err for each call of Err.
type errContext struct {
	context.Context
	err func() error
}

func (c *errContext) Err() error { return c.err() }

// TestInterruptLeavesTheStoreUnchanged interrupts the store commands at several points: the
// store stays as it was. Without an interrupt, the commands print their progress.
func TestInterruptLeavesTheStoreUnchanged(t *testing.T) {
	data := t.TempDir()
	folder := makeStore(t, data, 700)
	before := filesOf(t, folder)
	rescued := filepath.Join(t.TempDir(), "rescued")
	for _, tt := range []struct {
		args        []string
		interrupted string
		progress    string
		ended       string
	}{
		{[]string{"check"}, "hookferry store check: interrupted\n", `^(read [\d.]+ MB of [\d.]+ MB, .*\n)+$`, `^waiting: 700, .* missing: 0\n`},
		{[]string{"rescue", "--to", rescued}, "hookferry store rescue: interrupted; there is no new store, and the old one is as it was\n",
			`^(read [\d.]+ MB of [\d.]+ MB, .*\n)+$`, `^waiting: 700, .* missing: 0\nTo use it: `},
	} {
		args := append([]string{"store", tt.args[0], "--data", data}, tt.args[1:]...)
		for _, point := range []int{0, 1, 2, 10, 100} { // how many calls of Err return nil before the interrupt
			left := point
			ctx := &errContext{context.Background(), func() error {
				if left--; left < 0 {
					return context.Canceled
				}
				return nil
			}}
			stdout, stderr, status := runCommand(ctx, "", nil, args...)
			if status == exitOK && point > 0 {
				break
			}
			if status != exitFailure || stdout != "" || stderr != tt.interrupted {
				t.Fatalf("%q, interrupted at point %d: exit status %d, printed %q and %q, want %q", args, point, status, stdout, stderr, tt.interrupted)
			}
			if now := filesOf(t, folder); !slices.Equal(now, before) {
				t.Errorf("%q, interrupted at point %d: the folder has the files %q, want %q as before", args, point, now, before)
			}
			if _, err := os.Stat(rescued); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%q, interrupted at point %d: Stat(%s) = %v, want that the file does not exist", args, point, rescued, err)
			}
		}
		_ = os.RemoveAll(rescued)

		synctest.Test(t, func(t *testing.T) {
			stdout, stderr, status := runCommand(&errContext{context.Background(), func() error {
				time.Sleep(meterLine)
				return nil
			}}, "", nil, args...)
			if status != exitOK || !regexp.MustCompile(tt.progress).MatchString(stderr) || !regexp.MustCompile(tt.ended).MatchString(stdout) {
				t.Errorf("%q: exit status %d, printed %q and %q, want output that matches %s and %s", args, status, stdout, stderr, tt.ended, tt.progress)
			}
		})
		_ = os.RemoveAll(rescued)
	}
}

// A rescue copies the audiences, too. If they cannot be read, it says that they are missing.
func TestRescueCopiesAudiences(t *testing.T) {
	data := t.TempDir()
	folder := makeStore(t, data, 1)
	use := func(folder string, f func(r *fileroster.Roster)) {
		r, err := fileroster.Open(folder)
		if err != nil {
			t.Fatal(err)
		}
		f(r)
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
	}
	use(folder, func(r *fileroster.Roster) {
		if err := r.UpdateAudience(t.Context(), "vip", func(_ *audience.Record, members audience.Members) error {
			return members.Set([]string{"ann"}, 1)
		}); err != nil {
			t.Fatal(err)
		}
	})
	for _, want := range []string{"missing: 0\n", "missing: 1\nmissing: the audiences cannot be read"} {
		to := filepath.Join(t.TempDir(), "rescued")
		stdout, stderr, status := runCommand(t.Context(), "", nil, "store", "rescue", "--data", data, "--to", to)
		if status != exitOK || !strings.Contains(stdout, want) {
			t.Errorf("store rescue: exit status %d, printed %q and %q, want output with %q", status, stdout, stderr, want)
		}
		if want == "missing: 0\n" {
			use(to, func(r *fileroster.Roster) {
				var got []string
				for user, err := range r.Members(t.Context(), "vip") {
					got = append(got, fmt.Sprint(user, err))
				}
				if !slices.Equal(got, []string{"ann<nil>"}) {
					t.Errorf("the rescued audience has the members %q, want ann", got)
				}
			})
		}
		if err := os.Truncate(filepath.Join(folder, "roster.db"), 100); err != nil {
			t.Fatal(err)
		}
	}
}
