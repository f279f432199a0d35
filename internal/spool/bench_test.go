package spool_test

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/hookferry/analytics/internal/soakenv"
	"github.com/hookferry/analytics/internal/spool"
)

// full is the configuration that a client uses.
var full = spool.Config{Head: `{"batch":[`, MaxData: 511 << 10, MaxMessages: 2500}

// A heap collects messages like a segment, but in the memory of the process and without
// checksums.
type heap struct {
	data []byte
	ends []int32
}

func (h *heap) append(message []byte) {
	if len(h.data)+1+len(message) > full.MaxData || len(h.ends) == full.MaxMessages {
		h.data, h.ends = h.data[:len(full.Head)], h.ends[:0]
	}
	if len(h.ends) > 0 {
		h.data = append(h.data, ',')
	}
	h.data = append(h.data, message...)
	h.ends = append(h.ends, int32(len(h.data)))
}

func newHeap() *heap {
	return &heap{data: append(make([]byte, 0, full.MaxData), full.Head...), ends: make([]int32, 0, full.MaxMessages)}
}

// An appender appends to a segment until it is full, and then to a new one.
type appender struct {
	tb  testing.TB
	dir *spool.Dir
	s   *spool.Segment
}

func (a *appender) append(message []byte, sum uint32) {
	if a.s == nil || !a.s.Fits(len(message)) {
		a.nextSegment()
	}
	if err := a.s.Append(message, sum); err != nil {
		a.tb.Fatal(err)
	}
}

// nextSegment removes the current segment, if there is one, and makes a new one.
func (a *appender) nextSegment() {
	if a.s != nil {
		if err := a.s.Remove(); err != nil {
			a.tb.Fatal(err)
		}
	}
	var err error
	if a.s, err = a.dir.New(spool.ID{}, time.Unix(0, 0)); err != nil {
		a.tb.Fatal(err)
	}
}

// BenchmarkAppend measures an append, including its share of the time to make a segment and to
// remove it when it is full. It alternately measures a heap in the same run, and prints the
// ratio. With sum=ahead the checksum is computed before the append, as a client does while it
// holds no lock.
func BenchmarkAppend(b *testing.B) {
	for _, plain := range []bool{false, true} {
		for _, size := range []int{200, 450, 2000} {
			for _, sum := range []string{"ahead", "within"} {
				name := fmt.Sprintf("mapped=%t/size=%d/sum=%s", !plain && spool.CanMap, size, sum)
				b.Run(name, func(b *testing.B) { benchmarkAppend(b, plain, size, sum == "ahead") })
			}
		}
	}
}

func benchmarkAppend(b *testing.B, plain bool, size int, ahead bool) {
	c := full
	if plain {
		spool.Plain(&c)
	}
	dir, _, err := spool.Open(b.TempDir(), c)
	if err != nil {
		b.Fatal(err)
	}
	defer dir.Close()
	message := bytes.Repeat([]byte{'m'}, size)
	sum := spool.Checksum(message)
	a := &appender{tb: b, dir: dir}
	appendOne := func() { a.append(message, sum) }
	if !ahead {
		appendOne = func() { a.append(message, spool.Checksum(message)) }
	}
	appendOne()
	b.SetBytes(int64(size))
	b.ReportAllocs()
	for b.Loop() {
		appendOne()
	}
	b.StopTimer()

	h := newHeap()
	onHeap, inSpool := time.Duration(math.MaxInt64), time.Duration(math.MaxInt64)
	n := min(5000, b.N)
	for range min(8, b.N) {
		start := time.Now()
		for range n {
			h.append(message)
		}
		middle := time.Now()
		for range n {
			appendOne()
		}
		onHeap, inSpool = min(onHeap, middle.Sub(start)), min(inSpool, time.Since(middle))
	}
	b.ReportMetric(float64(inSpool)/float64(onHeap), "x_heap")
	b.ReportMetric(float64(inSpool-onHeap)/float64(n), "ns_more/op")
}

// BenchmarkOpen measures Open with 10 full segments in the folder, and then loading one of
// them. In the soak there are 1,000 segments, which is half a gigabyte.
func BenchmarkOpen(b *testing.B) {
	segments := 10
	if soakenv.On() {
		segments = 1000
	}
	path := b.TempDir()
	dir, _, err := spool.Open(path, full)
	if err != nil {
		b.Fatal(err)
	}
	message := bytes.Repeat([]byte{'m'}, 450)
	sum := spool.Checksum(message)
	for range segments {
		s, err := dir.New(spool.ID{}, time.Unix(0, 0))
		if err != nil {
			b.Fatal(err)
		}
		for s.Fits(len(message)) {
			if err := s.Append(message, sum); err != nil {
				b.Fatal(err)
			}
		}
		if err := s.Unload(); err != nil {
			b.Fatal(err)
		}
	}
	if err := dir.Close(); err != nil {
		b.Fatal(err)
	}
	var load time.Duration
	b.ReportAllocs()
	for b.Loop() {
		dir, backlog, err := spool.Open(path, full)
		if err != nil || len(backlog) != segments {
			b.Fatalf("Open = %d segments, %v, want %d", len(backlog), err, segments)
		}
		start := time.Now()
		if lost, err := backlog[0].Load(); lost != 0 || err != nil {
			b.Fatal(lost, err)
		}
		load += time.Since(start)
		if err := dir.Close(); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(load)/float64(b.N), "ns_load/op")
	os.RemoveAll(path) // here, where the benchmark does not measure it
}

// BenchmarkCommit measures an append and its Commit with SyncEach, in several goroutines at once.
// The files are on the disk of the folder for temporary files.
func BenchmarkCommit(b *testing.B) {
	for _, goroutines := range []int{1, 8, 64} {
		b.Run(fmt.Sprintf("goroutines=%d", goroutines), func(b *testing.B) {
			c := full
			c.Sync = spool.SyncEach
			dir, _, err := spool.Open(b.TempDir(), c)
			if err != nil {
				b.Fatal(err)
			}
			defer dir.Close()
			message := bytes.Repeat([]byte{'m'}, 450)
			sum := spool.Checksum(message)
			a := &appender{tb: b, dir: dir}
			var mu sync.Mutex
			b.SetParallelism((goroutines + runtime.GOMAXPROCS(0) - 1) / runtime.GOMAXPROCS(0))
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					mu.Lock()
					a.append(message, sum)
					s, n := a.s, a.s.Len()
					mu.Unlock()
					if err := s.Commit(n); err != nil {
						b.Error(err)
					}
				}
			})
		})
	}
}
