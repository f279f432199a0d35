package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hookferry/analytics/cmd/hookferry/internal/server"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/boltqueue"
)

// storeOf makes a store in a folder, of n deliveries of 8 KB.
func storeOf(t *testing.T, folder string, n int) (file string) {
	t.Helper()
	file = filepath.Join(folder, server.DataFile)
	q, err := boltqueue.Open(file, nil)
	if err != nil {
		t.Fatal(err)
	}
	body := []byte(`{"type":"track","event":"` + strings.Repeat("x", 7_900) + `"}`)
	now := time.Now()
	var ds []webhook.Delivery
	for i := range n {
		ds = append(ds, webhook.Delivery{Destination: "crm", ID: fmt.Sprint(i), Type: "track", Body: body, Accepted: now, Due: now})
		if len(ds) == 500 || i == n-1 {
			if _, err := q.Put(context.Background(), ds...); err != nil {
				t.Fatal(err)
			}
			ds = ds[:0]
		}
	}
	if err := q.Close(); err != nil {
		t.Fatal(err)
	}
	return file
}

// An asked context returns what err does whenever it is asked whether it is done.
type asked struct {
	context.Context
	err func() error
}

func (c *asked) Err() error { return c.err() }

// Each of the commands that work on a store is interrupted later and later: it leaves all
// as it was. Then it ends, having told how far it is.
func TestStoreCommands(t *testing.T) {
	folder := t.TempDir()
	file := storeOf(t, folder, 700)
	before, err := boltqueue.Check(file)
	if err != nil {
		t.Fatal(err)
	}
	rescued := filepath.Join(t.TempDir(), "rescued.db")
	for _, tt := range []struct {
		args        []string
		interrupted string
		told        string
		ended       string
	}{
		{[]string{"check"}, "hookferry store check: interrupted\n", `^(read [\d.]+ MB of [\d.]+ MB, .*\n)+$`, `^700 deliveries wait, 0 dead letters; `},
		{[]string{"rescue", "--to", rescued}, "hookferry store rescue: interrupted; there is no new file, and the old one is as it was\n",
			`^(read [\d.]+ MB of [\d.]+ MB, .*\n)+$`, `^700 deliveries, 0 dead letters, .*\nTo use it: `},
		{[]string{"compact"}, "hookferry store compact: interrupted; the store is as it was\n", `^(written [\d.]+ MB of [\d.]+ MB, .*\n)+$`, `^[\d,]+ bytes before, [\d,]+ bytes now\n$`},
	} {
		args := append([]string{"store", tt.args[0], "--data", folder}, tt.args[1:]...)
		for _, point := range []int{0, 1, 2, 10, 100} { // how often it was asked before
			left := point
			ctx := &asked{context.Background(), func() error {
				if left--; left < 0 {
					return context.Canceled
				}
				return nil
			}}
			stdout, stderr, status := call(ctx, "", nil, args...)
			if status == exitOK && point > 1 {
				break
			}
			if status != exitFailure || stdout != "" || stderr != tt.interrupted {
				t.Fatalf("%q, interrupted at point %d: exit status %d, printed %q and %q, want %q", args, point, status, stdout, stderr, tt.interrupted)
			}
			if now, err := boltqueue.Check(file); err != nil || now != before {
				t.Errorf("%q, interrupted at point %d: the store holds %+v, and %+v before; %v", args, point, now, before, err)
			}
			files, err := os.ReadDir(folder)
			if err != nil || len(files) != 1 {
				t.Errorf("%q, interrupted at point %d: the folder has %v, %v", args, point, files, err)
			}
			if _, err := os.Stat(rescued); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%q, interrupted at point %d: there is %s, %v", args, point, rescued, err)
			}
		}
		_ = os.Remove(rescued)

		synctest.Test(t, func(t *testing.T) {
			stdout, stderr, status := call(&asked{context.Background(), func() error {
				time.Sleep(meterLine)
				return nil
			}}, "", nil, args...)
			if status != exitOK || !regexp.MustCompile(tt.told).MatchString(stderr) || !regexp.MustCompile(tt.ended).MatchString(stdout) {
				t.Errorf("%q: exit status %d, printed %q and %q, want %s and %s", args, status, stdout, stderr, tt.ended, tt.told)
			}
		})
		_ = os.Remove(rescued)
	}
}
