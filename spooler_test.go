package analytics

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hookferry/analytics/internal/soakenv"
	"github.com/hookferry/analytics/internal/spool"
)

func newSpoolClient(dir string, answer func(int, request) (*http.Response, error)) (*Client, *collector) {
	c, col := newTestClient(answer)
	c.SpoolDir = dir
	return c, col
}

// checkSpool checks that Stats accounts for every message, and that it counts the given number
// of messages on disk.
func checkSpool(t *testing.T, c *Client, spooled int) {
	t.Helper()
	s := c.Stats()
	if !s.sums() || s.Spooled != spooled {
		t.Errorf("Stats() = %+v, want counters that add up and %d spooled", s, spooled)
	}
}

// sums reports whether s accounts for every message.
func (s Stats) sums() bool {
	return s.Queued+s.Recovered == s.Delivered+s.Dropped+uint64(s.Pending)+uint64(s.Spooled)
}

func TestShutdownKeepsUndeliveredMessagesOnDisk(t *testing.T) {
	for _, test := range []struct {
		name   string
		answer func(int, request) (*http.Response, error)
	}{
		{"collector hangs", hang},
		{"back-off", always(503)},
		{"pause", always(429, "Retry-After", "3000")},
	} {
		bubble(t, test.name, func(t *testing.T) {
			dir := t.TempDir()
			c, _ := newSpoolClient(dir, test.answer)
			for range maxUploads {
				track(t, c, DefaultFlushAt)
				synctest.Wait()
			}
			track(t, c, MaxBatchCalls+10)
			queued := int(c.Stats().Queued)
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
			defer cancel()
			for range 2 {
				err := c.Shutdown(ctx)
				checkUndelivered(t, err, UndeliveredError{Spooled: queued})
				checkSpool(t, c, queued)
			}

			next, col := newSpoolClient(dir, nil)
			flush(t, next)
			s := next.Stats()
			if s.Recovered != uint64(queued) || s.Delivered != uint64(queued) || !s.sums() || s.Memory != 0 {
				t.Errorf("Stats() = %+v, want %d recovered and delivered", s, queued)
			}
			if n := col.distinct(); n != queued {
				t.Errorf("%d different messages arrived, want %d", n, queued)
			}
			closeClient(t, next)
			last, _ := newSpoolClient(dir, nil)
			track(t, last, 1)
			if n := last.Stats().Recovered; n != 0 {
				t.Errorf("%d messages recovered after all were delivered, want none", n)
			}
			closeClient(t, last)
		})
	}
}

func TestFlushCountsMessagesLeftOnDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, col := newSpoolClient(t.TempDir(), always(503))
		for i := range 2 { // in the outage, the second Flush makes one attempt
			before := len(col.got())
			track(t, c, 3)
			err := c.Flush(t.Context())
			checkUndelivered(t, err, UndeliveredError{Spooled: 3 * (i + 1)})
			if n, want := len(col.got())-before, []int{1 + maxRetries, 1}[i]; n != want {
				t.Errorf("%d attempts, want %d", n, want)
			}
		}
		last := col.got()[maxRetries+1]
		if got := last.header.Get(retryCountHeader); got != "11" {
			t.Errorf("%s: %q in the twelfth attempt, want 11", retryCountHeader, got)
		}
		col.recover()
		closeClient(t, c)
		if s := c.Stats(); s.Delivered != 6 || !s.sums() {
			t.Errorf("Stats() = %+v, want 6 delivered", s)
		}
	})
}

