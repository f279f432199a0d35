package analytics

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"
)

// synced returns how many messages of the collecting batch have been synced to the disk. It
// reads a private field of the segment, because package spool does not export the number.
func synced(t *testing.T, c *Client) int {
	t.Helper()
	c.queue.mu.Lock()
	defer c.queue.mu.Unlock()
	if c.queue.collecting == nil || c.queue.collecting.seg == nil {
		t.Fatal("there is no collecting batch in a segment")
	}
	seg := reflect.ValueOf(c.queue.collecting.seg).Elem()
	syncing := (*sync.Mutex)(unsafe.Pointer(seg.FieldByName("syncing").UnsafeAddr()))
	syncing.Lock()
	defer syncing.Unlock()
	return int(seg.FieldByName("synced").Int())
}

// breakSync replaces the open segment files of dir by a pipe. The system refuses to sync a pipe,
// so every later sync fails.
func breakSync(t *testing.T, dir string) {
	t.Helper()
	var pipe [2]int
	if err := syscall.Pipe2(pipe[:], syscall.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(pipe[0])
	defer syscall.Close(pipe[1])
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		t.Fatal(err)
	}
	list, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, name := range list {
		target, err := os.Readlink(name)
		if err != nil || filepath.Dir(target) != dir || !strings.HasPrefix(filepath.Base(target), "segment-") {
			continue
		}
		info, err := os.Stat(name)
		if err != nil || info.Size() == 0 {
			continue
		}
		fd := 0
		for _, digit := range filepath.Base(name) {
			fd = 10*fd + int(digit-'0')
		}
		if err := syscall.Dup3(pipe[1], fd, syscall.O_CLOEXEC); err != nil {
			t.Fatal(err)
		}
		found++
	}
	if found == 0 {
		t.Fatal("no segment is open")
	}
}

func TestSpoolSyncSetsWhenMessagesAreSynced(t *testing.T) {
	t.Run("each call waits for the disk", func(t *testing.T) {
		c, col := newSpoolClient(t.TempDir(), nil)
		c.SpoolSync, c.FlushAt, c.FlushAfter = SyncEachCall, 1000, time.Hour
		for n := 1; n <= 5; n++ {
			track(t, c, 1)
			if got := synced(t, c); got != n {
				t.Errorf("%d messages are synced after %d calls, want all", got, n)
			}
		}
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() { track(t, c, 20) })
		}
		wg.Wait()
		if got := synced(t, c); got != 165 {
			t.Errorf("%d messages are synced after 165 calls, want all", got)
		}
		if n := len(col.got()); n != 0 {
			t.Errorf("%d requests, want none yet", n)
		}
		closeClient(t, c)
		checkStats(t, c, 165, 165, 0, 0)
	})
	bubble(t, "messages are synced after the interval", func(t *testing.T) {
		c, _ := newSpoolClient(t.TempDir(), nil)
		c.SpoolSync, c.FlushAt, c.FlushAfter = 2*time.Second, 1000, time.Hour
		track(t, c, 3)
		for _, step := range []struct {
			wait time.Duration
			want int
		}{{0, 0}, {2*time.Second - 1, 0}, {1, 3}, {time.Minute, 3}} {
			time.Sleep(step.wait)
			synctest.Wait()
			if got := synced(t, c); got != step.want {
				t.Errorf("%d messages are synced after another %v, want %d", got, step.wait, step.want)
			}
		}
		closeClient(t, c)
	})
	bubble(t, "messages are not synced by default", func(t *testing.T) {
		c, _ := newSpoolClient(t.TempDir(), nil)
		c.FlushAt, c.FlushAfter = 1000, time.Hour
		track(t, c, 3)
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if got := synced(t, c); got != 0 {
			t.Errorf("%d messages were synced, want none", got)
		}
		closeClient(t, c)
	})
}

// If a sync fails, the client logs that once. The messages stay in the file and are delivered.
func TestMessagesArriveAlthoughASyncFails(t *testing.T) {
	for _, test := range []struct {
		name string
		sync time.Duration
	}{
		{"each call", SyncEachCall},
		{"interval", time.Second},
	} {
		bubble(t, test.name, func(t *testing.T) {
			dir := t.TempDir()
			book := newLogbook()
			c, _ := newSpoolClient(dir, nil)
			c.SpoolSync, c.FlushAt, c.FlushAfter, c.Logger = test.sync, 1000, time.Hour, slog.New(book)
			track(t, c, 3)
			time.Sleep(2 * time.Second)
			synctest.Wait()
			if got := synced(t, c); got != 3 || book.troubles() != 0 {
				t.Errorf("%d messages are synced, want 3 and an empty log; log %q", got, book.lines)
			}
			breakSync(t, dir)
			for range 5 {
				track(t, c, 1)
				time.Sleep(2 * time.Second)
			}
			synctest.Wait()
			if got := synced(t, c); got != 3 || book.troubles() != 1 {
				t.Errorf("%d messages are synced, want 3, and one line in the log: %q", got, book.lines)
			}
			closeClient(t, c)
			checkStats(t, c, 8, 8, 0, 0)
			if n := c.Stats().Unspooled; n != 0 {
				t.Errorf("%d messages were in memory alone, want none", n)
			}
		})
	}
}

