package audience_test

import (
	"context"
	"flag"
	"fmt"
	"iter"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/hookferry/analytics/audience"
	"github.com/hookferry/analytics/audience/fileroster"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/filequeue"
)

var audienceSize = flag.Int("audience", 2_000, "how many members BenchmarkAudience syncs")

// BenchmarkAudience syncs an audience of -audience members in a fileroster, without deliveries. It
// syncs a new audience, then one without changes, and then one in which one member in a hundred
// has left and as many have joined. It reports the members a second, the peak of the heap beyond
// that of an empty store, and the bytes on the disk for each member with its event.
func BenchmarkAudience(b *testing.B) {
	for _, order := range []string{"sorted", "random"} {
		b.Run("order="+order, func(b *testing.B) {
			for b.Loop() {
				benchAudience(b, order == "random")
			}
		})
	}
}

func benchAudience(b *testing.B, random bool) {
	dir := b.TempDir()
	q, err := filequeue.Open(dir, filequeue.Config{})
	if err != nil {
		b.Fatal(err)
	}
	defer q.Close()
	r, err := fileroster.Open(dir)
	if err != nil {
		b.Fatal(err)
	}
	defer r.Close()
	f, err := webhook.New(webhook.Config{Store: q, Destinations: []webhook.Destination{crm}})
	if err != nil {
		b.Fatal(err)
	}
	defer f.Shutdown(context.Background())
	a, err := audience.New(f, r).Audience("crm", "everyone")
	if err != nil {
		b.Fatal(err)
	}
	empty := heapInUse()
	peak := empty
	n := *audienceSize
	sync := func(what string, from int, want audience.SyncResult) {
		start := time.Now()
		got, err := a.AllowShrink().Sync(b.Context(), numbered(from, from+n, random, func() { peak = max(peak, heapInUse()) }))
		if err != nil || got != want {
			b.Fatalf("%s: Sync = %+v, %v, want %+v", what, got, err, want)
		}
		b.ReportMetric(float64(n)/time.Since(start).Seconds(), what+"-members/s")
	}
	sync("created", 0, audience.SyncResult{Joined: n})
	b.ReportMetric(filesIn(b, dir)/float64(n), "disk-B/member")
	sync("unchanged", 0, audience.SyncResult{})
	sync("changed", n/100, audience.SyncResult{Joined: n / 100, Left: n / 100})
	b.ReportMetric((peak-empty)/(1<<20), "heap-MB")
}

// filesIn returns the bytes of the files in a folder.
func filesIn(b *testing.B, dir string) (bytes float64) {
	files, err := os.ReadDir(dir)
	for _, f := range files {
		var info os.FileInfo
		if info, err = f.Info(); err != nil {
			break
		}
		bytes += float64(info.Size())
	}
	if err != nil {
		b.Fatal(err)
	}
	return bytes
}

// numbered yields the users whose numbers are at least from and less than to, each once. They
// come in the order of their ids, or in a shuffled order. numbered calls look every 50,000 users,
// and at the end.
func numbered(from, to int, random bool, look func()) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		for i := from; i < to; i++ {
			id := uint64(i)
			if random {
				// This maps the numbers one to one, so no two ids are the same.
				id *= 0x9e3779b97f4a7c15
				id ^= id >> 32
			}
			if i%50_000 == 0 {
				look()
			}
			if !yield(fmt.Sprintf("user-%020d", id), nil) {
				return
			}
		}
		look()
	}
}

// heapInUse returns the bytes of reachable objects.
func heapInUse() float64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc)
}