func TestEveryCallReturnsAConfigErrorForAnUnusableSpool(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	owner, _ := newSpoolClient(dir, nil)
	track(t, owner, 1)
	for _, test := range []struct {
		name  string
		set   func(*Client)
		field string
	}{
		{"a folder in use", func(c *Client) { c.SpoolDir = dir }, "SpoolDir"},
		{"a file in place of a folder", func(c *Client) { c.SpoolDir = file }, "SpoolDir"},
		{"too little memory", func(c *Client) { c.MaxMemory = minSpoolMemory - 1 }, "MaxMemory"},
		{"too little space", func(c *Client) { c.SpoolMax = minSpoolMax - 1 }, "SpoolMax"},
	} {
		t.Run(test.name, func(t *testing.T) {
			c, _ := newSpoolClient(t.TempDir(), nil)
			test.set(c)
			calls := everyCall(c)
			calls["Flush"] = func() error { return c.Flush(t.Context()) }
			for name, call := range calls {
				err := call()
				var config *ConfigError
				if !errors.As(err, &config) || config.Field != test.field {
					t.Errorf("%s: error %v, want a *ConfigError about %s", name, err, test.field)
				}
			}
			closeClient(t, c)
		})
	}
	closeClient(t, owner)
}

// leaveMessages lets a client leave n messages in a folder. It returns the folder and the file
// with the messages. Use it in bubbles. In real time, a slow disk may take longer than Shutdown
// waits for cancelled uploads.
func leaveMessages(t *testing.T, n int) (dir, file string) {
	t.Helper()
	dir = t.TempDir()
	c, _ := newSpoolClient(dir, hang)
	track(t, c, n)
	checkUndelivered(t, shutdownNow(t, c), UndeliveredError{Spooled: n})
	files := segments(t, dir)
	if len(files) != 1 {
		t.Fatalf("files %q, want one", files)
	}
	return dir, files[0]
}

// changeFile replaces the content of a file by the result of change.
func changeFile(t *testing.T, file string, change func(text []byte) []byte) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, change(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestDamagedMessagesAreDroppedAndTheirFileSetAside(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir, file := leaveMessages(t, 10)
		changeFile(t, file, func(text []byte) []byte {
			text[bytes.LastIndex(text, []byte("u-1"))] ^= 1
			return text
		})
		next, col := newSpoolClient(dir, nil)
		var got deliveryRecorder
		next.OnDelivery = got.add
		err := next.Flush(t.Context())
		if e := (*UndeliveredError)(nil); !errors.As(err, &e) || e.Delivered != 9 || e.Dropped != 1 || !errors.Is(err, errDamaged) {
			t.Errorf("Flush: %v, want 9 messages delivered and 1 dropped because of damage", err)
		}
		s := next.Stats()
		if s.Recovered != 10 || s.Delivered != 9 || s.ByReason[ReasonDamaged] != 1 || !s.sums() || len(got.got()) != 2 {
			t.Errorf("Stats() = %+v, OnDelivery got %+v, want 9 delivered and 1 damaged", s, got.got())
		}
		if n := col.sizes(); len(n) != 1 || n[0] != 9 {
			t.Errorf("messages per request: %v, want 9", n)
		}
		if _, err := os.Stat(file + ".aside"); err != nil {
			t.Errorf("the damaged file is not set aside: %v", err)
		}
		closeClient(t, next)
	})
}

// If every message of a file is damaged, the client sends no request. It still considers the
// collector down, because no request has succeeded.
func TestAFileWithOnlyDamagedMessagesCausesNoRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir, file := leaveMessages(t, 3)
		changeFile(t, file, func(text []byte) []byte { return bytes.ReplaceAll(text, []byte("userId"), []byte("userXX")) })
		next, col := newSpoolClient(dir, nil)
		if err := next.setUpOnce(); err != nil {
			t.Fatal(err)
		}
		next.queue.lock()
		next.queue.outage.limit, next.queue.outage.down = 1, true
		next.queue.unlock()
		err := next.Flush(t.Context())
		checkUndelivered(t, err, UndeliveredError{Dropped: 3})
		if s := next.Stats(); s.ByReason[ReasonDamaged] != 3 || !s.sums() {
			t.Errorf("Stats() = %+v, want 3 damaged", s)
		}
		if n := col.sizes(); len(n) != 0 {
			t.Errorf("messages per request: %v, want no request", n)
		}
		next.queue.lock()
		if !next.queue.outage.down || next.queue.outage.limit != 1 {
			t.Error("the client considers the collector back although no request succeeded")
		}
		next.queue.unlock()
		closeClient(t, next)
	})
}