// A disk may lose space that was reserved. Reading or writing a mapping of that space is then a
// memory fault. The client survives the fault and loses only the messages in that space.
func TestLostFileSpaceCostsOnlyTheMessagesInIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		book := newLogbook()
		c, col := newSpoolClient(dir, nil)
		c.FlushAt, c.FlushAfter, c.Logger = 1000, time.Hour, slog.New(book)
		var told deliveryRecorder
		c.OnDelivery = told.add
		track(t, c, 3)
		synctest.Wait()
		truncateSegments(t, dir)
		track(t, c, 20)
		if book.troubles() == 0 {
			t.Error("the log does not mention the lost space")
		}
		if s := c.Stats(); s.Unspooled != 20 || !s.sums() {
			t.Errorf("Stats() = %+v, want 20 in memory alone", s)
		}
		for range 3 {
			c.Flush(t.Context())
			time.Sleep(time.Minute)
		}
		track(t, c, 2)
		closeClient(t, c)
		checkStats(t, c, 25, 22, 3, 0)
		if s := c.Stats(); s.ByReason[ReasonDamaged] != 3 {
			t.Errorf("Stats() = %+v, want 3 damaged", s)
		}
		arrived := 0
		for _, n := range col.sizes() {
			arrived += n
		}
		if arrived != 22 {
			t.Errorf("%d messages arrived, want 22", arrived)
		}
	})
}

// A spare file may have lost its space by the time the client writes messages to it. The client
// logs that, and holds the messages in memory alone.
func TestMessagesStayInMemoryIfASpareFileLostItsSpace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		book := newLogbook()
		c, _ := newSpoolClient(dir, nil)
		c.FlushAt, c.FlushAfter, c.Logger = 1000, time.Hour, slog.New(book)
		if err := c.setUpOnce(); err != nil {
			t.Fatal(err)
		}
		truncateSegments(t, dir)
		track(t, c, 3)
		if s := c.Stats(); s.Unspooled != 3 || book.troubles() != 1 {
			t.Errorf("Stats() = %+v, want 3 in memory alone; log %q", s, book.lines)
		}
		closeClient(t, c)
		checkStats(t, c, 3, 3, 0, 0)
	})
}

// A log handler may call the client, for instance to track errors. So the client must hold no
// lock while it logs.
func TestALogHandlerMayCallTheClient(t *testing.T) {
	for _, test := range []struct {
		name    string
		flushAt int
		spoil   func(t *testing.T, dir string)
	}{
		{"a message cannot be written", 1000, truncateSegments},
		{"messages of an earlier process are found", 1, nil},
		{"a file cannot be made", 1, func(t *testing.T, dir string) {
			if err := os.RemoveAll(dir); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "spool")
			c, _ := newSpoolClient(dir, hang)
			told := make(chan struct{}, 1)
			c.FlushAt, c.FlushAfter = test.flushAt, time.Hour
			c.Logger = slog.New(handlerFunc(func() {
				c.Track(&Track{UserId: "u", Event: "Logged"})
				select {
				case told <- struct{}{}:
				default:
				}
			}))
			if test.spoil != nil {
				track(t, c, 1)
				// The client makes spare files in the background. The test makes them now, so
				// that the folder does not change while test.spoil runs.
				if err := c.queue.spooler.dir.Prepare(spareSegments); err != nil {
					t.Fatal(err)
				}
				test.spoil(t, dir)
			} else {
				earlier, _ := newSpoolClient(dir, hang)
				track(t, earlier, 1)
				shutdownNow(t, earlier)
			}
			tracked := make(chan struct{})
			go func() { // the test waits for it below
				defer close(tracked)
				track(t, c, 2*maxUploads)
			}()
			// If the client held a lock while it logs, the handler would never return.
			<-tracked
			<-told
			shutdownNow(t, c)
		})
	}
}

// A handlerFunc is a slog.Handler. It is called for every log line above debug level.
type handlerFunc func()

func (f handlerFunc) Enabled(_ context.Context, l slog.Level) bool { return l > slog.LevelDebug }
func (f handlerFunc) WithAttrs([]slog.Attr) slog.Handler           { return f }
func (f handlerFunc) WithGroup(string) slog.Handler                { return f }
func (f handlerFunc) Handle(context.Context, slog.Record) error    { f(); return nil }
