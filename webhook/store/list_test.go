package store

import (
	"slices"
	"testing"
	"time"
)

func TestFilterMatches(t *testing.T) {
	at := time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)
	r := Record{State: StateDead, Reason: ReasonRefused, Delivery: Delivery{
		Destination: "crm", ID: "digest", MessageID: "message", Type: "invoice.paid", Event: "Order Completed", User: "u1", Accepted: at,
	}}
	for _, tt := range []struct {
		query Query
		want  bool
	}{
		{Query{}, true},
		{Query{Destinations: []string{"other", "crm"}}, true},
		{Query{Destinations: []string{"other"}}, false},
		{Query{States: []State{StateWaiting, StateDead}}, true},
		{Query{States: []State{StateWaiting}}, false},
		{Query{ID: "digest"}, true},
		{Query{ID: "message"}, true},
		{Query{ID: "mess"}, false},
		{Query{Type: "invoice.*"}, true},
		{Query{Type: "*"}, true},
		{Query{Type: "invoice.p"}, false},
		{Query{Type: "track*"}, false},
		{Query{Event: "Order*"}, true},
		{Query{Event: "Order"}, false},
		{Query{User: "u1", Reason: ReasonRefused}, true},
		{Query{User: "u2"}, false},
		{Query{Reason: ReasonExpired}, false},
		{Query{From: at, To: at.Add(1)}, true},
		{Query{From: at.Add(1)}, false},
		{Query{To: at}, false},
	} {
		if got := tt.query.Match(&r); got != tt.want {
			t.Errorf("%+v matches: %v, want %v", tt.query, got, tt.want)
		}
	}
}

func TestListing(t *testing.T) {
	at := time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)
	// One delivery for each minute before at: the newest has the number 1000.
	record := func(seq uint64) *Record {
		return &Record{Delivery: Delivery{Seq: seq, ID: "id", Body: make([]byte, 1<<20), Accepted: at.Add(-time.Duration(1000-seq) * time.Minute)}}
	}
	for _, tt := range []struct {
		name  string
		l     Listing
		first uint64
		want  []uint64
		next  uint64
	}{
		{"Max bounds a page.", Listing{Query: &Query{}, Max: 2}, 1000, []uint64{1000, 999}, 999},
		{"The page stays within MaxListSize.", Listing{Query: &Query{}, Max: 100}, 1000, []uint64{1000, 999, 998}, 998},
		{"What is older than From ends the list.", Listing{Query: &Query{From: at.Add(-time.Minute)}, Max: 100}, 1000, []uint64{1000, 999}, 0},
		{"What is newer than To ends a list that begins with the oldest.", Listing{Query: &Query{Oldest: true, To: at.Add(-998 * time.Minute)}, Max: 100}, 1, []uint64{1}, 0},
	} {
		for seq := tt.first; tt.l.Add(record(seq)); {
			if seq--; tt.l.Query.Oldest {
				seq += 2
			}
		}
		var got []uint64
		for _, r := range tt.l.Page {
			got = append(got, r.Seq)
		}
		if !slices.Equal(got, tt.want) || tt.l.Next != tt.next {
			t.Errorf("%s\ngot %v and then %d, want %v and then %d", tt.name, got, tt.l.Next, tt.want, tt.next)
		}
	}
	l := Listing{Query: &Query{ID: "none"}, Max: 1}
	n := 1
	for seq := uint64(1_000_000); l.Add(&Record{Delivery: Delivery{Seq: seq}}); seq-- {
		n++
	}
	if n != MaxListed || len(l.Page) != 0 || l.Next != 1_000_001-MaxListed {
		t.Errorf("looked at %d deliveries, with the page %v and then %d", n, l.Page, l.Next)
	}
}

func TestSeek(t *testing.T) {
	at := time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)
	seqs := []uint64{3, 4, 90, 91, 92, 500, 70_000, 1 << 40} // one accepted every hour
	for i := range seqs {
		accepted := at.Add(time.Duration(i) * time.Hour)
		l := Listing{Query: &Query{To: accepted}}
		probes := 0
		err := l.Seek(func(after uint64) (uint64, time.Time, error) {
			probes++
			for i, seq := range slices.Backward(seqs) {
				if l.Follows(seq) && (after == 0 || seq < after) {
					return seq, at.Add(time.Duration(i) * time.Hour), nil
				}
			}
			return 0, time.Time{}, nil
		})
		want := uint64(0) // from the newest one
		if i+1 < len(seqs) {
			want = seqs[i+1]
		}
		if err != nil || l.After != want || probes > 64 {
			t.Errorf("Seek to %v moves After to %d, with %d probes, %v; want %d", accepted, l.After, probes, err, want)
		}
	}
}
