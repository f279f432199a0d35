package analytics

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

var transportErrors = []error{
	errors.New("anything"),
	io.EOF,
	io.ErrUnexpectedEOF,
	context.DeadlineExceeded,
	&net.DNSError{Err: "no such host", Name: "collector.example", IsNotFound: true},
	&net.OpError{Op: "dial", Net: "tcp", Err: errors.New("connection refused")},
	&net.OpError{Op: "read", Net: "tcp", Err: errors.New("connection reset by peer")},
}

// The status or the transport error of an answer decides whether the client delivers, retries or
// drops a batch. The test tries every status from 100 to 599.
func TestTheAnswerDecidesWhetherABatchIsRetried(t *testing.T) {
	type answer struct {
		name   string
		code   int
		err    error
		reason Reason // empty for delivered
	}
	var answers []answer
	for code := 100; code <= 599; code++ {
		a := answer{name: strconv.Itoa(code), code: code, reason: ReasonRefused}
		switch {
		case code >= 200 && code <= 299:
			a.reason = ""
		case code == 501 || code == 505:
		case code >= 500, slices.Contains([]int{408, 410, 429, 460}, code):
			a.reason = ReasonExhausted
		}
		answers = append(answers, a)
	}
	for _, err := range transportErrors {
		answers = append(answers, answer{name: err.Error(), err: err, reason: ReasonExhausted})
	}
	for _, a := range answers {
		synctest.Test(t, func(t *testing.T) {
			var got deliveryRecorder
			c, col := newTestClient(func(int, request) (*http.Response, error) {
				if a.err != nil {
					return nil, a.err
				}
				return status(a.code, "Location", "http://elsewhere.example/%zz"), nil
			})
			c.OnDelivery = got.add
			track(t, c, 2)
			err := c.Flush(t.Context())
			attempts := 1
			switch {
			case a.reason == ReasonExhausted:
				attempts = 1 + maxRetries
			case a.code == http.StatusRequestEntityTooLarge:
				attempts = 3 // the batch, and each call alone
			}
			list := got.got()
			if len(list) != 1 || list[0].Count != 2 || list[0].Attempts != attempts || list[0].Reason != a.reason {
				t.Fatalf("%s: OnDelivery got %+v, want 2 messages, %d attempts and the reason %q", a.name, list, attempts, a.reason)
			}
			if n := len(col.got()); n != attempts {
				t.Errorf("%s: %d requests, want %d", a.name, n, attempts)
			}
			told := list[0].Err
			if a.reason == "" {
				if told != nil || err != nil {
					t.Errorf("%s: delivered, with the errors %v and %v, want none", a.name, told, err)
				}
				checkStats(t, c, 2, 2, 0, 0)
			} else {
				checkUndelivered(t, err, UndeliveredError{Dropped: 2})
				var status *StatusError
				switch {
				case a.err != nil && (!errors.Is(told, a.err) || !errors.Is(err, a.err)):
					t.Errorf("%s: errors %v and %v, want both to wrap the cause", a.name, told, err)
				case a.err == nil && (!errors.As(told, &status) || status.Code != a.code || !errors.As(err, &status)):
					t.Errorf("%s: errors %v and %v, want a *StatusError in both", a.name, told, err)
				}
				checkStats(t, c, 2, 0, 2, 0)
				if got := c.Stats().ByReason[a.reason]; got != 2 {
					t.Errorf("%s: ByReason[%s] = %d, want 2", a.name, a.reason, got)
				}
			}
			closeClient(t, c)
		})
	}
}

func TestBackoffDoublesUpToAMinuteWithFullJitter(t *testing.T) {
	want := []time.Duration{500 * time.Millisecond, time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second,
		16 * time.Second, 32 * time.Second, time.Minute, time.Minute, time.Minute}
	for i, limit := range want {
		if got := backoffLimit(i); got != limit {
			t.Errorf("backoffLimit(%d) = %v, want %v", i, got, limit)
		}
	}
	for _, absurd := range []int{-1, -1 << 31, 63, 1024, 1 << 30} {
		if got := backoffLimit(absurd); got != backoffLimit(min(max(absurd, 0), 16)) {
			t.Errorf("backoffLimit(%d) = %v, want the limit of the nearest attempt", absurd, got)
		}
	}
	// With full jitter, the waits spread over all of [0, limit).
	for attempt, limit := range want {
		var low, high bool
		for range 200 {
			d := backoff(attempt)
			if d < 0 || d >= limit {
				t.Fatalf("backoff(%d) = %v, want at least 0 and less than %v", attempt, d, limit)
			}
			low = low || d < limit/4
			high = high || d > limit*3/4
		}
		if !low || !high {
			t.Errorf("200 values of backoff(%d) do not spread from 0 to %v", attempt, limit)
		}
	}
}