// If a file has been removed, the client drops all its messages as damaged. OnDelivery may ask
// the delivery for its messages, and gets none.
func TestMessagesOfARemovedFileAreDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir, file := leaveMessages(t, 3)
		next, _ := newSpoolClient(dir, nil)
		var got deliveryRecorder
		next.OnDelivery = got.add
		if err := next.setUpOnce(); err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
		err := next.Flush(t.Context())
		checkUndelivered(t, err, UndeliveredError{Dropped: 3})
		if d := got.got(); len(d) != 1 || d[0].Count != 3 || d[0].Reason != ReasonDamaged || len(got.messages) > 0 {
			t.Errorf("OnDelivery got %+v with the messages %q, want 3 damaged and no messages", d, got.messages)
		}
		if s := next.Stats(); s.ByReason[ReasonDamaged] != 3 || !s.sums() {
			t.Errorf("Stats() = %+v, want 3 damaged", s)
		}
		closeClient(t, next)
	})
}

// The deadline of Shutdown may pass before maintenance moves batches to the disk. Shutdown
// counts these batches as spooled, too.
func TestShutdownCountsBatchesMovedToDiskAfterItsDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stuck := make(chan struct{})
		c, _ := newSpoolClient(t.TempDir(), func(int, request) (*http.Response, error) {
			<-stuck
			return nil, io.ErrUnexpectedEOF
		})
		c.FlushAt, c.MaxMemory = 1, minSpoolMemory
		track(t, c, maxUploads)
		synctest.Wait()
		c.queue.lock()
		c.queue.maintaining = true // so that no maintenance starts before the call below
		c.queue.unlock()
		const waiting = 30 // one full batch, and a second one
		for range waiting {
			if err := c.Track(&Track{UserId: "u", Event: strings.Repeat("e", 30000)}); err != nil {
				t.Fatal(err)
			}
		}
		w := c.queue.flushAll(true)
		c.queue.cancelUploads(w)
		c.queue.maintenance()
		close(stuck)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		w.wait(ctx)
		checkUndelivered(t, w.result(ctx.Err()), UndeliveredError{Spooled: maxUploads + waiting})
		checkUndelivered(t, c.Shutdown(ctx), UndeliveredError{Spooled: maxUploads + waiting})
	})
}

// Shutdown counts a batch on disk as spooled. If the collector comes back meanwhile, the client
// uploads that batch again. If this upload hangs, Shutdown does not wait for it.
func TestShutdownDoesNotWaitForAStuckUploadOfASpooledBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := map[any]chan struct{}{"slow": make(chan struct{}), "slower": make(chan struct{})}
		stuck := make(chan struct{})
		c, _ := newSpoolClient(t.TempDir(), func(_ int, r request) (*http.Response, error) {
			retries, _ := strconv.Atoi(r.header.Get(retryCountHeader))
			switch event := r.messages[0]["event"]; {
			case slow[event] != nil:
				<-slow[event]
				return status(200), nil
			case retries <= maxRetries:
				return status(503), nil
			}
			<-stuck // ignores the context
			return nil, io.ErrUnexpectedEOF
		})
		c.FlushAt, c.Timeout = 1, 24*time.Hour
		for _, event := range []string{"fails", "slow", "slower"} {
			if err := c.Track(&Track{UserId: "u", Event: event}); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		ended := make(chan error, 1)
		go func() { // the test waits for it below
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Hour)
			defer cancel()
			ended <- c.Shutdown(ctx)
		}()
		time.Sleep(time.Hour)
		checkSpool(t, c, 1)
		close(slow["slow"])
		synctest.Wait()
		checkSpool(t, c, 0) // the client uploads the batch again
		close(slow["slower"])
		time.Sleep(2 * cancelGrace)
		select {
		case err := <-ended:
			checkUndelivered(t, err, UndeliveredError{Delivered: 2, Spooled: 1})
		default:
			t.Error("Shutdown waits for an upload that hangs")
		}
		close(stuck)
		synctest.Wait()
		checkUndelivered(t, c.Shutdown(t.Context()), UndeliveredError{Spooled: 1})
	})
}

