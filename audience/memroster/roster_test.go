package memroster_test

import (
	"errors"
	"testing"

	"github.com/hookferry/analytics/audience"
	"github.com/hookferry/analytics/audience/memroster"
	"github.com/hookferry/analytics/audience/rostertest"
)

func TestRoster(t *testing.T) {
	rostertest.Run(t, func(testing.TB, string) rostertest.Store { return memroster.New(256 << 20) }, rostertest.Traits{Bubble: true})
}

// An UpdateAudience for which there is no room changes neither the record nor the members.
func TestRefusedUpdateChangesNothing(t *testing.T) {
	r := memroster.New(10_000)
	defer r.Close()
	update := func(f func(*audience.Record, audience.Members) error) error {
		return r.UpdateAudience(t.Context(), "vip", f)
	}
	if err := update(func(_ *audience.Record, members audience.Members) error { return members.Set([]string{"ann"}, 1) }); err != nil {
		t.Fatal(err)
	}
	if err := update(func(rec *audience.Record, members audience.Members) error {
		rec.InFlight.Users = make([]string, 19)
		return members.Set([]string{"ann"}, 2)
	}); !errors.Is(err, memroster.ErrFull) {
		t.Errorf("UpdateAudience without room = %v, want ErrFull", err)
	}
	if err := update(func(rec *audience.Record, members audience.Members) error {
		found, err := members.Get([]string{"ann"})
		if len(rec.InFlight.Users) != 0 || err != nil || found[0].Generation != 1 {
			t.Errorf("after the refused update: %+v, %+v, %v; want nobody in flight, and ann in generation 1", rec, found, err)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}
