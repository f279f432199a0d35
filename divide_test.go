package analytics

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// proxy returns answers of a proxy that refuses bodies of more than limit bytes. It passes other
// requests to then.
func proxy(limit int, then func(int, request) (*http.Response, error)) func(int, request) (*http.Response, error) {
	return func(n int, r request) (*http.Response, error) {
		if len(r.body) > limit {
			return status(http.StatusRequestEntityTooLarge), nil
		}
		return then(n, r)
	}
}

// trackSizes makes calls with the messageIds 0, 1, 2 and so on. Each has about so many bytes.
func trackSizes(t *testing.T, c *Client, sizes ...int) {
	t.Helper()
	for i, size := range sizes {
		if err := c.Track(&Track{UserId: "u", Event: strings.Repeat("e", size), MessageId: fmt.Sprint(i)}); err != nil {
			t.Fatal(err)
		}
	}
}

// A 413 for a batch divides it. Only the calls that are too large alone are dropped, and a call
// that the collector rejects from a part is the right one.
func TestABatchThatIsTooLargeForAProxyIsDivided(t *testing.T) {
	for _, spooled := range []bool{false, true} {
		bubble(t, fmt.Sprintf("spooled=%t", spooled), func(t *testing.T) {
			const limit = 8000
			rejecting := func(_ int, r request) (*http.Response, error) {
				resp := status(200)
				for i, m := range r.messages {
					if m["messageId"] == "37" {
						resp.Body = io.NopCloser(strings.NewReader(fmt.Sprintf(`{"rejected":[{"index":%d,"code":"c","message":"m"}]}`, i)))
					}
				}
				return resp, nil
			}
			c, col := newTestClient(proxy(limit, rejecting))
			if spooled {
				c.SpoolDir = t.TempDir()
			}
			var told deliveryRecorder
			c.FlushAt, c.OnDelivery = 100, told.add
			sizes := slices.Repeat([]int{500}, 100)
			sizes[0], sizes[50], sizes[99] = 9000, 9000, 9000
			trackSizes(t, c, sizes...)
			checkUndelivered(t, c.Flush(t.Context()), UndeliveredError{Delivered: 96, Dropped: 4})

			s := c.Stats()
			if s.ByReason[ReasonRefused] != 3 || s.ByReason[ReasonRejected] != 1 || !s.sums() || s.Attempts != uint64(len(col.got())) || s.Batches != 1 || s.Memory != 0 {
				t.Errorf("Stats() = %+v, want 3 refused, 1 rejected, %d attempts for one batch and nothing in memory", s, len(col.got()))
			}
			arrived, ids := map[any]int{}, map[string]bool{}
			for _, r := range col.got() {
				if ids[r.batch.MessageID] {
					t.Errorf("two requests have the messageId %s", r.batch.MessageID)
				}
				ids[r.batch.MessageID] = true
				if len(r.body) <= limit {
					for _, m := range r.messages {
						arrived[m["messageId"]]++
					}
				}
			}
			for i, size := range sizes {
				if n, want := arrived[fmt.Sprint(i)], min(1, 9000-size); n != want {
					t.Errorf("call %d of %d bytes arrived %d times, want %d", i, size, n, want)
				}
			}
			var groups []string
			for _, d := range told.got() {
				groups = append(groups, fmt.Sprintf("%d %s %t", d.Count, d.Reason, d.Attempts == len(col.got())))
			}
			if want := []string{"96  true", "3 refused true", "1 rejected true"}; !slices.Equal(groups, want) {
				t.Errorf("OnDelivery got %q, want %q", groups, want)
			}
			for i, text := range told.messages {
				var tooLarge *StatusError
				var rejected *RejectedError
				switch err := told.errs[i]; {
				case strings.Contains(text, `"messageId":"37"`):
					if !errors.As(err, &rejected) {
						t.Errorf("%.50s has the error %v, want a *RejectedError", text, err)
					}
				case len(text) > limit:
					if !errors.As(err, &tooLarge) || tooLarge.Code != http.StatusRequestEntityTooLarge {
						t.Errorf("%.50s has the error %v, want the status 413", text, err)
					}
				case err != nil:
					t.Errorf("%.50s has the error %v, want none", text, err)
				}
			}
			closeClient(t, c)
		})
	}
}

// A single call that is too large costs only a few more requests, however large the batch is.
func TestOneLargeCallCostsFewRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n, most = 2048, 1 + 2*11 // 2,048 is 2 to the power of 11
		c, col := newTestClient(func(_ int, r request) (*http.Response, error) {
			for _, m := range r.messages {
				if m["messageId"] == "1000" {
					return status(http.StatusRequestEntityTooLarge), nil
				}
			}
			return status(200), nil
		})
		c.FlushAt = n + 1 // Flush begins the upload, so it sees its outcome
		trackSizes(t, c, slices.Repeat([]int{1}, n)...)
		checkUndelivered(t, c.Flush(t.Context()), UndeliveredError{Delivered: n - 1, Dropped: 1})
		if got := len(col.got()); got > most {
			t.Errorf("%d requests, want at most %d", got, most)
		}
		closeClient(t, c)
	})
}

// While a batch is divided, an attempt fails in another way. The parts before it are delivered, and
// the rest has that outcome. With SpoolDir, the batch stays on disk and is sent again later.
func TestAPartThatFails(t *testing.T) {
	for _, test := range []struct {
		name    string
		code    int
		spooled bool
		reason  Reason
		want    UndeliveredError
	}{
		{"refused", 401, false, ReasonRefused, UndeliveredError{Delivered: 5, Dropped: 5}},
		{"refused, spooled", 400, true, ReasonRefused, UndeliveredError{Delivered: 5, Dropped: 5}},
		{"misdirected, spooled", 401, true, "", UndeliveredError{Spooled: 10}},
		{"exhausted", 503, false, ReasonExhausted, UndeliveredError{Delivered: 5, Dropped: 5}},
		{"exhausted, spooled", 503, true, "", UndeliveredError{Spooled: 10}},
	} {
		bubble(t, test.name, func(t *testing.T) {
			c, col := newTestClient(proxy(4500, func(_ int, r request) (*http.Response, error) {
				if r.messages[0]["messageId"] == "0" {
					return status(200), nil
				}
				return status(test.code), nil
			}))
			if test.spooled {
				c.SpoolDir = t.TempDir()
			}
			c.FlushAt = 11 // Flush begins the upload, so it sees its outcome
			trackSizes(t, c, slices.Repeat([]int{500}, 10)...)
			checkUndelivered(t, c.Flush(t.Context()), test.want)
			s := c.Stats()
			if test.reason != "" && s.ByReason[test.reason] != 5 || !s.sums() {
				t.Errorf("Stats() = %+v, want 5 dropped as %q", s, test.reason)
			}
			retries := []string{}
			for _, r := range col.got()[2:] { // after the batch, and its first half
				retries = append(retries, r.header.Get(retryCountHeader))
			}
			if retries[0] != "" || test.code == 503 && (len(retries) != 1+maxRetries || retries[maxRetries] != "10") {
				t.Errorf("%s of the second half: %q, want 10 retries counted from its first attempt", retryCountHeader, retries)
			}
			col.recover()
			time.Sleep(maxBackoff)
			closeClient(t, c)
			if want := uint64(10 - test.want.Dropped); c.Stats().Delivered != want || !c.Stats().sums() {
				t.Errorf("Stats() = %+v, want %d delivered in the end", c.Stats(), want)
			}
		})
	}
}
