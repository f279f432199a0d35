package server

import (
	"fmt"
	"math"
	"runtime/debug"

	"github.com/KimMachineGun/automemlimit/memlimit"

	"github.com/hookferry/analytics/cmd/hookferry/internal/config"
	"github.com/hookferry/analytics/collector"
)

// limitMemory sets the memory limit of the Go runtime, and returns it in bytes. The limit comes
// from GOMEMLIMIT, the settings or the system, in this order. math.MaxInt64 is no limit.
//
// The limit is soft: close to it, the garbage collector runs more often. Requests, the store and the
// forwarder have bounds far below it, so most memory beyond these is garbage.
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

// requestMemory returns the bound of the memory for requests, in bytes, for a process with the
// given memory limit.
func requestMemory(limits *config.Limits, process int64) int64 {
	if limits.Memory > 0 {
		return int64(limits.Memory)
	}
	return min(collector.DefaultMaxMemory, process/4)
}

// systemMemory returns how much memory the process may take, in bytes, or 0 if that is unknown: nine
// tenths of the container's, because the Go runtime does not manage all memory of a process, or half
// of the machine's, because other processes need some.
func systemMemory() int64 {
	limit, err := memlimit.ApplyFallback(memlimit.ApplyRatio(memlimit.FromCgroup, 0.9), memlimit.ApplyRatio(memlimit.FromSystem, 0.5))()
	if err != nil {
		return 0
	}
	return int64(min(limit, math.MaxInt64))
}

// shown returns a bound in bytes as a text for the log, "none" if there is no bound.
func shown(bytes int64) string {
	if bytes <= 0 || bytes == math.MaxInt64 {
		return "none"
	}
	return fmt.Sprintf("%d MB", bytes>>20)
}
