package analytics

import (
	"bytes"
	"context"
	"fmt"
	"log"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// A logbook is a slog.Handler that keeps log lines above debug level as text.
type logbook struct {
	mu    sync.Mutex
	start time.Time
	lines []string
}

func newLogbook() *logbook { return &logbook{start: time.Now()} }

func (b *logbook) Enabled(_ context.Context, l slog.Level) bool { return l > slog.LevelDebug }
func (b *logbook) WithAttrs([]slog.Attr) slog.Handler           { return b }
func (b *logbook) WithGroup(string) slog.Handler                { return b }

func (b *logbook) Handle(_ context.Context, r slog.Record) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	line := fmt.Sprintf("%v %s %s", time.Since(b.start).Truncate(time.Second), r.Level, strings.TrimPrefix(r.Message, "analytics: "))
	r.Attrs(func(a slog.Attr) bool {
		line += " " + a.String()
		return true
	})
	b.lines = append(b.lines, line)
	return nil
}

// troubles counts the log lines about SpoolDir.
func (b *logbook) troubles() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return strings.Count(strings.Join(b.lines, "\n"), "trouble with SpoolDir")
}

func TestDebugLogSaysThatACancelledAttemptFailed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var text bytes.Buffer
		c, _ := newTestClient(hang)
		c.Logger = slog.New(slog.NewTextHandler(&text, &slog.HandlerOptions{Level: slog.LevelDebug}))
		track(t, c, DefaultFlushAt)
		synctest.Wait()
		shutdownNow(t, c)
		if text := text.String(); strings.Contains(text, "batch delivered") || !strings.Contains(text, `"analytics: attempt failed" messages=20 attempt=1`) {
			t.Errorf("the log has %s, want a failed attempt and no delivered batch", text)
		}
	})
}

func TestDroppedMessagesAreLoggedOnceAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		book := newLogbook()
		c, _ := newTestClient(always(401))
		c.Logger = slog.New(book)
		c.FlushAt = 1
		for range 150 { // one message a second; the client drops all of them
			track(t, c, 1)
			time.Sleep(time.Second)
		}
		c.Close()
		const why = ` reason=refused error=analytics: the collector answered 401 Unauthorized`
		want := []string{
			"0s ERROR messages dropped messages=1" + why,
			"1m0s ERROR messages dropped messages=60" + why,
			"2m0s ERROR messages dropped messages=60" + why,
			"2m30s ERROR messages dropped messages=29" + why,
		}
		if d := cmp.Diff(want, book.lines); d != "" {
			t.Errorf("log (-want +got):\n%s", d)
		}
	})
}

// logByDefault returns a logbook that is the handler of slog.Default until the end of the test.
func logByDefault(t *testing.T) *logbook {
	logger, out, flags := slog.Default(), log.Writer(), log.Flags()
	t.Cleanup(func() {
		slog.SetDefault(logger)
		log.SetOutput(out) // SetDefault has changed these
		log.SetFlags(flags)
	})
	book := newLogbook()
	slog.SetDefault(slog.New(book))
	return book
}

// Without a Logger, warnings go to slog.Default. Information does not, and a Logger that discards
// everything silences them.
func TestWithoutALoggerWarningsGoToTheDefaultLogger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		book := logByDefault(t)
		c, _ := newTestClient(func(n int, _ request) (*http.Response, error) {
			return status([]int{401, 503, 200}[min(n, 2)]), nil
		})
		c.FlushAt = 1
		track(t, c, 1)
		synctest.Wait()
		track(t, c, 1)
		closeClient(t, c)
		want := []string{
			"0s ERROR messages dropped messages=1 reason=refused error=analytics: the collector answered 401 Unauthorized",
			"0s WARN uploads fail, will retry error=analytics: the collector answered 503 Service Unavailable",
		}
		if d := cmp.Diff(want, book.lines); d != "" {
			t.Errorf("log (-want +got):\n%s", d)
		}
		quiet, _ := newTestClient(always(401))
		quiet.Logger = slog.New(slog.DiscardHandler)
		track(t, quiet, 1)
		quiet.Close()
		if n := len(book.lines); n != 2 {
			t.Errorf("%d lines with a Logger that discards, want the 2 from before: %q", n, book.lines)
		}
	})
}

