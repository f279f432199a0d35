package analytics

import (
	"context"
	"errors"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestFlushShutdownAndCloseWorkBeforeTheFirstCall(t *testing.T) {
	c, _ := newTestClient(nil)
	flush(t, c)
	if err := c.Shutdown(t.Context()); err != nil {
		t.Errorf("Shutdown: %v", err)
	}
	for range 2 {
		closeClient(t, c)
	}
	if err := c.Track(&Track{UserId: "u", Event: "e"}); err != ErrClosed {
		t.Errorf("Track after Close: error %v, want ErrClosed", err)
	}
	flush(t, c)
	checkStats(t, c, 0, 0, 0, 0)
}

func TestCallsAfterCloseAreRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, col := newTestClient(nil)
		track(t, c, 3)
		for range 3 {
			closeClient(t, c)
		}
		for name, call := range everyCall(c) {
			if err := call(); err != ErrClosed {
				t.Errorf("%s after Close: error %v, want ErrClosed", name, err)
			}
		}
		checkSizes(t, col, 3)
		checkStats(t, c, 3, 3, 0, 0)
	})
}

func TestFlushWaitsForUploads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		c, col := newTestClient(func(n int, _ request) (*http.Response, error) {
			time.Sleep(time.Duration(n+1) * time.Second)
			return status(200), nil
		})
		c.FlushAt = 2
		track(t, c, 2) // uploaded at once, which takes 1 s
		synctest.Wait()
		track(t, c, 1) // would wait for 5 s; Flush uploads it, which takes 2 s
		if err := c.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start); took != 2*time.Second {
			t.Errorf("Flush took %v, want 2 s", took)
		}
		checkSizes(t, col, 2, 1)
		checkStats(t, c, 3, 3, 0, 0)
		track(t, c, 1) // the client can still be used
		closeClient(t, c)
		checkStats(t, c, 4, 4, 0, 0)
	})
}

func TestFlushCountsMessagesQueuedBeforeIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, col := newTestClient(func(n int, _ request) (*http.Response, error) {
			time.Sleep(time.Second)
			if n < maxUploads {
				return status(200), nil
			}
			return status(400), nil
		})
		c.FlushAt = 1
		for range maxUploads {
			track(t, c, 1)
		}
		track(t, c, 5) // these wait in the collecting batch
		done := make(chan error)
		go func() { done <- c.Flush(t.Context()) }()
		synctest.Wait()
		track(t, c, 7) // these join the batch, but Flush does not count them
		err := <-done
		checkUndelivered(t, err, UndeliveredError{Delivered: maxUploads, Dropped: 5})
		want := "analytics: 5 of 9 messages not delivered: analytics: the collector answered 400 Bad Request"
		if err.Error() != want {
			t.Errorf("Flush: %q, want %q", err, want)
		}
		checkSizes(t, col, 1, 1, 1, 1, 12)
		closeClient(t, c)
	})
}

func TestFlushLeavesMessagesPendingAtItsDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := newTestClient(statusThenOK(1, 429, "Retry-After", "60"))
		track(t, c, 2)
		ctx, cancel := context.WithTimeout(t.Context(), 59*time.Second)
		defer cancel()
		err := c.Flush(ctx)
		checkUndelivered(t, err, UndeliveredError{Pending: 2})
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Flush: %v, want context.DeadlineExceeded", err)
		}
		if want := "analytics: 2 of 2 messages not delivered, 2 of them pending: context deadline exceeded"; err.Error() != want {
			t.Errorf("Flush: %q, want %q", err, want)
		}
		checkStats(t, c, 2, 0, 0, 2)
		flush(t, c)
		checkStats(t, c, 2, 2, 0, 0)
		closeClient(t, c)
	})
}

// At its deadline, Flush counts all batches that were settled, even if an older batch is still
// pending.
func TestFlushCountsBatchesSettledOutOfOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := newTestClient(func(n int, r request) (*http.Response, error) {
			if n == 0 {
				return hang(n, r)
			}
			time.Sleep(time.Millisecond)
			return status(200), nil
		})
		c.FlushAt = 1
		track(t, c, 1)
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		track(t, c, 2)
		err := c.Flush(ctx)
		checkUndelivered(t, err, UndeliveredError{Delivered: 2, Pending: 1})
		closeClient(t, c)
	})
}