func TestMessagesAreHeldInMemoryWhileTheDiskFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := newSpoolClient(t.TempDir(), nil)
		track(t, c, DefaultFlushAt)
		synctest.Wait()
		c.queue.mu.Lock()
		c.queue.spooler.fail(errors.New("the disk is full"))
		c.queue.mu.Unlock()
		track(t, c, DefaultFlushAt)
		synctest.Wait()
		time.Sleep(diskPause)
		track(t, c, DefaultFlushAt)
		closeClient(t, c)
		if s := c.Stats(); s.Unspooled != DefaultFlushAt || s.Delivered != 3*DefaultFlushAt || !s.sums() {
			t.Errorf("Stats() = %+v, want all delivered, and %d held in memory alone", s, DefaultFlushAt)
		}
	})
}

func TestMessagesHeldInMemoryMoveToTheDisk(t *testing.T) {
	for _, test := range []struct {
		name string
		end  func(*testing.T, *Client) // ends the client so that the messages are on disk
	}{
		{"retries exhausted", func(t *testing.T, c *Client) {
			time.Sleep(time.Hour)
			synctest.Wait()
			checkSpool(t, c, DefaultFlushAt)
			checkUndelivered(t, c.Close(), UndeliveredError{Spooled: DefaultFlushAt})
		}},
		{"shutdown", func(t *testing.T, c *Client) {
			time.Sleep(2 * diskPause)
			checkUndelivered(t, shutdownNow(t, c), UndeliveredError{Spooled: DefaultFlushAt})
		}},
	} {
		bubble(t, test.name, func(t *testing.T) {
			dir := t.TempDir()
			c, _ := newSpoolClient(dir, always(503))
			if err := c.Flush(t.Context()); err != nil {
				t.Fatal(err)
			}
			c.queue.lock()
			c.queue.spooler.fail(errors.New("the disk is full"))
			c.queue.unlock()
			track(t, c, DefaultFlushAt)
			test.end(t, c)
			if s := c.Stats(); s.Unspooled != DefaultFlushAt || s.Dropped != 0 || s.Memory != 0 {
				t.Errorf("Stats() = %+v, want %d unspooled at first and none dropped", s, DefaultFlushAt)
			}
			next, col := newSpoolClient(dir, nil)
			flush(t, next)
			if n := col.sizes(); len(n) != 1 || n[0] != DefaultFlushAt {
				t.Errorf("the next client sent batches of %v messages, want one of %d", n, DefaultFlushAt)
			}
			closeClient(t, next)
		})
	}
}

// While the collector is down, a batch on disk gets a single attempt. But a batch that the disk cannot
// take gets all its attempts before it is dropped.
func TestMessagesHeldInMemoryGetAllAttemptsDuringAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		full := make(chan struct{})
		c, _ := newSpoolClient(t.TempDir(), func(n int, _ request) (*http.Response, error) {
			switch {
			case n <= maxRetries: // the first batch stays on disk
				return status(503), nil
			case n == maxRetries+1: // and is then refused
				return status(400), nil
			case n == maxRetries+2:
				<-full
				return status(503), nil
			}
			return status(200), nil
		})
		c.SpoolMax = minSpoolMax
		track(t, c, DefaultFlushAt)
		time.Sleep(time.Hour)
		c.queue.lock()
		c.queue.spooler.fail(errors.New("the disk is full"))
		c.queue.unlock()
		track(t, c, DefaultFlushAt)
		time.Sleep(diskPause)
		m := &Track{UserId: "u", Event: strings.Repeat("e", 30000)}
		for err := error(nil); err != ErrQueueFull; { // now the folder is full
			synctest.Wait()
			if err = c.Track(m); err != nil && err != ErrQueueFull {
				t.Fatal(err)
			}
		}
		close(full)
		closeClient(t, c)
		if s := c.Stats(); s.ByReason[ReasonExhausted] != 0 || s.ByReason[ReasonRefused] != DefaultFlushAt || s.Unspooled != DefaultFlushAt || !s.sums() {
			t.Errorf("Stats() = %+v, want %d refused, and none exhausted", s, DefaultFlushAt)
		}
	})
}

