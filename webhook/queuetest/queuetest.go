// Package queuetest is what a store for webhook.Forwarder has to pass: cases for the sentences
// of the contract of webhook.Store, webhook.History and webhook.Shared, and at the end random
// operations compared with a model.
//
//	func TestStore(t *testing.T) {
//		queuetest.Run(t, open, queuetest.Traits{Durable: true})
//	}
//
// A case that fails prints its sentences. An audience.Roster is tested by package rostertest.
//
// The random operations have a fixed seed, so that every run is the same. Two flags run them, and
// nothing else, with other seeds: -soak.for=1m draws seeds for a minute, -soak.seed=42 takes that one.
//
// No case has a time limit of its own. If a store never does what a case waits for, the time limit of
// the test binary ends the wait (go test -timeout).
package queuetest

import (
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hookferry/analytics/internal/soak"
	"github.com/hookferry/analytics/webhook"
)

// Open opens the store that is kept in dir, which is a new and empty folder of
// the test's own, or one that was opened and closed before. A store on a server
// uses the name as that of its schema or stream. Open fails the test if it
// cannot.
type Open = func(t testing.TB, dir string) webhook.Store

// Traits says what a store is.
type Traits struct {
	// Durable: what was stored is there when the same folder is opened again.
	Durable bool
	// Bubble: the cases may run in synctest bubbles, where hours pass at once,
	// because all goroutines of the store wait for nothing but channels, condition
	// variables and the time package. They may wait for a server, too, if that
	// tells the time of the bubble and always answers. Else some cases wait for
	// a few milliseconds of real time.
	Bubble bool
	// OpenFull opens a store whose bound is so low that it is reached within
	// 64 MB of bodies. Nil leaves the cases of ErrQueueFull out: the store has
	// no bound of its own.
	OpenFull Open
	// OpenHistory opens a webhook.History that keeps all that the cases deliver. Nil leaves its
	// cases out.
	OpenHistory Open
	// Share: the same folder may be open several times at once, as by several
	// processes. Cases for webhook.Shared are left out if the store does not implement it.
	Share bool
	// Abandon leaves a store as the end of its process would: nothing is given
	// back. It is closed later. Nil leaves the case of that out.
	Abandon func(t testing.TB, s webhook.Store)
}

// A testCase is a few sentences of the contract, and how they are checked.
type testCase struct {
	name     string
	sentence string
	run      func(k *kit)
}

// Run runs all cases, each as a subtest with a store of its own.
func Run(t *testing.T, open Open, traits Traits) {
	groups := []struct {
		applies bool
		open    Open
		cases   []testCase
	}{
		{true, open, slices.Concat(putCases, claimCases, callCases, keeperCases, deadCases)},
		{traits.Durable, open, durableCases},
		{traits.OpenFull != nil, traits.OpenFull, fullCases},
		{traits.OpenHistory != nil, traits.OpenHistory, historyCases},
		{traits.Share, open, shareCases},
		{traits.Share && traits.Abandon != nil, open, abandonCases},
	}
	for _, g := range groups {
		if !g.applies || soak.On() && traits.Bubble { // the soak repeats these only where time is real
			continue
		}
		for _, c := range g.cases {
			t.Run(c.name, func(t *testing.T) { runCase(t, c, g.open, traits, 1) })
		}
	}
	t.Run(randomCase.name, func(t *testing.T) {
		for seed := range soak.Seeds(t, 1) {
			runCase(t, randomCase, open, traits, seed)
		}
	})
}

func runCase(t *testing.T, c testCase, open Open, traits Traits, seed uint64) {
	body := func(t *testing.T) {
		k := &kit{T: t, ctx: t.Context(), traits: traits, open: open, dir: t.TempDir(), r: rand.New(rand.NewPCG(seed, 0)), unit: time.Minute, model: newModel()}
		if !traits.Bubble {
			k.unit = 5 * time.Millisecond
		}
		defer func() {
			k.close()
			if t.Failed() {
				t.Logf("the contract: %s", c.sentence)
			}
		}()
		k.reopen()
		c.run(k)
	}
	if traits.Bubble {
		synctest.Test(t, body)
	} else {
		body(t)
	}
}