func TestFlushWithACancelledContextStillSendsTheBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, col := newTestClient(func(int, request) (*http.Response, error) {
			time.Sleep(time.Second)
			return status(200), nil
		})
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		track(t, c, 1)
		if err := c.Flush(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("Flush: %v, want context.Canceled", err)
		}
		synctest.Wait()
		checkSizes(t, col, 1)
		time.Sleep(time.Second)
		synctest.Wait()
		if err := c.Flush(ctx); err != nil {
			t.Errorf("Flush without messages: error %v, want none", err)
		}
		closeClient(t, c)
	})
}

func TestShutdownDropsAtItsDeadlineWhatIsNotDelivered(t *testing.T) {
	for _, test := range []struct {
		name     string
		answer   func(int, request) (*http.Response, error)
		attempts bool
		text     string // what OnDelivery's error says about the last attempt
	}{
		{"collector hangs", hang, true, ""},
		{"back-off", always(503), true, "503 Service Unavailable"},
		{"pause", always(429, "Retry-After", "3000"), true, "429 Too Many Requests"},
	} {
		bubble(t, test.name, func(t *testing.T) {
			start := time.Now()
			var got deliveryRecorder
			c, _ := newTestClient(test.answer)
			c.OnDelivery = got.add
			for range maxUploads {
				track(t, c, DefaultFlushAt)
				synctest.Wait()
			}
			track(t, c, MaxBatchCalls+10) // a full batch that waits, and the collecting one
			queued := c.Stats().Queued
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
			defer cancel()
			err := c.Shutdown(ctx)
			if took := time.Since(start); took != 3*time.Second {
				t.Errorf("Shutdown took %v, want 3 s", took)
			}
			checkUndelivered(t, err, UndeliveredError{Dropped: int(queued)})
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("Shutdown: %v, want context.DeadlineExceeded", err)
			}
			checkStats(t, c, queued, 0, queued, 0)
			if n := c.Stats().ByReason[ReasonShutdown]; n != queued {
				t.Errorf("ByReason[ReasonShutdown] = %d, want %d", n, queued)
			}
			told := 0
			attempted := false
			for _, d := range got.got() {
				told += d.Count
				attempted = attempted || d.Attempts > 0 && strings.Contains(d.Err.Error(), test.text)
				if d.Reason != ReasonShutdown || d.Err == nil {
					t.Errorf("OnDelivery got %+v, want ReasonShutdown", d)
				}
			}
			if told != int(queued) || len(got.messages) != told || !attempted {
				t.Errorf("OnDelivery counted %d messages and got %d, the error names the last attempt: %t, want %d messages and true", told, len(got.messages), attempted, queued)
			}
			if err := c.Shutdown(t.Context()); err != nil {
				t.Errorf("second Shutdown: %v, want nil, as no message is left", err)
			}
		})
	}
}

func TestShutdownDeliversUpToItsDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := newTestClient(func(n int, r request) (*http.Response, error) {
			if n == 0 {
				time.Sleep(time.Second)
				return status(200), nil
			}
			return hang(n, r)
		})
		c.FlushAt = 1
		track(t, c, 1)
		synctest.Wait()
		track(t, c, 1)
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		err := c.Shutdown(ctx)
		checkUndelivered(t, err, UndeliveredError{Delivered: 1, Dropped: 1})
		checkStats(t, c, 2, 1, 1, 0)
	})
}

func TestAnIdleClientHoldsNoGoroutine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := newTestClient(nil)
		track(t, c, 100)
		if err := c.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		// The test does not close c. The bubble panics if a goroutine of c still waits.
	})
}

func TestConcurrentShutdownsEndAtTheEarliestDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		c, _ := newTestClient(hang)
		c.Timeout = time.Hour
		track(t, c, 5)
		var wg sync.WaitGroup
		for i := range 3 {
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i+1)*time.Second)
				defer cancel()
				checkUndelivered(t, c.Shutdown(ctx), UndeliveredError{Dropped: 5})
			})
		}
		wg.Go(func() {
			checkUndelivered(t, c.Flush(t.Context()), UndeliveredError{Dropped: 5})
		})
		wg.Wait()
		if took := time.Since(start); took != time.Second {
			t.Errorf("all calls took %v, want 1 s, the earliest deadline", took)
		}
	})
}

func TestCloseGivesUpAfterThirtySeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		c, _ := newTestClient(always(503))
		track(t, c, 1)
		// The retries might end before 30 s, so the test pauses the client for longer.
		c.queue.throttle.pause(time.Hour)
		err := c.Close()
		if took := time.Since(start); took != 30*time.Second || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Close took %v, %v, want 30 s and context.DeadlineExceeded", took, err)
		}
	})
}