func TestABatchGetsElevenAttemptsWithTheSameMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got deliveryRecorder
		c, col := newTestClient(always(503))
		c.OnDelivery = got.add
		track(t, c, 1)
		if err := c.Flush(t.Context()); err == nil {
			t.Error("Flush: no error")
		}
		requests := col.got()
		if len(requests) != 11 {
			t.Fatalf("%d requests, want 11", len(requests))
		}
		for i, r := range requests {
			want := ""
			if i > 0 {
				want = strconv.Itoa(i)
				if wait := r.at.Sub(requests[i-1].at); wait < 0 || wait >= backoffLimit(i-1) {
					t.Errorf("attempt %d came after %v, want less than %v", i+1, wait, backoffLimit(i-1))
				}
			}
			if count := r.header.Get("X-Retry-Count"); count != want {
				t.Errorf("attempt %d has X-Retry-Count %q, want %q", i+1, count, want)
			}
			if sentAt := FormatTime(r.at); r.batch.SentAt != sentAt {
				t.Errorf("attempt %d has sentAt %s, want %s", i+1, r.batch.SentAt, sentAt)
			}
			if r.batch.MessageID == "" || r.batch.MessageID != requests[0].batch.MessageID {
				t.Errorf("attempt %d has messageId %q, want %q", i+1, r.batch.MessageID, requests[0].batch.MessageID)
			}
			if d := cmp.Diff(requests[0].batch.Batch, r.batch.Batch); d != "" {
				t.Errorf("messages of attempt %d (-first +this):\n%s", i+1, d)
			}
			if r.length != int64(len(r.body)) {
				t.Errorf("attempt %d has Content-Length %d, want %d", i+1, r.length, len(r.body))
			}
		}
		if first, last := requests[0].batch.SentAt, requests[10].batch.SentAt; first == last {
			t.Errorf("sentAt is %s in the first and in the last attempt, want different times", first)
		}
		want := "analytics: gave up after 11 attempts: analytics: the collector answered 503 Service Unavailable"
		if d := got.got()[0]; d.Err.Error() != want {
			t.Errorf("OnDelivery got error %q, want %q", d.Err, want)
		}
		if s := c.Stats(); s.Attempts != 11 || s.Batches != 1 {
			t.Errorf("Stats() = %+v, want 11 attempts of 1 batch", s)
		}
		closeClient(t, c)
	})
}

// The client waits as long as Retry-After says, but at most 300 s. The function hostilities has
// the values of Retry-After that the client ignores.
func TestRetryAfterSetsTheWaitUpToItsCap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, test := range []struct {
			name string
			code int
			text func() string
			want time.Duration
		}{
			{"date", 429, func() string { return time.Now().Add(11 * time.Second).UTC().Format(http.TimeFormat) }, 11 * time.Second},
			{"at the cap", 503, func() string { return "300" }, 300 * time.Second},
			{"seconds above the cap", 429, func() string { return "301" }, 300 * time.Second},
			{"date above the cap", 503, func() string { return time.Now().Add(48 * time.Hour).UTC().Format(http.TimeFormat) }, 300 * time.Second},
			{"on a timeout status", 408, func() string { return "3" }, 3 * time.Second},
			{"on an unusual status", 529, func() string { return "3" }, 3 * time.Second},
			{"zero gives the usual wait", 429, func() string { return "0" }, 0},
		} {
			c, col := newTestClient(statusThenOK(1, test.code, "Retry-After", test.text()))
			track(t, c, 1)
			if err := c.Flush(t.Context()); err != nil {
				t.Errorf("%s: %v", test.name, err)
			}
			r := col.got()
			switch wait := r[1].at.Sub(r[0].at); {
			case test.want > 0 && wait != test.want:
				t.Errorf("%s: the second attempt came after %v, want %v", test.name, wait, test.want)
			case test.want == 0 && wait >= backoffLimit(0):
				t.Errorf("%s: the second attempt came after %v, want less than %v", test.name, wait, backoffLimit(0))
			}
			closeClient(t, c)
		}
	})
}

