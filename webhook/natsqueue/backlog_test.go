package natsqueue

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/store"
)

// Two forwarders bury what exceeds BacklogMaxBytes of a destination: once, and no more than needed.
func TestTwoForwardersBoundBacklog(t *testing.T) {
	bubble(t, func(t *testing.T, s *testServer) {
		other, owner, name := apart(t, s)
		const n = 1000
		mustPut(t, owner, deliveries(name, 0, n)...)
		counted := func() (c store.DestinationCounts) {
			for c = range owner.CountByDestination(t.Context(), name) {
			}
			return c
		}
		all := counted()
		c := webhook.Config{
			BacklogMaxBytes: all.Bytes / 2,
			Destinations:    []webhook.Destination{{ID: name, Endpoints: []webhook.Endpoint{{URL: "http://crm.example/"}}}},
		}
		var fs []*webhook.Forwarder
		for _, q := range []*Store{other, owner} {
			c.Store = q
			f, err := webhook.New(c)
			if err == nil && len(fs) == 0 {
				err = f.Pause(t.Context(), name)
			}
			if err != nil {
				t.Fatal(err)
			}
			fs = append(fs, f)
			ended := make(chan error, 1)
			go func() { ended <- f.Run(t.Context()) }()
			defer func() {
				if err := f.Shutdown(t.Context()); err != nil {
					t.Error(err)
				}
				if err := <-ended; err != nil {
					t.Error(err)
				}
			}()
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		dead := make(map[string]bool)
		for _, d := range list(t, owner, store.Query{States: []store.State{store.StateDead}}) {
			dead[d.ID] = true
		}
		left, each := counted(), all.Bytes/n
		if left.Bytes > c.BacklogMaxBytes || left.Bytes < c.BacklogMaxBytes-2*each || len(dead)+left.Waiting != n {
			t.Errorf("%+v and %d dead letters are left of %d, want about half of the %d bytes to wait", left, len(dead), n, all.Bytes)
		}
		if x, y := fs[0].Stats().Dead[webhook.ReasonBacklog], fs[1].Stats().Dead[webhook.ReasonBacklog]; x+y != int64(len(dead)) {
			t.Errorf("the forwarders count %d and %d dead letters, want %d", x, y, len(dead))
		}
	})
}
