package server

import (
	"fmt"
	"math"
	"runtime/debug"

	"github.com/KimMachineGun/automemlimit/memlimit"

	"github.com/hookferry/analytics/cmd/hookferry/internal/config"
	"github.com/hookferry/analytics/collector"
)

// limitMemory tells Go's runtime what memory the process may take, and returns that: what
// GOMEMLIMIT says, or the settings, or what the system has. It is math.MaxInt64 where nobody
// says anything.
//
// The limit is soft: near it the collector of garbage works more. What requests, the store
// and the forwarder hold has bounds of its own far below, so the rest is garbage.
func limitMemory(limits *config.Limits, getenv func(string) string) int64 {
	if getenv("GOMEMLIMIT") == "" {
		limit := int64(limits.ProcessMemory)
		if limit == 0 {
			limit = systemMemory()
		}
		if limit > 0 {
			debug.SetMemoryLimit(limit)
		}
	}
	return debug.SetMemoryLimit(-1)
}

// requestMemory returns the memory for requests of clients.
func requestMemory(limits *config.Limits, process int64) int64 {
	if limits.Memory > 0 {
		return int64(limits.Memory)
	}
	return min(collector.DefaultMaxMemory, process/4)
}

// systemMemory returns the memory that a process may take on this system: nine tenths of
// that of its container, as some is not the runtime's, or half of that of the machine, on
// which there are others. It is 0 where it is not known.
func systemMemory() int64 {
	limit, err := memlimit.ApplyFallback(memlimit.ApplyRatio(memlimit.FromCgroup, 0.9), memlimit.ApplyRatio(memlimit.FromSystem, 0.5))()
	if err != nil {
		return 0
	}
	return int64(min(limit, math.MaxInt64))
}

// shown is a number of bytes for people, "none" for a bound that is none.
func shown(bytes int64) string {
	if bytes <= 0 || bytes == math.MaxInt64 {
		return "none"
	}
	return fmt.Sprintf("%d MB", bytes>>20)
}
