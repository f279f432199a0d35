package server

import (
	"fmt"
	"math"
	"runtime/debug"

	"github.com/KimMachineGun/automemlimit/memlimit"

	"github.com/hookferry/analytics/cmd/hookferry/internal/config"
	"github.com/hookferry/analytics/collector"
)

// limitMemory sets the memory limit of Go's runtime, and returns it in bytes: that of GOMEMLIMIT, of
// the settings, or of the system, in this order. It is math.MaxInt64 if none of them has one.
//
// The limit is soft: near it the garbage collector works more. The memory of requests, the store and
// the forwarder has bounds of its own far below it, so the rest is garbage.
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

// requestMemory returns the memory for requests of clients, in bytes.
func requestMemory(limits *config.Limits, process int64) int64 {
	if limits.Memory > 0 {
		return int64(limits.Memory)
	}
	return min(collector.DefaultMaxMemory, process/4)
}

// systemMemory returns the memory that the process may take, in bytes: nine tenths of its container's,
// because the runtime does not manage all memory, or half of the machine's, which has other users. It
// is 0 if it is not known.
func systemMemory() int64 {
	limit, err := memlimit.ApplyFallback(memlimit.ApplyRatio(memlimit.FromCgroup, 0.9), memlimit.ApplyRatio(memlimit.FromSystem, 0.5))()
	if err != nil {
		return 0
	}
	return int64(min(limit, math.MaxInt64))
}

// shown returns a bound in bytes for the log, "none" if there is none.
func shown(bytes int64) string {
	if bytes <= 0 || bytes == math.MaxInt64 {
		return "none"
	}
	return fmt.Sprintf("%d MB", bytes>>20)
}