// The collector never takes one of the batches. It does not count as down for the other batches,
// which may have failed, too, or be new.
func TestABatchThatAlwaysFailsHoldsUpNoOtherBatch(t *testing.T) {
	for _, test := range []struct {
		code int
		wait time.Duration // in which others are sent beside the batch
	}{
		{500, time.Hour},
		{403, time.Minute}, // such as of a firewall for applications
	} {
		bubble(t, strconv.Itoa(test.code), func(t *testing.T) {
			var up atomic.Bool
			c, _ := newSpoolClient(t.TempDir(), func(_ int, r request) (*http.Response, error) {
				if !up.Load() || bytes.Contains(r.body, []byte("poison")) {
					return status(test.code), nil
				}
				return status(200), nil
			})
			send := func(event string) {
				t.Helper()
				if err := c.Track(&Track{UserId: "u", Event: event}); err != nil {
					t.Fatal(err)
				}
				time.Sleep(test.wait)
				synctest.Wait()
			}
			send("poison")
			send("during the outage")
			checkSpool(t, c, 2)
			up.Store(true)
			send("after the outage")
			send("later")
			if s := c.Stats(); s.Delivered != 3 || s.Spooled+s.Pending != 1 {
				t.Errorf("Stats() = %+v, want all delivered but one", s)
			}
			shutdownNow(t, c)
		})
	}
}

// Shutdown tries to send the messages in memory, and then moves them to the disk. It does not wait for
// the end of an outage, even if its context never ends.
func TestShutdownDuringAnOutageMovesMessagesToTheDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := newSpoolClient(t.TempDir(), always(503))
		track(t, c, 1)
		time.Sleep(time.Hour)
		c.queue.lock()
		c.queue.spooler.fail(errors.New("the disk is full"))
		c.queue.unlock()
		track(t, c, 1)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Hour)
		defer cancel()
		checkUndelivered(t, c.Shutdown(ctx), UndeliveredError{Spooled: 2})
		if err := ctx.Err(); err != nil {
			t.Errorf("Shutdown waited until its deadline: %v", err)
		}
	})
}

// shutdownNow calls Shutdown with a context that has already ended.
func shutdownNow(t *testing.T, c *Client) error {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return c.Shutdown(ctx)
}

// segments returns the segment files in a folder, at least one.
func segments(t *testing.T, dir string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "segment-*"))
	if err != nil || len(files) == 0 {
		t.Fatalf("files %q, %v, want some", files, err)
	}
	return files
}

// truncateSegments truncates the files in a folder, like a disk that loses their content.
func truncateSegments(t *testing.T, dir string) {
	t.Helper()
	for _, name := range segments(t, dir) {
		if err := os.Truncate(name, 0); err != nil {
			t.Fatal(err)
		}
	}
}

// A rolling restart starts the next process before the previous one has ended. So a client that
// finds its folder in use tries again after startPause.
func TestAClientOpensAFolderOnceItIsNoLongerInUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		first, _ := newSpoolClient(dir, nil)
		track(t, first, 1)
		second, _ := newSpoolClient(dir, nil)
		call := func() error { return second.Track(&Track{UserId: "u", Event: "e"}) }
		var config *ConfigError
		if err := call(); !errors.As(err, &config) || !errors.Is(err, spool.ErrLocked) {
			t.Errorf("Track: %v, want a *ConfigError", err)
		}
		closeClient(t, first)
		time.Sleep(startPause - 1)
		if err := call(); !errors.As(err, &config) {
			t.Errorf("Track: %v, want a *ConfigError", err)
		}
		time.Sleep(1 * time.Nanosecond)
		if err := call(); err != nil {
			t.Errorf("Track: %v, want nil", err)
		}
		closeClient(t, second)
		checkStats(t, second, 1, 1, 0, 0)
	})
}

