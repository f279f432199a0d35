package simulation

import (
	"log/slog"
	"testing"
	"testing/synctest"

	"github.com/hookferry/analytics/internal/simdisk"
	"github.com/hookferry/analytics/internal/soak"
	"github.com/hookferry/analytics/internal/testkit"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/filequeue"
)

func open(d *simdisk.Disk) (webhook.Store, error) {
	return filequeue.OpenOn(d, filequeue.Config{Logger: slog.New(slog.DiscardHandler)})
}

// No acknowledged message is lost, and no delivery is repeated without a reason, whatever fails.
// Each seed is one run of the simulation.
func TestSimulation(t *testing.T) {
	seeds := 200
	if testkit.Race {
		seeds = 10
	}
	for seed := range soak.Seeds(t, seeds) {
		var err error
		synctest.Test(t, func(t *testing.T) { err = simulate(t, seed, open) })
		if err != nil {
			t.Fatalf("go run ./soak simulation -seed %d\n%v", seed, err)
		}
	}
}
