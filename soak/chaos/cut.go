package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/store"
)

// While a Cutter is on, it cuts each connection after a random number of bytes of the server's
// answers. Often the server has then done its work, but the client does not learn of it.
type Cutter struct {
	Least, Most int // bounds of the random number of bytes

	mu  sync.Mutex
	r   *rand.Rand
	on  bool
	cut int // connections that were cut
}

// Conn returns a connection that the Cutter may end.
func (c *Cutter) Conn(conn net.Conn) net.Conn {
	c.mu.Lock()
	defer c.mu.Unlock()
	return &cutConn{conn, c, c.Least + c.r.IntN(c.Most-c.Least)}
}

type cutConn struct {
	net.Conn
	c    *Cutter
	left int
}

func (c *cutConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.left -= n
	c.c.mu.Lock()
	defer c.c.mu.Unlock()
	if c.left < 0 && c.c.on && err == nil {
		c.c.cut++
		c.Close()
		return 0, errors.New("cut")
	}
	return n, err
}

// set begins or stops the cutting, and returns how many connections c has cut so far.
func (c *Cutter) set(on bool) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.on = on
	return c.cut
}

// Cut tests a store while c cuts the store's connections. The function open opens the store. In
// each round, Cut puts deliveries and settles them. Each accepted delivery must be settled
// exactly once. The store must not keep a claim that no process knows of.
func Cut(t *testing.T, c *Cutter, length time.Duration, seed uint64, open func() (s webhook.Store, end func())) {
	c.r = rand.New(rand.NewPCG(seed, 1))
	r := rand.New(rand.NewPCG(seed, 2))
	s, end := open()
	defer end()
	defer s.Close()
	first, all := 0, 0
	for over := time.Now().Add(length); first == 0 || time.Now().Before(over); first += puts * each {
		round(t, s, c, r, first)
		if t.Failed() {
			break
		}
		before := all
		if all = c.set(false); all < before+10 {
			t.Errorf("only %d connections were cut", all-before)
		}
	}
	t.Logf("%d deliveries, %d connections were cut", first, all)
}

const puts, each = 150, 4 // puts of a round of Cut, and deliveries of each put

func round(t *testing.T, s webhook.Store, c *Cutter, r *rand.Rand, first int) {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	before, err := s.Count(ctx)
	if err != nil {
		t.Error(err)
		return
	}
	c.set(true)
	var wg sync.WaitGroup
	for half := range 2 {
		wg.Go(func() {
			for i := range puts / 2 {
				ds := deliveries(fmt.Sprint("d", i%3), first+(half*puts/2+i)*each, each)
				for {
					if err := Put(ctx, s, ds...); err == nil {
						break
					} else if ctx.Err() != nil {
						t.Error(err)
						return
					}
				}
			}
		})
	}
	ended := make(map[string]int) // how often each delivery was settled as done or buried
	buried := 0
	quiet := time.Now()
	for len(ended) < puts*each && ctx.Err() == nil {
		ds, err := Fetch(ctx, s, 10, "d0", "d1", "d2")
		if err != nil || len(ds) == 0 {
			select {
			case <-s.Changed():
			case <-time.After(10 * time.Millisecond):
			}
			// After three seconds without a delivery, cut no more connections, so that
			// the round ends.
			c.set(time.Since(quiet) < 3*time.Second)
			continue
		}
		quiet = time.Now()
		ss := make([]store.Settlement, len(ds))
		for i, d := range ds {
			ss[i] = store.Settlement{Verdict: store.Done, Delivery: d}
			switch {
			case d.Tries == 0 && r.IntN(3) == 0:
				ss[i].Verdict = store.Retry
				ss[i].Delivery.Tries, ss[i].Delivery.Expires = 1, time.Now().Add(time.Hour)
			case r.IntN(3) == 0:
				ss[i].Verdict, ss[i].Reason, ss[i].At = store.Bury, webhook.ReasonExpired, time.Now()
			}
		}
		Settle(ctx, s, ss)
		for i := range ss {
			if ss[i].Verdict == store.Retry {
				continue
			}
			ended[ds[i].Destination+"/"+ds[i].ID]++
			if ss[i].Verdict == store.Bury {
				buried++
			}
		}
	}
	wg.Wait()
	c.set(false)
	counts := store.Counts{Waiting: -1}
	for counts.Waiting != 0 && ctx.Err() == nil {
		if c, err := s.Count(ctx); err == nil {
			counts = c
		}
		if counts.Waiting == 0 {
			break
		}
		select {
		case <-s.Changed():
		case <-time.After(50 * time.Millisecond):
		}
		ds, _ := Fetch(ctx, s, 10, "d0", "d1", "d2")
		for _, d := range ds {
			t.Errorf("%s/%s was fetched again after it was done or buried", d.Destination, d.ID)
		}
	}
	if len(ended) != puts*each || counts.Waiting != 0 || counts.Dead != before.Dead+buried {
		t.Errorf("%d of %d ended; Count = %+v, want %d dead", len(ended), puts*each, counts, before.Dead+buried)
	}
	for id, n := range ended {
		if n > 1 {
			t.Errorf("%s ended %d times", id, n)
		}
	}
}

// Put puts deliveries.
func Put(ctx context.Context, s webhook.Store, ds ...webhook.Delivery) error {
	ps := make([]store.Put, len(ds))
	for i := range ds {
		ps[i].Delivery = ds[i]
	}
	return s.Put(ctx, ps, make([]store.Result, len(ds)))
}

// Fetch claims fresh deliveries and retries of each destination. The argument most bounds the
// number of each kind.
func Fetch(ctx context.Context, s webhook.Store, most int, destinations ...string) ([]webhook.Delivery, error) {
	var wants []store.Want
	for _, name := range destinations {
		wants = append(wants, store.Want{Destination: name, Max: most}, store.Want{Destination: name, Retries: true, Max: most})
	}
	return s.Fetch(ctx, wants, 1<<20, nil)
}

// Settle calls s.Settle again after errors, until all of ss are settled or ctx ends.
func Settle(ctx context.Context, s webhook.Store, ss []store.Settlement) {
	for len(ss) > 0 && ctx.Err() == nil {
		n, err := s.Settle(ctx, ss)
		if ss = ss[n:]; err != nil {
			wait(ctx, 50*time.Millisecond)
		}
	}
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
