package analytics

import (
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hookferry/analytics/analyticstest"
	"github.com/hookferry/analytics/internal/disktest"
	"github.com/hookferry/analytics/internal/soakenv"
	"github.com/hookferry/analytics/step"
)

const (
	// Environment variables of the child process whose disk is full.
	fullKind   = "ANALYTICS_TEST_FULL"        // the kind of full disk: mount or limit
	fullFolder = "ANALYTICS_TEST_FULL_FOLDER" // the folder in which the child works
)

// While the disk is full, a client with SpoolDir holds messages in memory and logs that.
// When the disk has space again, the client uses it again. The test has two kinds of full
// disk. The kind "mount" is a small file system. It needs root, or a user who may make
// namespaces. The kind "limit" is a limit on the size of files. It needs no rights.
func TestFullDisk(t *testing.T) {
	if kind := os.Getenv(fullKind); kind != "" {
		folder := os.Getenv(fullFolder)
		fill, free := disktest.Limit(100 << 10)
		if kind == "mount" {
			var err error
			if fill, free, err = disktest.Mount(folder, "16m"); errors.Is(err, syscall.EPERM) {
				t.Skip("not permitted")
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		testFullDisk(t, filepath.Join(folder, "spool"), fill, free)
		return
	}
	soakenv.Long(t, "client-disk")
	for _, kind := range []string{"mount", "limit"} {
		t.Run(kind, func(t *testing.T) {
			cmd := exec.Command(os.Args[0], "-test.run=^TestFullDisk$", "-test.v")
			cmd.Env = append(os.Environ(), fullKind+"="+kind, fullFolder+"="+t.TempDir())
			if kind == "mount" {
				disktest.Apart(cmd)
			}
			out, err := cmd.CombinedOutput()
			switch {
			case errors.Is(err, syscall.EPERM) || strings.Contains(string(out), "--- SKIP"):
				t.Logf("not permitted to mount: %v", err)
			case err != nil || !strings.Contains(string(out), "--- PASS: TestFullDisk"):
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}

func testFullDisk(t *testing.T, folder string, fill, free func() error) {
	synctest.Test(t, func(t *testing.T) {
		gate := make(chan struct{})
		srv := analyticstest.New(t, step.Answer(200).Until(gate))
		book := newLogbook()
		c := New("k")
		c.Transport, c.SpoolDir, c.Logger, c.Timeout = srv.Transport(), folder, slog.New(book), time.Hour
		number := 0
		// send makes n calls and returns how many of their messages are in memory alone.
		send := func(n int) int {
			before := c.Stats().Unspooled
			for range n {
				number++
				if err := c.Track(&Track{UserId: "u", Event: "e", Properties: map[string]any{"text": strings.Repeat("x", 1000)}}); err != nil {
					t.Fatalf("message %d: %v", number, err)
				}
			}
			synctest.Wait()
			if s := c.Stats(); !s.sums() || s.Dropped > 0 || s.Refused > 0 {
				t.Errorf("Stats() = %+v: the counters do not add up, or a message was dropped or refused", s)
			}
			return int(c.Stats().Unspooled - before)
		}
		troubles := book.troubles

		if n := send(100); n != 0 || troubles() != 0 {
			t.Errorf("%d of 100 messages are in memory alone with room on the disk, want none and no log; log: %q", n, book.lines)
		}
		if err := fill(); err != nil {
			t.Fatal(err)
		}
		// The current file and a spare one take the first thousand messages.
		if n := send(3000); n < 1500 {
			t.Errorf("%d of 3000 messages are in memory alone with a full disk, want 1500 or more", n)
		}
		for range 30 {
			if n := send(10); n != 10 {
				t.Errorf("%d of 10 messages are in memory alone with a full disk, want all", n)
			}
			time.Sleep(time.Second)
		}
		if n := troubles(); n != 1 {
			t.Errorf("the log mentions the full disk %d times in half a minute, want once: %q", n, book.lines)
		}
		if _, err := os.Stat(folder); err != nil {
			t.Error(err)
		}

		// A client that starts on a full disk returns an error that says so.
		late := New("k")
		late.Transport, late.SpoolDir = srv.Transport(), folder+"-late"
		var config *ConfigError
		if err := late.Track(&Track{UserId: "u", Event: "e"}); !errors.As(err, &config) || config.Field != "SpoolDir" {
			t.Errorf("the first call with a full disk: %v, want a *ConfigError about SpoolDir", err)
		}

		if err := free(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(diskPause)
		send(3000) // fills the batch in memory; only the next batch is on disk
		if n := send(1000); n != 0 {
			t.Errorf("%d of 1000 messages are in memory alone with room on the disk again, want none", n)
		}
		close(gate)
		closeClient(t, c)
		checkStats(t, c, uint64(number), uint64(number), 0, 0)
		if n := len(srv.Calls()); n != number {
			t.Errorf("%d messages arrived, want %d", n, number)
		}
	})
}

// If the process has too many open files, the client cannot read its files. It leaves their
// messages on disk and sends them later. This happens in an outage in which all connections
// hang.
func TestMessagesStayOnDiskWhileTooManyFilesAreOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir, _ := leaveMessages(t, 3)
		book := newLogbook()
		c, _ := newSpoolClient(dir, nil)
		c.Logger = slog.New(book)
		if err := c.setUpOnce(); err != nil {
			t.Fatal(err)
		}
		again, err := disktest.NoFiles()
		if err != nil {
			t.Fatal(err)
		}
		err = c.Flush(t.Context())
		if e := again(); e != nil {
			t.Fatal(e)
		}
		checkUndelivered(t, err, UndeliveredError{Spooled: 3})
		if !errors.Is(err, syscall.EMFILE) || book.troubles() != 1 {
			t.Errorf("Flush: %v, want EMFILE and one line in the log: %q", err, book.lines)
		}
		closeClient(t, c)
		checkStats(t, c, 0, 3, 0, 0)
	})
}