// The collector fails and recovers each second. The log has each kind of trouble once a minute,
// and no dropped message is missing in the sum.
func TestTroubleThatComesAndGoesIsLoggedOnceAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		book := newLogbook()
		c, _ := newTestClient(func(n int, _ request) (*http.Response, error) {
			return status([]int{401, 503, 200}[n%3]), nil
		})
		c.Logger, c.FlushAt = slog.New(book), 1
		for range 300 {
			track(t, c, 1)
			time.Sleep(time.Second)
		}
		closeClient(t, c)
		last, sum := map[string]time.Duration{}, 0
		for _, line := range book.lines {
			fields := strings.Fields(line)
			at, err := time.ParseDuration(fields[0])
			if err != nil {
				t.Fatal(err)
			}
			kind := strings.Join(fields[1:3], " ")
			if before, ok := last[kind]; ok && at-before < reportInterval && at < 300*time.Second {
				t.Errorf("a line %q %v after the one before, want a minute or more", line, at-before)
			}
			last[kind] = at
			var n int
			if _, err := fmt.Sscanf(fields[min(4, len(fields)-1)], "messages=%d", &n); err == nil {
				sum += n
			}
		}
		if dropped := int(c.Stats().Dropped); sum != dropped || dropped == 0 || len(last) != 3 {
			t.Errorf("the log has %d dropped messages, want %d; its lines: %q", sum, dropped, book.lines)
		}
	})
}

func TestAFullQueueIsLoggedOnceAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		book := newLogbook()
		c, _ := newTestClient(always(429, "Retry-After", "300"))
		c.Logger = slog.New(book)
		c.MaxMemory = MaxBatchSize
		m := &Track{UserId: "u", Event: strings.Repeat("e", 29000)}
		for range 17 {
			if err := c.Track(m); err != nil {
				t.Fatal(err)
			}
		}
		for range 90 {
			if err := c.Track(m); err != ErrQueueFull {
				t.Fatalf("Track: %v, want ErrQueueFull", err)
			}
			time.Sleep(time.Second)
		}
		if err := c.Close(); err == nil {
			t.Error("Close: no error, want one because the pause outlasts it")
		}
		want := []string{
			"0s ERROR queue full, messages refused messages=1",
			"5s WARN uploads fail, will retry error=analytics: the collector answered 429 Too Many Requests",
			"1m0s ERROR queue full, messages refused messages=60",
			"2m0s ERROR messages dropped messages=17 reason=shutdown error=analytics: shut down before delivery; the last attempt: analytics: the collector answered 429 Too Many Requests",
			"2m0s ERROR queue full, messages refused messages=29",
		}
		if d := cmp.Diff(want, book.lines); d != "" {
			t.Errorf("log (-want +got):\n%s", d)
		}
	})
}

func TestAnOutageIsLoggedWhenItBeginsAndEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		book := newLogbook()
		c, _ := newTestClient(func(n int, _ request) (*http.Response, error) {
			if n > 0 && n < 30 {
				return status(503), nil
			}
			return status(200), nil
		})
		c.Logger = slog.New(book)
		for range 4 {
			track(t, c, 1)
			c.Flush(t.Context())
		}
		c.Close()
		// Two batches are dropped after eleven attempts each. The third is delivered.
		var kinds []string
		for _, line := range book.lines {
			_, line, _ = strings.Cut(line, " ")
			kinds = append(kinds, line)
		}
		const why = ` reason=exhausted error=analytics: gave up after 11 attempts: analytics: the collector answered 503 Service Unavailable`
		want := []string{
			"WARN uploads fail, will retry error=analytics: the collector answered 503 Service Unavailable",
			"ERROR messages dropped messages=1" + why,
			"ERROR messages dropped messages=1" + why,
			"INFO uploads succeed again",
		}
		if d := cmp.Diff(want, kinds); d != "" {
			t.Errorf("log (-want +got):\n%s", d)
		}
	})
}
