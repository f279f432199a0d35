package server

import (
	"math"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/hookferry/analytics/cmd/hookferry/internal/config"
	"github.com/hookferry/analytics/signature"
)

// TestMemoryLimit: GOMEMLIMIT goes before the settings, and they before what the system has.
// What requests may take follows, unless the settings say.
func TestMemoryLimit(t *testing.T) {
	was := debug.SetMemoryLimit(-1)
	defer debug.SetMemoryLimit(was)
	for _, tt := range []struct {
		name              string
		env               string
		limits            config.Limits
		process, requests int64 // 0: some
	}{
		{"the environment", "1GiB", config.Limits{ProcessMemory: 2 << 30}, was, 0},
		{"the settings", "", config.Limits{ProcessMemory: 512 << 20}, 512 << 20, 128 << 20},
		{"much", "", config.Limits{ProcessMemory: 1 << 40}, 1 << 40, 256 << 20},
		{"and of requests", "", config.Limits{ProcessMemory: 512 << 20, Memory: 300 << 20}, 512 << 20, 300 << 20},
	} {
		debug.SetMemoryLimit(was)
		got := limitMemory(&tt.limits, func(name string) string {
			return map[string]string{"GOMEMLIMIT": tt.env}[name]
		})
		if now := debug.SetMemoryLimit(-1); got != tt.process || now != got {
			t.Errorf("%s: the limit is %d, and %d is said; want %d", tt.name, now, got, tt.process)
		}
		if n := requestMemory(&tt.limits, got); tt.requests > 0 && n != tt.requests {
			t.Errorf("%s: requests may take %d, want %d", tt.name, n, tt.requests)
		}
	}
	if n := requestMemory(&config.Limits{}, math.MaxInt64); n != 256<<20 {
		t.Errorf("without a limit requests may take %d, want 256 MB", n)
	}
}

func TestBoundOfTheStore(t *testing.T) {
	for _, tt := range []struct{ size, free, want int64 }{
		{0, 100 << 20, 75 << 20},
		{40 << 20, 60 << 20, 75 << 20}, // as before, once it has grown
		{90 << 20, 10 << 20, 90 << 20}, // others have filled the disk
		{90 << 20, 0, 90 << 20},
	} {
		if got := boundOf(tt.size, tt.free); got != tt.want {
			t.Errorf("a store of %d, with %d free, may come to %d; want %d", tt.size, tt.free, got, tt.want)
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

// TestByteRate: the bytes of webhooks that a source may cause follow from its calls, unless the
// settings say, and their limit goes on when the settings change.
func TestByteRate(t *testing.T) {
	for _, tt := range []struct {
		name   string
		source config.Source
		rate   float64
		burst  int
	}{
		{"no rate", config.Source{Burst: 0, Destinations: []string{"a"}}, 0, 4096},
		{"a rate", config.Source{Rate: 2.5, Destinations: []string{"a"}}, 2.5 * 4096, 3 * 4096},
		{"for two destinations", config.Source{Rate: 100, Burst: 500, Destinations: []string{"a", "b"}}, 100 * 8192, 500 * 8192},
		{"for none", config.Source{Rate: 100}, 100 * 4096, 100 * 4096},
		{"bytes", config.Source{ByteRate: 1 << 20, Destinations: []string{"a", "b"}}, 1 << 20, 1 << 20},
		{"both", config.Source{Rate: 1, ByteRate: 1 << 40}, 1 << 40, math.MaxInt32},
		{"many calls", config.Source{Rate: 1_000_000, Destinations: []string{"a"}}, 1_000_000 * 4096, math.MaxInt32},
	} {
		if rate, burst := byteRate(tt.source); rate != tt.rate || burst != tt.burst {
			t.Errorf("%s: %v bytes a second, %d at once; want %v and %d", tt.name, rate, burst, tt.rate, tt.burst)
		}
	}

	var s sources
	limits := func(c config.Source) (calls, bytes any) {
		c.Name, c.Enabled, c.Keys = "a", true, []signature.Secret{"k"}
		s.use(&config.Settings{Sources: []config.Source{c}})
		source, err := s.find(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		return source.Limit, source.ByteLimit
	}
	calls, bytes := limits(config.Source{Rate: 5})
	if c, b := limits(config.Source{Rate: 5}); c != calls || b != bytes {
		t.Error("limits that did not change begin anew")
	}
	if c, b := limits(config.Source{Rate: 5, ByteRate: 1 << 20}); c != calls || b == bytes {
		t.Error("another rate of bytes changes the limit of calls, or not that of bytes")
	}
}
