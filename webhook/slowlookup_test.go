package webhook_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hookferry/analytics/webhook"
)

// However many tenants have look-ups that hang, they do not delay the first delivery of a new
// tenant, and the number of these look-ups has a bound. A look-up that is slow, but succeeds, counts.
func TestLookupsThatHangDelayNoNewTenant(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		recv := r.network.Receiver(hook, "")
		var hanging, most atomic.Int32
		const slots, n = 256, 1000
		r.start(webhook.Config{MaxInFlight: slots, Directory: attempted(func(ctx context.Context, id string) (*webhook.Destination, error) {
			d := &webhook.Destination{ID: id, Endpoints: []webhook.Endpoint{{URL: hook}}}
			switch {
			case strings.HasPrefix(id, "hangs"):
				most.Store(max(most.Load(), hanging.Add(1)))
				defer hanging.Add(-1)
				<-ctx.Done()
				return nil, ctx.Err()
			case id == "slow":
				time.Sleep(2 * time.Second)
				return d, ctx.Err()
			}
			return d, nil
		})})
		put := func(id string) {
			must(t, r.Forward(r.tracking(), id, call(id)))
		}
		for i := range n {
			put(fmt.Sprint("hangs", i))
		}
		for i, wait := range []time.Duration{0, 2 * time.Second, 20 * time.Second} {
			time.Sleep(wait)
			begin := time.Now()
			put(fmt.Sprint("new", i))
			recv.Wait(t.Context(), i+1)
			if took := time.Since(begin); took > time.Second {
				t.Errorf("a new tenant waits %v beside %d whose look-ups hang, want at most 1 s", took, n)
			}
		}
		if n := most.Load(); n > 2*slots {
			t.Errorf("%d look-ups hang at once, want at most %d", n, 2*slots)
		}

		before := len(recv.Requests())
		put("slow")
		begin := time.Now()
		recv.Wait(t.Context(), before+1)
		if took := time.Since(begin); took > time.Minute {
			t.Errorf("a tenant whose look-up takes 2 s waits %v, want at most a minute", took)
		}
	})
}