func TestMessagesArriveWithSyncEachCall(t *testing.T) {
	c, _ := newSpoolClient(t.TempDir(), nil)
	c.SpoolSync = SyncEachCall
	track(t, c, 50)
	closeClient(t, c)
	checkStats(t, c, 50, 50, 0, 0)
}

// A numberedCollector is a collector of messages whose event is a number. It records which
// messages have arrived.
type numberedCollector struct {
	mu         sync.Mutex
	down       bool          // answers 503
	took       time.Duration // how long each request takes
	seen       []bool        // by number
	twice      int           // messages that arrived again
	inFlight   int           // accepted requests that are not answered yet
	inFlightAt []int         // for each accepted request, the value of inFlight when it began
	attempt    int           // all requests
}

func (y *numberedCollector) RoundTrip(req *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(req.Body)
	req.Body.Close()
	if err != nil {
		return nil, err
	}
	y.mu.Lock()
	defer y.mu.Unlock()
	y.attempt++
	if y.down {
		return status(503), nil
	}
	y.inFlight++
	y.inFlightAt = append(y.inFlightAt, y.inFlight)
	y.mu.Unlock()
	time.Sleep(y.took)
	y.mu.Lock()
	y.inFlight--
	for {
		_, rest, ok := bytes.Cut(body, []byte(`"event":"`))
		if !ok {
			return status(200), nil
		}
		digits, rest, _ := bytes.Cut(rest, []byte(`"`))
		body = rest
		n, err := strconv.Atoi(string(digits))
		if err != nil {
			return nil, err
		}
		for len(y.seen) <= n {
			y.seen = append(y.seen, false)
		}
		if y.seen[n] {
			y.twice++
		}
		y.seen[n] = true
	}
}

// After an outage of an hour, a client with SpoolDir delivers all messages once, without a
// stampede at the end. The test makes 20 calls a second and, in the soak, 2,000. A client
// without SpoolDir drops or refuses messages, and counts them.
func TestAnOutageOfAnHour(t *testing.T) {
	perSecond := 20
	if soakenv.On() {
		perSecond = 2000
	}
	for _, spooled := range []bool{true, false} {
		t.Run(fmt.Sprintf("spool=%t", spooled), func(t *testing.T) {
			dir := t.TempDir()
			synctest.Test(t, func(t *testing.T) {
				y := &numberedCollector{down: true, took: 50 * time.Millisecond}
				c := New("k")
				c.Transport = y
				c.MaxMemory = 8 << 20
				c.SpoolMax = 4 << 30
				if spooled {
					c.SpoolDir = dir
				}
				made, refused := 0, 0
				m := Track{UserId: "u"}
				for range 3600 {
					for range perSecond {
						m.Event = strconv.Itoa(made)
						switch err := c.Track(&m); err {
						case nil:
						case ErrQueueFull:
							refused++
						default:
							t.Fatal(err)
						}
						made++
					}
					if s := c.Stats(); !s.sums() || s.Memory > c.MaxMemory {
						t.Fatalf("Stats() = %+v: the counters do not add up, or Memory exceeds %d", s, c.MaxMemory)
					}
					time.Sleep(time.Second)
				}
				y.mu.Lock()
				y.down = false
				attempts := y.attempt
				y.mu.Unlock()
				for s := c.Stats(); s.Pending+s.Spooled > 0; s = c.Stats() {
					if !s.sums() || s.Memory > c.MaxMemory {
						t.Fatalf("Stats() = %+v: the counters do not add up, or Memory exceeds %d", s, c.MaxMemory)
					}
					time.Sleep(time.Second)
				}
				closeClient(t, c)
				s := c.Stats()
				arrived := 0
				for _, ok := range y.seen {
					if ok {
						arrived++
					}
				}
				if y.twice != 0 || uint64(arrived) != s.Delivered || s.Delivered+s.Dropped+uint64(refused) != uint64(made) || s.Refused != uint64(refused) {
					t.Errorf("%d made, %d refused, %d arrived, %d again, Stats() = %+v: the counters do not add up", made, refused, arrived, y.twice, s)
				}
				if spooled {
					if arrived != made {
						t.Errorf("%d messages arrived, want %d", arrived, made)
					}
					if attempts > 420 {
						t.Errorf("%d attempts in an hour, want at most 420", attempts)
					}
					// To avoid a stampede, the client begins with one upload at a time. Each
					// batch that is accepted allows one more.
					for i, want := range []int{1, 2, 3, 4} {
						if i < len(y.inFlightAt) && y.inFlightAt[i] > want {
							t.Errorf("%d requests in flight at the accepted request %d, want at most %d", y.inFlightAt[i], i+1, want)
						}
					}
				}
				for i, n := range y.inFlightAt {
					if n > maxUploads {
						t.Errorf("%d requests in flight at the accepted request %d, want at most %d", n, i+1, maxUploads)
					}
				}
				t.Logf("%d made, %d arrived, %d dropped, %d refused; %d attempts in the outage", made, arrived, s.Dropped, refused, attempts)
			})
		})
	}
}

