// Package queuetest tests a store for webhook.Forwarder. It has cases for the sentences of the
// contract of store.Store, store.History and store.Shared. At the end of each, no maintenance
// step of a store.Maintained may keep failing. All cases compare the store with a
// model. The first ones make random calls, of more and more methods; the last one makes many.
//
//	func TestStore(t *testing.T) {
//		queuetest.Run(t, open, queuetest.Traits{Durable: true})
//	}
//
// A case that fails prints the sentences of the contract that it tests, and the stack of the call
// that failed. Package rostertest tests an audience.Roster.
//
// The random calls use a fixed seed, so that every run is the same. Two environment variables run
// only the last case, with other seeds: SOAK_FOR=1m draws seeds for a minute, and SOAK_SEED=42 uses
// this seed.
//
// The cases have no time limits of their own. If a store never does something that a case waits
// for, the time limit of the test binary ends the wait (go test -timeout).
package queuetest

import (
	"math/rand/v2"
	"runtime/debug"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hookferry/analytics/internal/soakenv"
	"github.com/hookferry/analytics/webhook/store"
)

// Open opens the store in dir. The folder dir belongs to the test. It is new and empty, or a store
// in it was opened and closed before. A store on a server uses the name of dir as the name of its
// schema or stream. If Open cannot open the store, it fails the test.
type Open = func(t testing.TB, dir string) store.Store

// Traits describes a store.
type Traits struct {
	// Durable says that the contents of the store are still there when the same folder is opened
	// again.
	Durable bool
	// Bubble says that the cases may run in synctest bubbles, where hours pass at once. So the
	// goroutines of the store must only wait for channels, condition variables and the time
	// package. They may also wait for a server that uses the time of the bubble and always answers.
	// Without Bubble, some cases wait for a few milliseconds of real time.
	Bubble bool
	// OpenFull opens a store that reaches its bound within 64 MB of bodies. Nil is for a store
	// without a bound of its own, and leaves out the cases of ErrQueueFull.
	OpenFull Open
	// OpenHistory opens a store.History that keeps all deliveries which the cases deliver. Nil
	// leaves out the cases of store.History.
	OpenHistory Open
	// Share says that the same folder may be open several times at once, as if several processes
	// shared the store. Cases of store.Shared are left out if the store does not implement it.
	Share bool
	// Abandon stops a store as if its process had died: the store returns none of its claims. The
	// case closes the store later. Nil leaves out the case of a node that died.
	Abandon func(t testing.TB, s store.Store)
}

// A testCase has some sentences of the contract, and the function that tests them.
type testCase struct {
	name     string
	sentence string
	run      func(k *kit)
}

// Run runs all cases, each as a subtest with its own store.
func Run(t *testing.T, open Open, traits Traits) {
	groups := []struct {
		applies bool
		open    Open
		cases   []testCase
	}{
		{true, open, slices.Concat(walkCases, storeCases, callCases, inspectorCases, documentCases, orderCases)},
		{traits.Durable, open, durableCases},
		{traits.OpenFull != nil, traits.OpenFull, fullCases},
		{traits.OpenHistory != nil, traits.OpenHistory, historyCases},
		{traits.Share, open, slices.Concat(shareCases, shareOrderCases)},
	}
	for _, g := range groups {
		// The soak repeats these cases only in real time.
		if !g.applies || soakenv.On() && traits.Bubble {
			continue
		}
		for _, c := range g.cases {
			t.Run(c.name, func(t *testing.T) { runCase(t, c, g.open, traits, 1) })
		}
	}
	t.Run(randomCase.name, func(t *testing.T) {
		for seed := range soakenv.Seeds(t, 1) {
			runCase(t, randomCase, open, traits, seed)
		}
	})
}

func runCase(t *testing.T, c testCase, open Open, traits Traits, seed uint64) {
	body := func(t *testing.T) {
		k := &kit{
			checker: checker{T: t, ctx: t.Context(), model: model{entries: make(map[string]*entry), claims: make(map[uint64]bool), keys: make(map[keyOf][]*entry), documents: make(documents)}},
			traits:  traits, open: open, dir: t.TempDir(), r: rand.New(rand.NewPCG(seed, 0)), unit: time.Minute,
		}
		if !traits.Bubble {
			k.unit = 5 * time.Millisecond
		}
		k.s = open(t, k.dir)
		defer func() {
			k.close(k.s)
			if t.Failed() { // the stack says which line of the case made the failed call
				t.Logf("the contract: %s\n%s", c.sentence, debug.Stack())
			}
		}()
		c.run(k)
	}
	if traits.Bubble {
		synctest.Test(t, body)
	} else {
		body(t)
	}
}