// Shutdown waits at most cancelGrace for a transport that ignores its context.
func TestShutdownDoesNotWaitForATransportThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		c, _ := newTestClient(func(int, request) (*http.Response, error) {
			time.Sleep(time.Minute)
			return nil, errors.New("too late")
		})
		track(t, c, 2)
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		err := c.Shutdown(ctx)
		if took := time.Since(start); took != 2*time.Second+cancelGrace {
			t.Errorf("Shutdown took %v, want %v", took, 2*time.Second+cancelGrace)
		}
		checkUndelivered(t, err, UndeliveredError{Pending: 2})
		checkUndelivered(t, c.Shutdown(t.Context()), UndeliveredError{Dropped: 2})
		checkStats(t, c, 2, 0, 2, 0)
	})
}

// Flush returns after OnDelivery has returned. So a program can then read the variables that
// OnDelivery sets.
func TestFlushReturnsAfterOnDelivery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := newTestClient(nil)
		told := 0
		c.OnDelivery = func(d Delivery) {
			time.Sleep(time.Second)
			told += d.Count
		}
		track(t, c, 3)
		if err := c.Flush(t.Context()); err != nil || told != 3 {
			t.Errorf("Flush: error %v, OnDelivery counted %d messages, want 3", err, told)
		}
		closeClient(t, c)
	})
}

// Many goroutines make calls while others call Flush, Stats and Close. No message is lost
// or counted twice, and the counters add up at any moment.
func TestNoMessageIsLostIfCallsRaceWithClose(t *testing.T) {
	for _, test := range []struct {
		name   string
		answer func(int, request) (*http.Response, error)
	}{
		{"the collector accepts all batches", nil},
		{"the collector accepts every other batch", func(n int, _ request) (*http.Response, error) { return status([]int{200, 400}[n%2]), nil }},
	} {
		t.Run(test.name, func(t *testing.T) {
			const callers, calls = 8, 2000 // the first caller continues until a call is refused
			c, col := newTestClient(test.answer)
			c.MaxMemory = MaxBatchSize
			c.FlushAt = 7
			var told [2]atomic.Uint64 // messages reported to OnDelivery: delivered, dropped
			c.OnDelivery = func(d Delivery) {
				i := 0
				if d.Err != nil {
					i = 1
				}
				told[i].Add(uint64(d.Count))
			}
			var made, accepted, refused, late atomic.Uint64
			half := make(chan struct{}) // closed when the first caller has made half of its calls
			var calling, others sync.WaitGroup
			for i := range callers {
				calling.Go(func() {
					props := map[string]any{}
					for n := 0; n < calls || i == 0; n++ {
						if i == 0 && n == calls/2 {
							close(half)
						}
						made.Add(1)
						props["n"] = n // changes the map while earlier messages are being sent
						switch err := c.Track(&Track{UserId: "u", Event: "e", Properties: props}); err {
						case nil:
							accepted.Add(1)
						case ErrQueueFull:
							refused.Add(1)
						case ErrClosed:
							late.Add(1)
							if i == 0 {
								return
							}
						default:
							t.Error(err)
						}
					}
				})
			}
			stop := make(chan struct{})
			others.Go(func() {
				for {
					s := c.Stats()
					if !s.sums() || s.Memory > c.MaxMemory {
						t.Errorf("Stats() = %+v: the counters do not add up, or Memory exceeds %d", s, c.MaxMemory)
					}
					select {
					case <-stop:
						return
					default:
						runtime.Gosched()
					}
				}
			})
			others.Go(func() {
				for range 20 {
					c.Flush(t.Context())
				}
			})
			for range 3 {
				others.Go(func() {
					<-half
					c.Close()
				})
			}
			calling.Wait()
			c.Close()
			close(stop)
			others.Wait()

			s := c.Stats()
			if s.Queued != accepted.Load() || s.Refused != refused.Load() || s.Queued+s.Refused+late.Load() != made.Load() {
				t.Errorf("Stats() = %+v, want %d queued and %d refused", s, accepted.Load(), refused.Load())
			}
			if s.Pending != 0 || s.Memory != 0 || told[0].Load() != s.Delivered || told[1].Load() != s.Dropped {
				t.Errorf("Stats() = %+v, want nothing pending, %d delivered and %d dropped, as OnDelivery counted", s, told[0].Load(), told[1].Load())
			}
			if n := col.distinct(); uint64(n) != accepted.Load() {
				t.Errorf("%d different messages arrived, want the %d accepted", n, accepted.Load())
			}
		})
	}
}
