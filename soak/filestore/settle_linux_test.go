package filestore_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"runtime/debug"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hookferry/analytics/internal/soakenv"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/filequeue"
	"github.com/hookferry/analytics/webhook/store"
)

const (
	outcomes    = 8192      // settlements in the one call of Settle
	outcomeSize = 128 << 10 // bytes of each body
	settleExtra = 512 << 20 // bytes of memory that the call may use beyond the fetched deliveries
	retryAfter  = 20 * time.Second
	settleWait  = 4 * time.Second // how long a call for another destination may take: the collector's limit
)

func init() { children["settle"] = settleChild }

// TestSettleGigabyte settles 1 GB of deliveries by one call, half of them as retries and half as
// dead letters. The process is killed as soon as the call has returned nil. The store then has all
// of them.
func TestSettleGigabyte(t *testing.T) {
	soakenv.Only(t, "settle-1gb")
	dir, told := t.TempDir(), ""
	err := runUntil(command("settle", dir), func(_ int, line string) bool {
		told = line
		return false
	})
	var got settleFigures
	if jerr := json.Unmarshal([]byte(told), &got); jerr != nil {
		t.Fatalf("the process ended with %v and printed %q, want its figures", err, told)
	}
	t.Log(got)
	if got.Rounds == 0 || max(got.Put, got.Fetch, got.Settle) > settleWait {
		t.Errorf("meanwhile %d deliveries of another destination were settled, the longest calls were %v, %v and %v; want some, and at most %v", got.Rounds, got.Put, got.Fetch, got.Settle, settleWait)
	}
	if got.Peak-got.Before > settleExtra {
		t.Errorf("the call used %d MB of memory, want at most %d", (got.Peak-got.Before)>>20, settleExtra>>20)
	}

	began := time.Now()
	s, err := openStore(dir, filequeue.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	t.Logf("opened again in %v", time.Since(began))
	retried, dead := map[string]bool{}, map[string]bool{}
	check := func(d *webhook.Delivery, in map[string]bool) {
		id, _ := strconv.Atoi(d.ID)
		if in[d.ID] || d.Tries != 1 || !bytes.Equal(d.Body, outcomeBody(id)) {
			t.Errorf("got delivery %s with %d tries and a body of %d bytes, want it once, as it was settled", d.ID, d.Tries, len(d.Body))
		}
		in[d.ID] = true
	}
	for d, err := range store.Records(t.Context(), s, store.Query{States: []store.State{store.StateDead}}) {
		if err != nil {
			t.Fatal(err)
		}
		check(&d.Delivery, dead)
	}
	for {
		wants := []store.Want{{Destination: "big", Max: 64, Retries: true}}
		ds, err := s.Fetch(t.Context(), wants, 1<<40, nil)
		if err != nil {
			t.Fatal(err)
		}
		if len(ds) == 0 && wants[0].Next.IsZero() {
			break
		}
		if len(ds) == 0 {
			<-time.After(time.Until(wants[0].Next))
			continue
		}
		for i := range ds {
			check(&ds[i], retried)
		}
		if err := settle(t.Context(), s, store.Done, ds...); err != nil {
			t.Fatal(err)
		}
	}
	if len(retried) != outcomes/2 || len(dead) != outcomes/2 {
		t.Errorf("got %d retries and %d dead letters, want %d of each", len(retried), len(dead), outcomes/2)
	}
}

// settleFigures has the measurements of settleChild. Put, Fetch and Settle are the times of the
// longest calls for another destination. Rounds counts the deliveries of that destination that were
// settled.
type settleFigures struct {
	Took, Put, Fetch, Settle time.Duration
	Rounds                   int
	Before, Peak             int64 // bytes of memory before the call, and at the peak
}

func (f settleFigures) String() string {
	return fmt.Sprintf("settled in %v; %d MB resident before, %d at most; meanwhile %d deliveries of another destination, longest Put %v, Fetch %v, Settle %v",
		f.Took, f.Before>>20, f.Peak>>20, f.Rounds, f.Put, f.Fetch, f.Settle)
}

// settleChild puts and fetches 1 GB of deliveries. It settles them by one call, while it puts,
// fetches and settles deliveries of another destination. Then it prints its figures, and kills
// itself.
func settleChild(settings []byte) error {
	var dir string
	if err := json.Unmarshal(settings, &dir); err != nil {
		return err
	}
	s, err := openStore(dir, filequeue.Config{})
	if err != nil {
		return err
	}
	defer s.Close()
	ctx := context.Background()
	var ds []webhook.Delivery
	for i := range outcomes {
		ds = append(ds, webhook.Delivery{Destination: "big", ID: strconv.Itoa(i), Type: "track", Body: outcomeBody(i), Accepted: time.Now(), Due: time.Now()})
		if len(ds) == 64 {
			if _, err := put(ctx, s, ds...); err != nil {
				return err
			}
			ds = ds[:0]
		}
	}
	ds = nil
	for len(ds) < outcomes {
		if ds, err = s.Fetch(ctx, []store.Want{{Destination: "big", Max: 64}}, 1<<40, ds); err != nil {
			return err
		}
	}
	ss := make([]store.Settlement, len(ds))
	for i := range ds {
		ss[i] = store.Settlement{Verdict: store.Retry, Delivery: ds[i]}
		ss[i].Delivery.Tries, ss[i].Delivery.Due, ss[i].Delivery.Expires = 1, time.Now().Add(retryAfter), time.Now().Add(time.Hour)
		if i%2 == 0 {
			ss[i].Verdict, ss[i].Reason, ss[i].At = store.Bury, webhook.ReasonExpired, time.Now()
		}
	}

	var f settleFigures
	debug.FreeOSMemory()
	f.Before = resident()
	debug.SetMemoryLimit(f.Before + settleExtra/2) // keeps garbage from counting as memory in use
	stop := make(chan struct{})
	var wg sync.WaitGroup
	// every calls do each millisecond, until stop is closed or do returns an error, which it keeps
	// in err.
	every := func(err *error, do func(n int) error) {
		wg.Go(func() {
			tick := time.NewTicker(time.Millisecond)
			defer tick.Stop()
			for n := 0; *err == nil; n++ {
				select {
				case <-stop:
					return
				case <-tick.C:
					*err = do(n)
				}
			}
		})
	}
	timed := func(longest *time.Duration, call func() error) error {
		began := time.Now()
		defer func() { *longest = max(*longest, time.Since(began)) }()
		return call()
	}
	var putErr, settleErr, none error
	every(&putErr, func(n int) error {
		d := webhook.Delivery{Destination: "other", ID: strconv.Itoa(n), Type: "track", Body: []byte("{}"), Accepted: time.Now(), Due: time.Now()}
		return timed(&f.Put, func() error {
			_, err := put(ctx, s, d)
			return err
		})
	})
	every(&settleErr, func(int) (err error) {
		var ds []webhook.Delivery
		err = timed(&f.Fetch, func() error {
			ds, err = s.Fetch(ctx, []store.Want{{Destination: "other", Max: 64}}, 1<<40, nil)
			return err
		})
		if err != nil || len(ds) == 0 {
			return err
		}
		f.Rounds += len(ds)
		return timed(&f.Settle, func() error { return settle(ctx, s, store.Done, ds...) })
	})
	every(&none, func(int) error {
		f.Peak = max(f.Peak, resident())
		return nil
	})
	err = timed(&f.Took, func() error {
		_, err := s.Settle(ctx, ss)
		return err
	})
	close(stop)
	wg.Wait()
	if err := errors.Join(err, putErr, settleErr); err != nil {
		return err
	}
	if err := json.NewEncoder(os.Stdout).Encode(f); err != nil {
		return err
	}
	return syscall.Kill(os.Getpid(), syscall.SIGKILL) // before the store is closed
}

// outcomeBody returns the body of a delivery. It has outcomeSize bytes that depend on the id, and
// that cannot be compressed.
func outcomeBody(id int) []byte {
	r := rand.NewPCG(uint64(id), 0)
	b := make([]byte, 0, outcomeSize)
	for len(b) < outcomeSize {
		b = binary.LittleEndian.AppendUint64(b, r.Uint64())
	}
	return b
}

var anonymous = regexp.MustCompile(`RssAnon:\s+(\d+) kB`)

// resident returns the anonymous memory of this process, in bytes. Pages of mapped files do not
// count, as the system can take them back.
func resident() int64 {
	text, err := os.ReadFile("/proc/self/status")
	found := anonymous.FindSubmatch(text)
	if err != nil || found == nil {
		return -1
	}
	kilobytes, _ := strconv.ParseInt(string(found[1]), 10, 64)
	return kilobytes << 10
}
