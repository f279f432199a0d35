package admin

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/store"
)

// A sharedStore is a store that knows other servers.
type sharedStore struct {
	webhook.Store
	known []store.Node
}

func (s *sharedStore) Present(func() ([]byte, bool)) {}

func (s *sharedStore) Release(context.Context) error { return nil }

func (s *sharedStore) Nodes(context.Context) ([]store.Node, error) { return s.known, nil }

func TestNodesListsServersOfTheStore(t *testing.T) {
	seen := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	note, err := json.Marshal(api.Node{Name: "another name", Version: "v2", Started: seen, InFlight: 3, Delivered: 4, Self: true, Rates: api.Rates{Delivered: 5}})
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name   string
		known  []store.Node
		shared bool
		want   []api.Node // without the times of the node that answers
	}{
		{"a store of one server", nil, false, []api.Node{{Name: "host/self", Self: true, Version: "v1.2.3", Ready: true}}},
		{"a shared store", []store.Node{
			{Name: "old", Seen: seen},
			{Name: "other", Seen: seen, Note: note},
			{Name: "host/self", Self: true, Seen: seen, Note: note},
			{Name: "odd", Note: []byte(`{"version":7}`)},
		}, true, []api.Node{
			{Name: "old", Seen: seen},
			{Name: "other", Seen: seen, Version: "v2", Started: seen, InFlight: 3, Delivered: 4, Rates: api.Rates{Delivered: 5}},
			{Name: "host/self", Self: true, Version: "v1.2.3", Ready: true},
			{Name: "odd"},
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newServer(t, func(c *Config) {
				if tt.shared {
					c.Store = &sharedStore{c.Store, tt.known}
				}
			})
			got := ask[api.Nodes](s, 200, "GET", api.NodesPath, nil)
			for i := range got.Nodes {
				if n := &got.Nodes[i]; n.Self {
					if n.Seen.IsZero() || time.Since(n.Seen) > time.Minute || n.Started.IsZero() {
						t.Errorf("the node that answers is %+v, want the current time and its start", n)
					}
					n.Seen, n.Started = time.Time{}, time.Time{}
				}
			}
			if d := cmp.Diff(api.Nodes{Shared: tt.shared, Nodes: tt.want}, got); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
		})
	}
}
