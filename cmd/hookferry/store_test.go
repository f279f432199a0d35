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

	"github.com/hookferry/analytics/cmd/hookferry/internal/server"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/filequeue"
)

// storeOf makes a store in a data folder, of n deliveries of 8 KB.
func storeOf(t *testing.T, data string, n int) (folder string) {
	t.Helper()
	folder = server.StorePath(data)
	s, err := filequeue.Open(folder, filequeue.Config{})
	if err != nil {
		t.Fatal(err)
	}
	body := []byte(`{"type":"track","event":"` + strings.Repeat("x", 7_900) + `"}`)
	now := time.Now()
	var ps []webhook.Put
	for i := range n {
		ps = append(ps, webhook.Put{Delivery: webhook.Delivery{Destination: "crm", ID: fmt.Sprint(i), Type: "track", Body: body, Accepted: now, Due: now}})
		if len(ps) == 500 || i == n-1 {
			if err := s.Put(context.Background(), ps, make([]webhook.Result, len(ps))); err != nil {
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

// An asked context calls err whenever it is asked whether it is done.
type asked struct {
	context.Context
	err func() error
}

func (c *asked) Err() error { return c.err() }

// An interrupt at any point leaves the store as it was. Without one, the commands print
// how far they are.
func TestStoreCommands(t *testing.T) {
	data := t.TempDir()
	folder := storeOf(t, data, 700)
	before := filesOf(t, folder)
	rescued := filepath.Join(t.TempDir(), "rescued")
	for _, tt := range []struct {
		args        []string
		interrupted string
		told        string
		ended       string
	}{
		{[]string{"check"}, "hookferry store check: interrupted\n", `^(read [\d.]+ MB of [\d.]+ MB, .*\n)+$`, `^waiting: 700, .* missing: 0\n`},
		{[]string{"rescue", "--to", rescued}, "hookferry store rescue: interrupted; there is no new store, and the old one is as it was\n",
			`^(read [\d.]+ MB of [\d.]+ MB, .*\n)+$`, `^waiting: 700, .* missing: 0\nTo use it: `},
	} {
		args := append([]string{"store", tt.args[0], "--data", data}, tt.args[1:]...)
		for _, point := range []int{0, 1, 2, 10, 100} { // how often it was asked before
			left := point
			ctx := &asked{context.Background(), func() error {
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
				t.Errorf("%q, interrupted at point %d: the folder has %q, and %q before", args, point, now, before)
			}
			if _, err := os.Stat(rescued); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%q, interrupted at point %d: there is %s, %v", args, point, rescued, err)
			}
		}
		_ = os.RemoveAll(rescued)

		synctest.Test(t, func(t *testing.T) {
			stdout, stderr, status := runCommand(&asked{context.Background(), func() error {
				time.Sleep(meterLine)
				return nil
			}}, "", nil, args...)
			if status != exitOK || !regexp.MustCompile(tt.told).MatchString(stderr) || !regexp.MustCompile(tt.ended).MatchString(stdout) {
				t.Errorf("%q: exit status %d, printed %q and %q, want %s and %s", args, status, stdout, stderr, tt.ended, tt.told)
			}
		})
		_ = os.RemoveAll(rescued)
	}
}
