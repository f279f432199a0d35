package memqueue_test

import (
	"testing"

	"github.com/hookferry/analytics/audience/rostertest"
	"github.com/hookferry/analytics/webhook/memqueue"
)

func TestRoster(t *testing.T) {
	rostertest.Run(t, func(testing.TB, string) rostertest.Store { return memqueue.New(memqueue.Config{}) }, rostertest.Traits{Bubble: true})
}