// At SpoolMax the client refuses calls, and it keeps and later delivers the stored messages.
func TestTrackReturnsErrQueueFullAtSpoolMax(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := &numberedCollector{down: true}
		c := New("k")
		c.Transport, c.SpoolDir, c.SpoolMax = y, t.TempDir(), minSpoolMax
		accepted := 0
		for {
			err := c.Track(&Track{UserId: "u", Event: strconv.Itoa(accepted), Properties: map[string]any{"text": strings.Repeat("t", 1000)}})
			if err == ErrQueueFull {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			accepted++
		}
		used := int64(0)
		for _, name := range segments(t, c.SpoolDir) {
			if info, err := os.Stat(name); err == nil {
				used += info.Size()
			}
		}
		if spare := int64(minSpoolMax / (maxUploads + 2)); used > c.SpoolMax+spare {
			t.Errorf("%d bytes on disk, want at most %d and a spare file", used, c.SpoolMax)
		}
		y.mu.Lock()
		y.down = false
		y.mu.Unlock()
		if err := c.Close(); err != nil || len(y.seen) != accepted {
			t.Errorf("Close: %v; %d messages arrived, want %d", err, len(y.seen), accepted)
		}
	})
}

// BenchmarkTrackSpooled measures a call with SpoolDir. It prints the ratio to a call
// without SpoolDir, measured alternately in the same run. It uses one processor, so that
// the time includes the uploads, which a transport discards.
func BenchmarkTrackSpooled(b *testing.B) {
	for _, flushAt := range []int{DefaultFlushAt, 250, MaxBatchCalls} {
		b.Run(fmt.Sprintf("flushAt=%d", flushAt), func(b *testing.B) {
			defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
			props := tenProperties()
			calls := func(dir string) (*Client, func()) {
				c := benchClient()
				c.FlushAt, c.SpoolDir = flushAt, dir
				return c, func() {
					if err := c.Track(&Track{UserId: "u-2041", Event: "Order Completed", Properties: props}); err != nil && err != ErrQueueFull {
						b.Fatal(err)
					}
				}
			}
			without, callWithout := calls("")
			with, callWith := calls(b.TempDir())
			b.ReportAllocs()
			for b.Loop() {
				callWith()
			}
			b.StopTimer()
			b.ReportMetric(ratios(b, callWith, callWithout)[0], "x_without")
			refused := uint64(0)
			for _, c := range []*Client{without, with} {
				if err := c.Close(); err != nil {
					b.Fatal(err)
				}
				refused += c.Stats().Refused
			}
			if refused > 0 {
				b.ReportMetric(float64(refused), "refused")
			}
		})
	}
}
