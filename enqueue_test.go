package analytics

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestEnqueueWaitsForRoom(t *testing.T) {
	for _, spooled := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			c, _ := newTestClient(func(int, request) (*http.Response, error) {
				time.Sleep(time.Second)
				return status(200), nil
			})
			c.MaxMemory = MaxBatchSize
			c.FlushAt = MaxBatchCalls // never reached, so that only a full queue starts uploads
			c.FlushAfter = time.Hour
			if spooled {
				c.SpoolDir, c.SpoolMax, c.MaxMemory = t.TempDir(), minSpoolMax, minSpoolMemory
			}
			const calls = 600
			event := strings.Repeat("e", 10000)
			for range calls {
				if err := c.Enqueue(t.Context(), &Track{UserId: "u", Event: event}); err != nil {
					t.Fatal(err)
				}
				if s := c.Stats(); s.Memory > c.MaxMemory || !s.sums() {
					t.Fatalf("Stats() = %+v: the counters do not add up, or Memory exceeds %d", s, c.MaxMemory)
				}
			}
			closeClient(t, c)
			checkStats(t, c, calls, calls, 0, 0)
			if n := c.Stats().Refused; n != 0 {
				t.Errorf("%d calls refused, want 0", n)
			}
		})
	}
}

// With SpoolDir a part of MaxMemory is reserved for batches under way. So an upload makes room for
// other messages when it starts, and Enqueue does not wait for its end.
func TestEnqueueReturnsWhenAnUploadMakesRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const pause = 100 * time.Second
		c, _ := newSpoolClient(t.TempDir(), func(n int, r request) (*http.Response, error) {
			if n > 0 {
				return hang(n, r)
			}
			return status(429, "Retry-After", "100"), nil
		})
		c.MaxMemory, c.Timeout = minSpoolMemory, time.Hour
		track(t, c, DefaultFlushAt)
		synctest.Wait()
		c.queue.lock()
		c.queue.spooler.fail(errors.New("the disk is full")) // so that messages stay in memory
		c.queue.unlock()
		m := &Track{UserId: "u", Event: strings.Repeat("e", 30000)}
		start, err := time.Now(), error(nil)
		for err == nil {
			err = c.Track(m)
		}
		if err := c.Enqueue(t.Context(), m); err != nil || time.Since(start) != pause {
			t.Errorf("Enqueue = %v after %v, want nil after the pause of %v", err, time.Since(start), pause)
		}
		shutdownNow(t, c)
	})
}

func TestEnqueueStopsWaitingAtItsDeadlineAndOnClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := newTestClient(hang)
		c.Timeout = time.Hour
		c.MaxMemory = MaxBatchSize
		m := &Track{UserId: "u", Event: strings.Repeat("e", 30000)}
		var err error
		for err == nil {
			err = c.Track(m)
		}
		if err != ErrQueueFull {
			t.Fatal(err)
		}
		start := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		err = c.Enqueue(ctx, m)
		if took := time.Since(start); took != 3*time.Second || !errors.Is(err, ErrQueueFull) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Enqueue took %v, %v, want 3 s, ErrQueueFull and context.DeadlineExceeded", took, err)
		}
		if n := c.Stats().Refused; n != 2 {
			t.Errorf("%d calls refused, want 2", n)
		}
		waiting := make(chan error)
		for range 3 {
			go func() { waiting <- c.Enqueue(t.Context(), m) }()
		}
		synctest.Wait()
		closed := make(chan error)
		go func() { closed <- c.Close() }()
		for range 3 {
			if err := <-waiting; err != ErrClosed {
				t.Errorf("Enqueue while the client closes: error %v, want ErrClosed", err)
			}
		}
		if err := <-closed; err == nil {
			t.Error("Close: no error, want one because the collector hangs")
		}
	})
}

func TestEnqueueAcceptsEachTypeAndDoesNotChangeTheMessage(t *testing.T) {
	c, col := newTestClient(nil)
	// The client generates the messageId and the time of the last message.
	messages, before := append(fullMessages(), &Track{UserId: "u", Event: "e"}), append(fullMessages(), &Track{UserId: "u", Event: "e"})
	for i, m := range messages {
		if err := c.Enqueue(t.Context(), m); err != nil {
			t.Errorf("%T: %v", m, err)
		}
		if d := cmp.Diff(before[i], m); d != "" {
			t.Errorf("%T after the call (-before +after):\n%s", m, d)
		}
	}
	for _, m := range []Message{nil, (*Track)(nil)} {
		var field *FieldError
		if err := c.Enqueue(t.Context(), m); !errors.As(err, &field) {
			t.Errorf("%T nil: error %v, want a *FieldError", m, err)
		}
	}
	closeClient(t, c)
	checkSizes(t, col, len(messages))
}
