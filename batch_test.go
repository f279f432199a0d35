package analytics

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestABatchIsSentWhenItHasFlushAtMessages(t *testing.T) {
	for _, test := range []struct {
		name          string
		size, flushAt int
		messages      int
		want          []int
	}{
		{"the default is 20", 0, 0, 20, []int{20}},
		{"19 are not sent", 0, 0, 19, []int{}},
		{"Size", 3, 0, 3, []int{3}},
		{"FlushAt", 0, 3, 3, []int{3}},
		{"FlushAt overrides Size", 5, 3, 3, []int{3}},
		{"a batch of one", 1, 0, 1, []int{1}},
		{"three batches", 0, 0, 60, []int{20, 20, 20}},
	} {
		bubble(t, test.name, func(t *testing.T) {
			c, col := newTestClient(nil)
			c.Size, c.FlushAt = test.size, test.flushAt
			for range test.messages {
				track(t, c, 1)
				synctest.Wait() // wait for the upload, so that an uploader is idle
			}
			if d := cmp.Diff(test.want, col.sizes()); d != "" {
				t.Errorf("messages per request (-want +got):\n%s", d)
			}
			closeClient(t, c)
		})
	}
}

func TestABatchIsSentAfterFlushAfter(t *testing.T) {
	for _, test := range []struct {
		name       string
		flushAfter time.Duration
		want       time.Duration
	}{
		{"the default is 5 s", 0, 5 * time.Second},
		{"set to 90 ms", 90 * time.Millisecond, 90 * time.Millisecond},
	} {
		bubble(t, test.name, func(t *testing.T) {
			c, col := newTestClient(nil)
			c.FlushAfter = test.flushAfter
			// FlushAfter counts from the first message of each batch.
			for batch := range 3 {
				time.Sleep(test.want / 3)
				track(t, c, 1)
				time.Sleep(test.want / 2)
				track(t, c, 1)
				time.Sleep(test.want - test.want/2 - 1)
				synctest.Wait()
				if got := len(col.got()); got != batch {
					t.Fatalf("%d requests just before %v, want %d", got, test.want, batch)
				}
				time.Sleep(time.Nanosecond)
				synctest.Wait()
				if got := len(col.got()); got != batch+1 {
					t.Fatalf("%d requests after %v, want %d", got, test.want, batch+1)
				}
			}
			closeClient(t, c)
		})
	}
}

// If a batch is sent because it has FlushAt messages, its timer must not send the next batch
// early.
func TestTheTimerOfAnEarlierBatchIsIgnored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, col := newTestClient(nil)
		c.FlushAt = 2
		track(t, c, 2)
		time.Sleep(3 * time.Second)
		track(t, c, 1)
		time.Sleep(5*time.Second - 1)
		synctest.Wait()
		checkSizes(t, col, 2)
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		checkSizes(t, col, 2, 1)
		closeClient(t, c)
	})
}

func TestBatchesGrowWhileAllUploadsAreBusy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, col := newTestClient(func(_ int, r request) (*http.Response, error) {
			time.Sleep(time.Second)
			return status(200), nil
		})
		for range maxUploads {
			track(t, c, DefaultFlushAt)
		}
		track(t, c, 500)
		synctest.Wait()
		checkSizes(t, col, 20, 20, 20, 20)
		time.Sleep(time.Second)
		synctest.Wait()
		checkSizes(t, col, 20, 20, 20, 20, 500)
		closeClient(t, c)
	})
}

func TestBatchesReachButDoNotExceedTheLimits(t *testing.T) {
	for _, test := range []struct {
		name  string
		event string
		calls int
		full  func(request) bool // reports whether a request reaches the limit
	}{
		{"calls", "e", 3 * MaxBatchCalls, func(r request) bool { return len(r.messages) == MaxBatchCalls }},
		{"bytes", strings.Repeat("e", 30000), 100, func(r request) bool {
			return len(r.body) <= MaxBatchSize && len(r.body)+1+len(r.batch.Batch[0]) > MaxBatchSize
		}},
	} {
		bubble(t, test.name, func(t *testing.T) {
			c, col := newTestClient(hang)
			c.FlushAt = 1
			c.MaxMemory = 1 << 30
			track(t, c, maxUploads) // keep all uploaders busy
			synctest.Wait()
			col.recover()
			for range test.calls {
				if err := c.Track(&Track{UserId: "u", Event: test.event}); err != nil {
					t.Fatal(err)
				}
			}
			if err := c.Flush(t.Context()); err != nil {
				t.Fatal(err)
			}
			var sent int
			var open int // number of requests below the limit: the last one
			for _, r := range col.got() {
				if r.length != int64(len(r.body)) {
					t.Errorf("Content-Length is %d, want %d", r.length, len(r.body))
				}
				if len(r.body) > MaxBatchSize || len(r.messages) > MaxBatchCalls {
					t.Errorf("a request has %d bytes and %d messages, want at most %d and %d", len(r.body), len(r.messages), MaxBatchSize, MaxBatchCalls)
				}
				if r.messages[0]["event"] != test.event {
					continue
				}
				sent += len(r.messages)
				if !test.full(r) {
					open++
				}
			}
			if sent != test.calls || open > 1 {
				t.Errorf("%d messages sent, %d requests not full, want %d and at most 1", sent, open, test.calls)
			}
			closeClient(t, c)
		})
	}
}

