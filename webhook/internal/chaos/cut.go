package chaos

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/hookferry/analytics/webhook"
)

// Cut puts into q, and settles, while its connections are cut off, which on(true) begins
// and on(false) ends. Whatever answer of the server is lost: each delivery that was
// accepted ends once in the accounts, and nothing stays held in nobody's memory.
func Cut(t *testing.T, q interface {
	Queue
	webhook.Waker
}, on func(bool)) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	on(true)

	const puts, each = 150, 4
	var wg sync.WaitGroup
	for half := range 2 {
		wg.Go(func() {
			for i := range puts / 2 {
				ds := deliveries(fmt.Sprint("d", i%3), (half*puts+i)*each, each)
				for {
					_, err := q.Put(ctx, ds...)
					if err == nil {
						break
					}
					if ctx.Err() != nil {
						t.Error(err)
						return
					}
				}
			}
		})
	}
	ended := make(map[string]int) // by how often that was settled without an error
	buried := 0
	quiet := time.Now()
	for len(ended) < puts*each && ctx.Err() == nil {
		ds, _, err := q.Lease(ctx, webhook.LeaseRequest{Max: 10, Until: time.Now().Add(30 * time.Second)}, nil)
		if err != nil || len(ds) == 0 {
			select {
			case <-q.Wake():
			case <-time.After(10 * time.Millisecond):
			}
			// The last are not cut off, so that it comes to an end.
			on(time.Since(quiet) < 3*time.Second)
			continue
		}
		quiet = time.Now()
		ss := make([]webhook.Settlement, len(ds))
		for i, d := range ds {
			ss[i] = webhook.Settlement{Verdict: webhook.Done, Delivery: d}
			switch {
			case d.Tries == 0 && rand.IntN(3) == 0:
				ss[i].Verdict = webhook.Retry
				ss[i].Delivery.Tries = 1
			case rand.IntN(3) == 0:
				ss[i].Verdict, ss[i].Reason, ss[i].At = webhook.Bury, webhook.ReasonExpired, time.Now()
			}
		}
		for q.Settle(ctx, ss...) != nil && ctx.Err() == nil {
		}
		for i := range ss {
			if ss[i].Verdict == webhook.Retry {
				continue
			}
			ended[ds[i].Destination+"/"+ds[i].ID]++
			if ss[i].Verdict == webhook.Bury {
				buried++
			}
		}
	}
	wg.Wait()
	on(false)
	counts := webhook.Counts{Waiting: -1}
	for counts.Waiting != 0 && ctx.Err() == nil {
		if c, err := q.Count(ctx); err == nil {
			counts = c
		}
		if counts.Waiting == 0 {
			break
		}
		select {
		case <-q.Wake():
		case <-time.After(50 * time.Millisecond):
		}
		for _, d := range leaseSome(q) {
			t.Errorf("%s/%s is handed out after its end", d.Destination, d.ID)
		}
	}
	if len(ended) != puts*each || counts.Waiting != 0 || counts.Dead != buried {
		t.Errorf("%d of %d ended; Count = %+v, want %d dead", len(ended), puts*each, counts, buried)
	}
	for id, n := range ended {
		if n > 1 {
			t.Errorf("%s ended %d times", id, n)
		}
	}
}

func leaseSome(q webhook.Queue) []webhook.Delivery {
	ds, _, err := q.Lease(context.Background(), webhook.LeaseRequest{Max: 10, Until: time.Now().Add(time.Hour)}, nil)
	if err != nil {
		return nil
	}
	return ds
}

func deliveries(destination string, from, n int) []webhook.Delivery {
	now := time.Now()
	ds := make([]webhook.Delivery, n)
	for i := range ds {
		id := fmt.Sprint(from + i)
		ds[i] = webhook.Delivery{
			Destination: destination, ID: id, Type: "track",
			Body: fmt.Appendf(nil, `{"messageId":%q}`, id), Accepted: now, Due: now.Add(-time.Second),
		}
	}
	return ds
}
