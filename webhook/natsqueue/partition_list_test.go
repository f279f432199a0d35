package natsqueue

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/hookferry/analytics/webhook/store"
)

// A list of few deliveries behind many others holds the index for a bounded number of them at a time. It
// finds the few all the same, on any node.
func TestListLooksAtABoundedNumberAtATime(t *testing.T) {
	bubble(t, func(t *testing.T, s *testServer) {
		other, owner, name := apart(t, s)
		few := deliveries(name, 0, 3)
		for i := range few {
			few[i].User = "ann"
		}
		mustPut(t, owner, few...)
		settle(t, owner, store.Bury, fetch(t, owner, len(few), name)[0])
		const n = 2*maxLooked + 1000
		for some := range slices.Chunk(deliveries(name, 1000, n), 1000) {
			mustPut(t, owner, some...)
		}
		p := owner.partitions.ready(owner.conn.config.partition(name))
		for _, x := range []struct {
			query store.Query
			want  int
		}{
			{store.Query{States: []store.State{store.StateClaimed}}, 2},
			{store.Query{States: []store.State{store.StateDead}}, 1},
			{store.Query{User: "ann"}, 3},
		} {
			empty := 0
			a := p.list(&question{Query: x.query, Max: pageLen})
			for ; a.More && len(a.Refs) == 0; a = p.list(&question{Query: x.query, Max: pageLen, After: a.After}) {
				empty++
			}
			if empty != 2 || len(a.Refs) != x.want || a.More {
				t.Errorf("%+v: after %d answers without any, an answer has %d, and more %v; want 2, %d, and no more", x.query, empty, len(a.Refs), a.More, x.want)
			}
			for _, s := range []*Store{other, owner} {
				page, next, err := s.List(t.Context(), x.query, 0, 100)
				if len(page) != x.want || next != 0 || err != nil {
					t.Errorf("%+v: List = %d, %d, %v; want %d", x.query, len(page), next, err, x.want)
				}
			}
		}
		if a := p.list(&question{Query: store.Query{States: []store.State{store.StateBehind}}, Max: pageLen}); len(a.Refs) > 0 || a.More {
			t.Errorf("without any delivery in a state, the answer has %d, and more %v", len(a.Refs), a.More)
		}
		if erased, claimed, err := other.Erase(t.Context(), "ann"); erased != 1 || claimed != 2 || err != nil {
			t.Errorf("Erase = %d, %d, %v; want 1, 2", erased, claimed, err)
		}
	})
}

// The lists of several lanes are merged, in both orders, from each place, whatever is skipped.
func TestListMergesLanes(t *testing.T) {
	bubble(t, func(t *testing.T, s *testServer) {
		q := ready(s.open(t, Config{Partitions: 1}))
		defer q.Close()
		for i := range 60 {
			mustPut(t, q, deliveries(fmt.Sprint("d", i*i%7), i, 1)...)
		}
		settle(t, q, store.Done, fetch(t, q, 9, "d0")[2:]...)
		time.Sleep(time.Second)
		p := partitionOf(q)
		for _, oldest := range []bool{true, false} {
			query := store.Query{Oldest: oldest}
			all := p.list(&question{Query: query, Max: pageLen})
			if len(all.Refs) != 53 || all.More {
				t.Fatalf("the list has %d, more %v; want 53", len(all.Refs), all.More)
			}
			if !slices.IsSortedFunc(all.Refs, func(x, y store.Ref) int { return (&store.Listing{Query: &query}).Compare(x.Seq, y.Seq) }) {
				t.Errorf("oldest %v: the list has another order: %v", oldest, all.Refs)
			}
			for i, r := range all.Refs[:50] {
				a := p.list(&question{Query: query, After: r.Seq, Max: 3})
				if !slices.Equal(a.Refs, all.Refs[i+1:i+4]) || a.After != all.Refs[i+3].Seq {
					t.Errorf("oldest %v, after %d: %v and then %d, want %v", oldest, r.Seq, a.Refs, a.After, all.Refs[i+1:i+4])
				}
			}
		}
	})
}
