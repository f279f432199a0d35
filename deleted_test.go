package analytics

import (
	"errors"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"
)

// deleteSpool deletes a folder, as a person or a cleaner of old files does.
func deleteSpool(t *testing.T, dir string) {
	t.Helper()
	synctest.Wait() // until the client makes no more files
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
}

// afterKill returns how many messages the next client on dir would find if the process were killed
// now. It opens a copy of the folder, because the client still has the folder locked.
func afterKill(t *testing.T, dir string) int {
	t.Helper()
	other := t.TempDir()
	if err := os.CopyFS(other, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	next, col := newSpoolClient(other, nil)
	flush(t, next)
	closeClient(t, next)
	return col.distinct()
}

// The folder is deleted while the client runs. Shutdown writes the messages that it reports as on
// disk to a new folder, and the next client sends them.
func TestMessagesAfterTheFolderWasDeletedAreOnDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "spool")
		c, _ := newSpoolClient(dir, refuseConnection)
		c.FlushAt = 100
		track(t, c, 1)
		deleteSpool(t, dir)
		track(t, c, 19)
		checkUndelivered(t, shutdownNow(t, c), UndeliveredError{Spooled: 20})
		next, col := newSpoolClient(dir, nil)
		flush(t, next)
		if n := col.distinct(); n != 20 {
			t.Errorf("the next client sent %d messages, want 20", n)
		}
		closeClient(t, next)
	})
}

// The client notices within checkPause that its folder was deleted. It writes the messages of
// batches that collect, wait and are under way to new files, and later messages are in files, too.
func TestADeletedFolderIsMadeAgain(t *testing.T) {
	for _, idle := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "spool")
			c, col := newSpoolClient(dir, hang)
			book := newLogbook()
			c.Timeout, c.Logger = time.Hour, slog.New(book)
			n := 0
			if idle {
				flush(t, c)
				deleteSpool(t, dir)
			}
			for range maxUploads {
				n += DefaultFlushAt
				track(t, c, DefaultFlushAt)
				synctest.Wait()
			}
			n += MaxBatchCalls + 10
			track(t, c, MaxBatchCalls+10)
			if !idle {
				deleteSpool(t, dir)
			}
			n += 5
			track(t, c, 5)
			time.Sleep(checkPause)
			synctest.Wait()
			if got := afterKill(t, dir); got != n {
				t.Errorf("idle %t: after a kill %d messages would be found, want %d", idle, got, n)
			}
			track(t, c, 3)
			if got := afterKill(t, dir); got != n+3 {
				t.Errorf("idle %t: after a kill %d messages would be found, want %d", idle, got, n+3)
			}
			if book.troubles() != 1 {
				t.Errorf("idle %t: the log does not mention the folder once: %q", idle, book.lines)
			}
			col.recover()
			time.Sleep(2 * time.Hour)
			closeClient(t, c)
			checkStats(t, c, uint64(n+3), uint64(n+3), 0, 0)
		})
	}
}

// With SyncEachCall, no message is reported as stored that is not in the folder.
func TestSyncEachCallNoticesADeletedFolderAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "spool")
		c, _ := newSpoolClient(dir, hang)
		c.SpoolSync, c.FlushAt = SyncEachCall, 100
		for i := range 3 {
			track(t, c, 1)
			if i == 1 {
				continue
			}
			deleteSpool(t, dir)
			track(t, c, 1)
			if got, want := afterKill(t, dir), int(c.Stats().Queued); got != want {
				t.Errorf("after a kill %d messages would be found, want %d", got, want)
			}
		}
		shutdownNow(t, c)
	})
}

