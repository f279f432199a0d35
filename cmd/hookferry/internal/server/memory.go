package server

import (
	"bufio"
	"bytes"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path"
	"runtime/debug"
	"strconv"
	"strings"

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
			limit = systemMemory(os.DirFS("/"))
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

// systemMemory returns the memory that a process may take on a system: nine tenths of that
// of its container, as some is not the runtime's, or half of that of the machine, on which
// there are others. It is 0 where it is not known. The files are Linux's.
func systemMemory(root fs.FS) int64 {
	machine := machineMemory(root)
	if container := containerMemory(root); container < machine {
		return container / 10 * 9
	}
	if machine == math.MaxInt64 {
		return 0
	}
	return machine / 2
}

// machineMemory returns the memory of the machine, math.MaxInt64 if it is not known.
func machineMemory(root fs.FS) int64 {
	text, err := fs.ReadFile(root, "proc/meminfo")
	if err != nil {
		return math.MaxInt64
	}
	_, text, _ = bytes.Cut(text, []byte("MemTotal:"))
	var kilobytes int64
	if _, err := fmt.Fscan(bytes.NewReader(text), &kilobytes); err != nil {
		return math.MaxInt64
	}
	return kilobytes << 10
}

// containerMemory returns the least limit of the control groups that the process is in, of
// either version, math.MaxInt64 if there is none.
func containerMemory(root fs.FS) int64 {
	least := int64(math.MaxInt64)
	text, err := fs.ReadFile(root, "proc/self/cgroup")
	if err != nil {
		return least
	}
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		_, line, _ := strings.Cut(lines.Text(), ":")
		controllers, group, _ := strings.Cut(line, ":")
		var folder, file string
		switch {
		case controllers == "":
			folder, file = "sys/fs/cgroup", "memory.max"
		case strings.Contains(","+controllers+",", ",memory,"):
			folder, file = "sys/fs/cgroup/memory", "memory.limit_in_bytes"
		default:
			continue
		}
		// In a container the path may be the host's, which is not there, and its own
		// group the root.
		for group = path.Clean("/" + group); ; group = path.Dir(group) {
			if text, err := fs.ReadFile(root, path.Join(folder, group, file)); err == nil {
				if n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil {
					least = min(least, n)
				}
			}
			if group == "/" {
				break
			}
		}
	}
	return least
}

// shown is a number of bytes for people, "none" for a bound that is none.
func shown(bytes int64) string {
	if bytes <= 0 || bytes == math.MaxInt64 {
		return "none"
	}
	return fmt.Sprintf("%d MB", bytes>>20)
}