// The body of a request may have exactly MaxBatchSize bytes.
func TestABatchMayHaveExactlyMaxBatchSizeBytes(t *testing.T) {
	b := newBatch(time.Now())
	defer b.release()
	const n = 30000
	for b.fits(n) {
		b.append(bytes.Repeat([]byte("1"), n), 0)
	}
	room := 0
	for b.fits(room + 1) {
		room++
	}
	b.append(bytes.Repeat([]byte("1"), room), 0)
	body := b.newBody(time.Now())
	defer body.Close()
	text, err := io.ReadAll(body)
	if err != nil || len(text) != MaxBatchSize {
		t.Errorf("the request has %d bytes, %v, want %d", len(text), err, MaxBatchSize)
	}
	var sum int
	for i := range b.ends {
		sum += footprint(len(b.message(b.buf, i)))
	}
	if sum != b.footprint() {
		t.Errorf("footprint() = %d, want %d, the sum over the messages", b.footprint(), sum)
	}
}

func TestTrackReturnsErrQueueFullAtMaxMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, col := newTestClient(always(503))
		c.MaxMemory = MaxBatchSize
		m := &Track{UserId: "u", Event: strings.Repeat("e", 1000)}
		var accepted, refused uint64
		for range 1000 {
			switch err := c.Track(m); {
			case err == nil:
				accepted++
			case errors.Is(err, ErrQueueFull):
				refused++
			default:
				t.Fatal(err)
			}
			if s := c.Stats(); s.Memory > c.MaxMemory {
				t.Fatalf("Stats().Memory = %d, above MaxMemory %d", s.Memory, c.MaxMemory)
			}
		}
		s := c.Stats()
		if refused == 0 || s.Queued != accepted || s.Refused != refused {
			t.Errorf("Stats() = %+v, want %d queued and %d refused", s, accepted, refused)
		}
		if s.Memory+1200 < c.MaxMemory {
			t.Errorf("Track refused a message with %d of %d bytes in use, want less than 1200 bytes free", s.Memory, c.MaxMemory)
		}
		// A message counts towards MaxMemory until it is delivered, also during its back-off.
		col.recover()
		if err := c.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		checkStats(t, c, accepted, accepted, 0, 0)
		if err := c.Track(m); err != nil {
			t.Errorf("Track once there is room: %v", err)
		}
		closeClient(t, c)
	})
}

func TestAClosedRequestBodyCannotBeRead(t *testing.T) {
	b := newBatch(time.Now())
	b.append([]byte("{}"), 0)
	body := b.newBody(time.Now())
	if err := body.Close(); err != nil {
		t.Fatal(err)
	}
	if err := body.Close(); err != nil {
		t.Errorf("second Close: %v", err)
	}
	if n, err := body.Read(make([]byte, 10)); n != 0 || err == nil || err == io.EOF {
		t.Errorf("Read after Close = %d, %v, want an error", n, err)
	}
	if got := b.refs.Load(); got != 1 {
		t.Errorf("%d references after Close, want the client's 1", got)
	}
	b.release()
}

// A transport may still read the body of an attempt that has ended. The client must not reuse
// the batch before the transport closes that body.
func TestABatchIsNotReusedWhileItsBodyIsRead(t *testing.T) {
	b := newBatch(time.Now())
	b.append([]byte(`{"event":"first"}`), 0)
	body := b.newBody(time.Now())
	want, err := io.ReadAll(b.newBody(b.opened))
	if err != nil {
		t.Fatal(err)
	}
	b.release() // the client drops its reference once the batch is settled
	for range 10 {
		other := newBatch(time.Now())
		other.append([]byte(`{"event":"other"}`), 0)
	}
	got, err := io.ReadAll(body)
	if err != nil {
		t.Fatal(err)
	}
	head := len(want) - tailSize
	if !bytes.Equal(got[:head], want[:head]) {
		t.Errorf("the body reads %s, want %s", got[:head], want[:head])
	}
	body.Close()
}

// A large buffer is reused only if its batch filled at least a quarter of it. So small batches
// do not keep the memory of a large one.
func TestALargeBufferIsReusedOnlyIfItWasUsed(t *testing.T) {
	for _, test := range []struct {
		name      string
		size, cap int
		want      bool
	}{
		{"first size, hardly used", 100, firstBufSize, true},
		{"small, hardly used", 100, maxIdleBuf, true},
		{"large, hardly used", 100, maxIdleBuf + 1, false},
		{"largest, less than a quarter full", MaxBatchSize/4 - 1, MaxBatchSize, false},
		{"largest, a quarter full", MaxBatchSize / 4, MaxBatchSize, true},
		{"largest, full", MaxBatchSize, MaxBatchSize, true},
	} {
		b := &batch{buf: make([]byte, test.size, test.cap)}
		if got := b.reusable(); got != test.want {
			t.Errorf("%s: reusable() = %v with %d of %d bytes in use, want %v", test.name, got, test.size, test.cap, test.want)
		}
	}
}
