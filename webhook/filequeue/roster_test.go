package filequeue_test

import (
	"testing"

	"github.com/hookferry/analytics/audience/rostertest"
	"github.com/hookferry/analytics/webhook/filequeue"
)

func TestRoster(t *testing.T) {
	rostertest.Run(t, func(t testing.TB, dir string) rostertest.Store {
		s, err := filequeue.OpenUnsynced(dir, filequeue.Config{})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}, rostertest.Traits{Durable: true, Bubble: true})
}
