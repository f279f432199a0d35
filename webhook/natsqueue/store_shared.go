package natsqueue

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/hookferry/analytics/audience"
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

// UpdateAudience implements audience.Roster. f stores changed members one by one, by members.Set.
// After f, UpdateAudience stores the record of the audience. So after a crash in between, the record
// is the old one, and the same call can be repeated. If another node changes the audience or one of
// these members meanwhile, UpdateAudience starts over with the new record and calls f again.
func (s *Store) UpdateAudience(ctx context.Context, id string, f func(*audience.Record, audience.Members) error) error {
	_, err := call(ctx, s.life, "changing an audience", func() (_ struct{}, err error) {
		for wait := behind; ; wait = min(2*wait, askEvery) {
			err = s.roster.tryChangeAudience(ctx, id, f)
			if errors.Is(err, errChanged) {
				if err = sleep(ctx, wait); err == nil {
					continue
				}
			}
			return struct{}{}, err
		}
	})
	return err
}

// Members implements audience.Roster. It has the ids of all members in memory.
func (s *Store) Members(ctx context.Context, id string) iter.Seq2[string, error] {
	return page(ctx, s.life, "listing members", func() ([]string, error) { return s.roster.memberIDs(ctx, id) })
}

// Audiences implements audience.Roster.
func (s *Store) Audiences(ctx context.Context) iter.Seq2[audience.Entry, error] {
	return page(ctx, s.life, "listing audiences", func() (all []audience.Entry, _ error) {
		found, err := s.conn.documents(ctx, s.conn.config.audience("*"))
		for id, m := range found {
			var rec audience.Record
			if err == nil {
				err = rec.UnmarshalBinary(m.Data)
			}
			all = append(all, audience.Entry{ID: id, Name: rec.Name, Generation: rec.Generation})
		}
		slices.SortFunc(all, func(a, b audience.Entry) int { return strings.Compare(a.ID, b.ID) })
		return all, err
	})
}