// Each wait is at least Retry-After, and the back-off still makes the waits grow. So a collector
// that always asks for one second does not use up the retries of a batch in ten seconds.
func TestABackoffLongerThanRetryAfterApplies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, col := newTestClient(always(503, "Retry-After", "1"))
		track(t, c, 1)
		if err := c.Flush(t.Context()); err == nil {
			t.Error("Flush: no error")
		}
		r := col.got()
		longest := time.Duration(0)
		for i := 1; i < len(r); i++ {
			wait := r[i].at.Sub(r[i-1].at)
			if wait < time.Second || wait > max(time.Second, backoffLimit(i-1)) {
				t.Errorf("attempt %d came after %v, want 1 s to %v", i+1, wait, max(time.Second, backoffLimit(i-1)))
			}
			longest = max(longest, wait)
		}
		if len(r) != 11 || longest == time.Second {
			t.Errorf("%d attempts, at most %v apart, want 11, and waits of more than 1 s", len(r), longest)
		}
		closeClient(t, c)
	})
}

// If the collector answers one batch with Retry-After, the client sends no batch during that
// time, not even those in back-off. Messages queued meanwhile are sent together afterwards.
func TestRetryAfterPausesTheWholeClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		c, col := newTestClient(nil)
		col.answer = func(n int, _ request) (*http.Response, error) {
			switch n {
			case 0, 1:
				return status(500), nil // in back-off for less than half a second
			case 2:
				return status(429, "Retry-After", "60"), nil
			}
			return status(200), nil
		}
		c.FlushAt = 1
		track(t, c, 3)
		synctest.Wait()
		for range 30 {
			track(t, c, 1)
			time.Sleep(time.Second)
		}
		time.Sleep(30*time.Second - 1)
		synctest.Wait()
		early := 0
		for _, r := range col.got()[3:] {
			if r.at.Before(start.Add(time.Minute)) {
				early++
			}
		}
		if early > 0 {
			t.Errorf("%d requests during the pause, want none", early)
		}
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		late := col.got()[3:]
		sum, largest := 0, 0
		for _, r := range late {
			sum += len(r.messages)
			largest = max(largest, len(r.messages))
		}
		if sum != 33 || largest != 30 || len(late) != 4 {
			t.Errorf("after the pause %d requests with %d messages, at most %d in one, want 4, 33, 30", len(late), sum, largest)
		}
		closeClient(t, c)
		checkStats(t, c, 33, 33, 0, 0)
	})
}

func TestStatus429WithoutRetryAfterPausesTheWholeClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, col := newTestClient(statusThenOK(1, 429))
		c.FlushAt = 1
		track(t, c, 1)
		synctest.Wait()
		track(t, c, 1)
		synctest.Wait()
		if n := len(col.got()); n != 1 {
			t.Errorf("%d requests right after the 429, want 1", n)
		}
		closeClient(t, c)
		r := col.got()
		if wait := r[1].at.Sub(r[0].at); len(r) != 3 || wait != r[2].at.Sub(r[0].at) || wait >= backoffLimit(0) {
			t.Errorf("%d requests, the second after %v, want 3, and both after the same back-off", len(r), wait)
		}
	})
}

// An answer that arrives during a pause may extend the pause, but not shorten it.
func TestAPauseCanBeExtendedButNotShortened(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		c, col := newTestClient(nil)
		col.answer = func(n int, _ request) (*http.Response, error) {
			switch n {
			case 0:
				time.Sleep(time.Millisecond) // wait until all three requests are in flight
				return status(429, "Retry-After", "10"), nil
			case 1:
				time.Sleep(time.Second)
				return status(429, "Retry-After", "30"), nil
			case 2:
				time.Sleep(2 * time.Second)
				return status(429, "Retry-After", "5"), nil
			}
			return status(200), nil
		}
		c.FlushAt = 1
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() { track(t, c, 1) })
		}
		wg.Wait()
		if err := c.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		if r := col.got(); len(r) > 3 {
			if at := r[3].at.Sub(start); at != 31*time.Second {
				t.Errorf("the fourth request came after %v, want 31 s", at)
			}
		}
		closeClient(t, c)
	})
}

// The function hostilities tests DefaultTimeout.
func TestTimeoutLimitsEachAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, col := newTestClient(nil)
		c.Timeout = 300 * time.Millisecond
		col.answer = func(n int, r request) (*http.Response, error) {
			if n == 2 {
				return status(200), nil
			}
			<-r.ctx.Done()
			if took := time.Since(r.at); took != c.Timeout {
				t.Errorf("attempt %d was cancelled after %v, want %v", n+1, took, c.Timeout)
			}
			return nil, r.ctx.Err()
		}
		track(t, c, 1)
		closeClient(t, c)
		if n := len(col.got()); n != 3 {
			t.Errorf("%d attempts, want 3", n)
		}
	})
}

func TestRejectedCallsAreDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got deliveryRecorder
		c, _ := newTestClient(func(int, request) (*http.Response, error) {
			resp := status(200)
			resp.Body = io.NopCloser(strings.NewReader(`{"success":true,"rejected":[
				{"index":3,"code":"too_old","message":"over a year"},
				{"index":1,"code":"bad_event","message":"no such event"},
				{"index":3,"code":"twice","message":""},{"index":-1},{"index":5}]}`))
			return resp, nil
		})
		c.OnDelivery = got.add
		for i := range 5 {
			if err := c.Track(&Track{UserId: "u", Event: "e", MessageId: fmt.Sprint("m", i)}); err != nil {
				t.Fatal(err)
			}
		}
		err := c.Flush(t.Context())
		var undelivered *UndeliveredError
		var rejected *RejectedError
		if !errors.As(err, &undelivered) || undelivered.Delivered != 3 || undelivered.Dropped != 2 ||
			!errors.As(err, &rejected) || rejected.Code != "bad_event" {
			t.Errorf("Flush: %v, want 3 delivered and 2 dropped with code bad_event", err)
		}
		checkStats(t, c, 5, 3, 2, 0)
		if n := c.Stats().ByReason[ReasonRejected]; n != 2 {
			t.Errorf("ByReason[ReasonRejected] = %d, want 2", n)
		}
		var reasons []string
		for i, d := range got.got() {
			reasons = append(reasons, fmt.Sprintf("%d %d %s", i, d.Count, d.Reason))
		}
		if d := cmp.Diff([]string{"0 3 ", "1 2 rejected"}, reasons); d != "" {
			t.Errorf("OnDelivery (-want +got):\n%s", d)
		}
		var results []string
		for i, raw := range got.messages {
			results = append(results, fmt.Sprintf("%s %v", raw[len(`{"type":"track","messageId":"`):][:2], got.errs[i]))
		}
		want := []string{"m0 <nil>", "m2 <nil>", "m4 <nil>",
			`m1 analytics: the collector rejected the call: "bad_event": "no such event"`,
			`m3 analytics: the collector rejected the call: "too_old": "over a year"`}
		if d := cmp.Diff(want, results); d != "" {
			t.Errorf("messages (-want +got):\n%s", d)
		}
		closeClient(t, c)
	})
}

func FuzzRejections(f *testing.F) {
	f.Add([]byte(`{"rejected":[{"index":3,"code":"c","message":"m"},{"index":0}]}`), 4)
	f.Add([]byte(`{"rejected":7}`), 1)
	f.Add([]byte(`{"rejected":[{"index":1e9}]}`), 1)
	f.Fuzz(func(t *testing.T, answer []byte, n int) {
		last := -1
		for _, r := range rejections(answer, n) {
			if r.index <= last || r.index >= n {
				t.Fatalf("rejections(%q, %d) has index %d after %d", answer, n, r.index, last)
			}
			last = r.index
		}
	})
}

func TestDeliveryMessagesReturnsTheMessagesAsSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got deliveryRecorder
		c, col := newTestClient(nil)
		c.OnDelivery = got.add
		track(t, c, 3)
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		var want []string
		for _, raw := range col.got()[0].batch.Batch {
			want = append(want, string(raw))
		}
		if d := cmp.Diff(want, got.messages); d != "" {
			t.Errorf("Delivery.Messages (-sent +got):\n%s", d)
		}
	})
}

func TestOnDeliveryMayCallTheClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := newTestClient(nil)
		again := 3
		c.OnDelivery = func(d Delivery) {
			if s := c.Stats(); s.Delivered == 0 {
				t.Errorf("Stats() in OnDelivery = %+v, want the delivered messages to be counted", s)
			}
			if again > 0 {
				again--
				if err := c.Track(&Track{UserId: "u", Event: "again"}); err != nil {
					t.Error(err)
				}
			}
		}
		track(t, c, 1)
		time.Sleep(time.Minute)
		closeClient(t, c)
		checkStats(t, c, 4, 4, 0, 0)
	})
}

// A program may construct a Delivery to test its OnDelivery. Messages then yields nothing.
func TestAConstructedDeliveryYieldsNoMessages(t *testing.T) {
	for _, d := range []Delivery{{}, {Count: 1}, {Count: 1, Reason: ReasonRejected, Err: ErrClosed}} {
		for message, err := range d.Messages() {
			t.Errorf("%+v yields %q, %v, want nothing", d, message, err)
		}
	}
}
