package server

import (
	"math"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/hookferry/analytics/cmd/hookferry/internal/config"
	"github.com/hookferry/analytics/signature"
)

// TestMemoryLimitFollowsEnvironmentThenSettings shows that GOMEMLIMIT wins over the settings, and
// the settings over the memory of the system. The memory of requests is a part of the limit,
// unless the settings name it.
func TestMemoryLimitFollowsEnvironmentThenSettings(t *testing.T) {
	was := debug.SetMemoryLimit(-1)
	defer debug.SetMemoryLimit(was)
	for _, tt := range []struct {
		name              string
		env               string
		limits            config.Limits
		process, requests int64 // 0 in requests if the value does not matter
	}{
		{"the environment", "1GiB", config.Limits{ProcessMemory: 2 << 30}, was, 0},
		{"the settings", "", config.Limits{ProcessMemory: 512 << 20}, 512 << 20, 128 << 20},
		{"the settings, with much memory", "", config.Limits{ProcessMemory: 1 << 40}, 1 << 40, 256 << 20},
		{"the settings, with memory of requests", "", config.Limits{ProcessMemory: 512 << 20, Memory: 300 << 20}, 512 << 20, 300 << 20},
	} {
		debug.SetMemoryLimit(was)
		got := limitMemory(&tt.limits, func(name string) string {
			return map[string]string{"GOMEMLIMIT": tt.env}[name]
		})
		if now := debug.SetMemoryLimit(-1); got != tt.process || now != got {
			t.Errorf("%s: the limit is %d, and limitMemory returns %d, want %d", tt.name, now, got, tt.process)
		}
		if n := requestMemory(&tt.limits, got); tt.requests > 0 && n != tt.requests {
			t.Errorf("%s: requestMemory = %d, want %d", tt.name, n, tt.requests)
		}
	}
	if n := requestMemory(&config.Limits{}, math.MaxInt64); n != 256<<20 {
		t.Errorf("requestMemory without a limit = %d, want 256 MB", n)
	}
}

func TestStoreSizeIsBounded(t *testing.T) {
	for _, tt := range []struct{ size, free, want int64 }{
		{0, 100 << 20, 75 << 20},
		{40 << 20, 60 << 20, 75 << 20}, // the bound does not change while the store grows
		{90 << 20, 10 << 20, 90 << 20}, // other programs have filled the disk
		{90 << 20, 0, 90 << 20},
	} {
		if got := boundOf(tt.size, tt.free); got != tt.want {
			t.Errorf("boundOf(%d, %d) = %d, want %d", tt.size, tt.free, got, tt.want)
		}
	}
	bubble(t, func(t *testing.T, w *world) {
		for limits, want := range map[string]string{"{}": " MB", "{store: 70MB, processMemory: 512MB}": `process_memory="512 MB" request_memory="128 MB" store="70 MB"`} {
			defer debug.SetMemoryLimit(debug.SetMemoryLimit(-1))
			s := w.start("limits: " + limits + "\nsources: [{name: web, keys: [k1]}]\n")
			if text := s.text(); !strings.Contains(text, want) || strings.Contains(text, `store="none"`) {
				t.Errorf("with %s the log lacks %s:\n%s", limits, want, text)
			}
			if err := s.stop(); err != nil {
				t.Error(err)
			}
		}
	})
}

// TestByteRateFollowsCallRate shows that the byte rate of a source follows from its rate of calls,
// unless the settings name a byte rate. The byte rate bounds the webhooks that the source causes.
// Its limit survives new settings with the same rate.
func TestByteRateFollowsCallRate(t *testing.T) {
	for _, tt := range []struct {
		name   string
		source config.Source
		rate   float64
		burst  int
	}{
		{"no rate", config.Source{Burst: 0, Destinations: []string{"a"}}, 0, 4096},
		{"a rate", config.Source{Rate: 2.5, Destinations: []string{"a"}}, 2.5 * 4096, 3 * 4096},
		{"a rate for two destinations", config.Source{Rate: 100, Burst: 500, Destinations: []string{"a", "b"}}, 100 * 8192, 500 * 8192},
		{"a rate for no destination", config.Source{Rate: 100}, 100 * 4096, 100 * 4096},
		{"a byte rate", config.Source{ByteRate: 1 << 20, Destinations: []string{"a", "b"}}, 1 << 20, 1 << 20},
		{"a rate and a byte rate", config.Source{Rate: 1, ByteRate: 1 << 40}, 1 << 40, math.MaxInt32},
		{"a high rate", config.Source{Rate: 1_000_000, Destinations: []string{"a"}}, 1_000_000 * 4096, math.MaxInt32},
	} {
		if rate, burst := byteRate(tt.source); rate != tt.rate || burst != tt.burst {
			t.Errorf("%s: %v bytes a second and a burst of %d, want %v and %d", tt.name, rate, burst, tt.rate, tt.burst)
		}
	}

	var s sources
	limits := func(c config.Source) (calls, bytes any) {
		c.Name, c.Keys = "a", []signature.Secret{"k"}
		s.use(&config.Settings{Sources: []config.Source{c}})
		source, err := s.find(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		return source.Limit, source.ByteLimit
	}
	calls, bytes := limits(config.Source{Rate: 5})
	if c, b := limits(config.Source{Rate: 5}); c != calls || b != bytes {
		t.Error("the source has new limits, want the old ones, as the rate did not change")
	}
	if c, b := limits(config.Source{Rate: 5, ByteRate: 1 << 20}); c != calls || b == bytes {
		t.Error("after another byte rate, want the old limit of calls and a new limit of bytes")
	}
}
