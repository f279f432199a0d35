package natsqueue

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/hookferry/analytics/webhook/store"
)

// Present implements store.Shared.
func (s *Store) Present(note func() ([]byte, bool)) {
	s.node.note.Store(&note)
	s.node.speak.Set()
}

// Nodes implements store.Shared.
func (s *Store) Nodes(ctx context.Context) ([]store.Node, error) {
	return call(ctx, s.life, "listing nodes", func() (nodes []store.Node, _ error) {
		all, _, err := s.node.peers(ctx, 0)
		slices.SortFunc(all, func(a, b peer) int {
			return cmp.Or(cmp.Compare(a.Opened, b.Opened), cmp.Compare(a.id, b.id))
		})
		for _, n := range all {
			nodes = append(nodes, store.Node{
				Name: n.Name, Self: n.id == s.conn.id, Opened: time.UnixMicro(min(n.Opened, n.at.UnixMicro())).UTC(), Seen: n.at, Note: n.Note,
			})
		}
		return nodes, err
	})
}

// Release implements store.Shared. A partition with claimed deliveries is given away once these
// are settled.
func (s *Store) Release(ctx context.Context) error {
	_, err := call(ctx, s.life, "giving partitions away", func() (_ struct{}, err error) {
		s.partitions.leaving.Store(true)
		if err = s.node.beat(ctx); err == nil {
			err = s.balancer.oversee(ctx)
		}
		if err == nil {
			err = s.partitions.announce()
		}
		return struct{}{}, err
	})
	return err
}