// Messages that were on disk alone are gone if their files are deleted. The client drops them, and
// does not count them as on disk any more.
func TestDeletedMessagesOnDiskAloneAreDropped(t *testing.T) {
	for _, test := range []struct {
		name   string
		delete func(t *testing.T, dir string)
		wait   time.Duration
	}{
		{"folder, noticed while it runs", deleteSpool, checkPause},
		{"folder, noticed by Shutdown", deleteSpool, 0},
		{"one file, noticed by Shutdown", func(t *testing.T, dir string) { deleteSpool(t, segments(t, dir)[0]) }, 0},
	} {
		bubble(t, test.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "spool")
			earlier, _ := newSpoolClient(dir, refuseConnection)
			track(t, earlier, 7)
			shutdownNow(t, earlier)

			c, _ := newSpoolClient(dir, always(503))
			var told deliveryRecorder
			c.OnDelivery = told.add
			track(t, c, 1)
			time.Sleep(time.Hour)
			synctest.Wait()
			checkSpool(t, c, 8)
			test.delete(t, dir)
			lost := 8
			if test.name == "one file, noticed by Shutdown" {
				lost = 7
			}
			if test.wait > 0 {
				time.Sleep(test.wait)
				synctest.Wait()
				checkSpool(t, c, 0)
			}
			err := shutdownNow(t, c)
			var u *UndeliveredError
			if errors.As(err, &u) && u.Spooled != 8-lost || test.wait == 0 && (u == nil || u.Dropped != lost) {
				t.Errorf("Shutdown: %v, want %d on disk and %d dropped", err, 8-lost, lost)
			}
			s := c.Stats()
			if s.ByReason[ReasonDamaged] != uint64(lost) || s.Spooled != 8-lost || !s.sums() {
				t.Errorf("Stats() = %+v, want %d dropped as damaged", s, lost)
			}
			if n := len(told.got()); n == 0 {
				t.Error("OnDelivery was not called")
			}
		})
	}
}

// While the folder cannot be made again, or belongs to another client, messages are in memory alone.
// They are not reported as on disk, and the files of the other client are left alone.
func TestAFolderThatCannotBeMadeAgain(t *testing.T) {
	for _, test := range []struct {
		name string
		take func(t *testing.T, dir string) (check func())
	}{
		{"a file is in its place", func(t *testing.T, dir string) func() {
			if err := os.WriteFile(dir, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			return func() {}
		}},
		{"another client has it", func(t *testing.T, dir string) func() {
			other, col := newSpoolClient(dir, refuseConnection)
			track(t, other, 30)
			return func() {
				col.recover()
				time.Sleep(time.Hour)
				closeClient(t, other)
				checkStats(t, other, 30, 30, 0, 0)
			}
		}},
	} {
		for _, only := range []bool{false, true} {
			bubble(t, test.name, func(t *testing.T) {
				dir := filepath.Join(t.TempDir(), "spool")
				answer := func(n int, r request) (*http.Response, error) {
					if n == 0 {
						return status(200), nil
					}
					return hang(n, r)
				}
				c, _ := newSpoolClient(dir, answer)
				c.SpoolOnly, c.FlushAt = only, 5
				track(t, c, 5) // delivered; its file is reused
				synctest.Wait()
				track(t, c, 5)
				synctest.Wait()
				deleteSpool(t, dir)
				check := test.take(t, dir)
				track(t, c, 5)
				time.Sleep(checkPause)
				synctest.Wait()
				err := c.Track(&Track{UserId: "u", Event: "e"})
				if only != errors.Is(err, ErrNotSpooled) || !only && err != nil {
					t.Errorf("SpoolOnly %t: Track: %v, want ErrNotSpooled only with SpoolOnly", only, err)
				}
				dropped := 11
				if only {
					dropped = 10
				}
				checkUndelivered(t, shutdownNow(t, c), UndeliveredError{Dropped: dropped})
				if s := c.Stats(); s.Spooled != 0 || s.ByReason[ReasonShutdown] != uint64(dropped) || !s.sums() {
					t.Errorf("SpoolOnly %t: Stats() = %+v, want %d dropped and none on disk", only, s, dropped)
				}
				check()
			})
		}
	}
}
