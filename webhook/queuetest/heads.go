package queuetest

import (
	"maps"
	"time"

	"github.com/hookferry/analytics/webhook"
)

// heads returns what Heads yields, without the destinations that have no head.
func (t *subject) heads(s webhook.Store, all bool) map[string]webhook.Head {
	t.Helper()
	got := make(map[string]webhook.Head)
	for h, err := range s.Heads(t.ctx, all) {
		if _, twice := got[h.Destination]; twice || err != nil {
			t.Fatalf("Heads(%v) yields %q twice, or %v", all, h.Destination, err)
		}
		got[h.Destination] = h
	}
	maps.DeleteFunc(got, func(_ string, h webhook.Head) bool { return h.Fresh.IsZero() && h.Retry.IsZero() })
	return got
}

// news waits until Changed has a value that leads to a head for which ok returns true.
func (t *subject) news(s webhook.Store, ok func(destination string) bool) {
	t.Helper()
	for {
		select {
		case <-s.Changed():
		case <-t.ctx.Done():
			t.Fatal("Changed has no value that leads to the head that is wanted")
		}
		for name := range t.heads(s, false) {
			if ok(name) {
				return
			}
		}
	}
}

var headsCases = []testCase{
	{"HeadsChanged", "Unless all is set Heads yields only destinations whose heads somebody else has changed since the call before: Revive. Changed returns a channel that has a value when Heads may have news.", 0, func(k *kit) {
		onlyNews := func(want int) {
			k.Helper()
			if got := k.heads(k.s, false); len(got) != want && !k.traits.Share {
				k.Fatalf("Heads(false) yields %v, want %d", got, want)
			}
		}
		dead := k.bury(3)
		k.put(k.delivery("d0", "own"))
		onlyNews(0)
		for len(k.s.Changed()) > 0 {
			<-k.s.Changed()
		}
		k.exhume(true, dead[1].Key, dead[2].Key)
		for len(k.s.Changed()) == 0 {
			k.wait()
		}
		onlyNews(2)
		onlyNews(0)
		k.exhume(true, dead[0].Key)
		k.news(k.s, func(name string) bool { return name == dead[0].Destination })
	}},
	{"Now", "Now is the time by the clock of the store, kept to the microsecond.", 0, func(k *kit) {
		at := k.s.Now()
		if !at.Equal(at.Truncate(time.Microsecond)) {
			k.Errorf("Now = %v, with parts of a microsecond", at)
		}
		k.pass(k.unit)
		if passed := k.s.Now().Sub(at); passed < k.unit || k.traits.Bubble && passed > k.unit {
			k.Errorf("after %v Now is %v later", k.unit, passed)
		}
	}},
}
