package natsqueue

import (
	"fmt"
	"strings"
	"testing"
)

// setMaxPayload changes max_payload while the server runs, and waits until clients know it.
func (s *testServer) setMaxPayload(t *testing.T, bytes int32, qs ...*Store) {
	t.Helper()
	options := s.options.Clone()
	options.MaxPayload = bytes
	if err := s.ReloadOptions(options); err != nil {
		t.Fatal(err)
	}
	for _, q := range qs {
		q.nc.ForceReconnect()
		until(t, "the client knows max_payload", func() bool { return q.nc.IsConnected() && q.nc.MaxPayload() == int64(bytes) })
	}
}

// The counts of many destinations with long names are divided into several answers, if the server
// takes only small messages.
func TestCountsFitIntoASmallMaxPayload(t *testing.T) {
	bubble(t, func(t *testing.T, s *testServer) {
		c := Config{Partitions: 1}
		a := ready(s.open(t, c))
		defer a.Close()
		b := s.open(t, c)
		defer b.Close()
		const n = 1500
		for i := range n {
			mustPut(t, a, deliveries(fmt.Sprint(strings.Repeat("n", 250), i), 0, 1)...)
		}
		s.setMaxPayload(t, 64<<10, a, b)
		for _, q := range []*Store{a, b} { // one of them is not the owner
			got := 0
			for c, err := range q.CountByDestination(t.Context()) {
				if err != nil {
					t.Fatal(err)
				}
				got += c.Waiting
			}
			if got != n {
				t.Errorf("CountByDestination counts %d deliveries, want %d", got, n)
			}
		}
	})
}
