package filequeue_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hookferry/analytics/internal/simdisk"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/filequeue"
)

// A disk that the store itself has filled refuses puts and nothing else: what is stored is fetched,
// retried, buried and done, the store opens, and then puts go on.
func TestFullDisk(t *testing.T) {
	for _, size := range []int64{4 << 20, 16 << 20} {
		for _, reopen := range []bool{false, true} {
			t.Run(fmt.Sprintf("size=%d/reopen=%t", size, reopen), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { testFullDisk(t, size, reopen) })
			})
		}
	}
}

func testFullDisk(t *testing.T, size int64, reopen bool) {
	d := simdisk.New(1)
	d.SetCapacity(size)
	l := newLedger(t, rand.New(rand.NewPCG(1, 1)))
	defer l.close()
	open := func() {
		t.Helper()
		if err := l.open(d, filequeue.Config{}); err != nil {
			t.Fatal(err)
		}
	}
	open()
	n := 0
	fill := func() (stored int) {
		for {
			ps := make([]webhook.Put, 10)
			for i := range ps {
				ps[i].Delivery = webhook.Delivery{Destination: fmt.Sprint("d", n%10), ID: fmt.Sprint(n), Due: l.s.Now(), Body: make([]byte, 500)}
				n++
			}
			err := l.s.Put(t.Context(), ps, make([]webhook.Result, len(ps)))
			if errors.Is(err, webhook.ErrQueueFull) {
				return stored
			}
			if err != nil {
				t.Fatal(err)
			}
			stored += len(ps)
		}
	}
	settle := func(verdict webhook.Verdict, most int) (settled int) {
		t.Helper()
		for settled < most {
			var wants []webhook.Want
			for i := range 10 {
				wants = append(wants, webhook.Want{Destination: fmt.Sprint("d", i), Max: 20}, webhook.Want{Destination: fmt.Sprint("d", i), Max: 20, Retries: true})
			}
			ds, err := l.s.Fetch(t.Context(), wants, 1<<30, nil)
			if err != nil {
				t.Fatal(err)
			}
			if len(ds) == 0 {
				return settled
			}
			ss := make([]webhook.Settlement, len(ds))
			for i, d := range ds {
				if verdict == webhook.Retry {
					d.Tries, d.Expires, d.Due = 1, d.Due.Add(time.Hour), l.s.Now().Add(time.Second)
				}
				ss[i] = webhook.Settlement{Verdict: verdict, Delivery: d, At: l.s.Now()}
			}
			if n, err := l.s.Settle(t.Context(), ss); n != len(ss) || err != nil {
				t.Fatalf("Settle on a full disk, after %d = %d, %v", settled, n, err)
			}
			settled += len(ss)
		}
		return settled
	}
	first := fill()
	if int64(first)*550 < size/2 {
		t.Errorf("a disk of %d bytes took %d deliveries of 500", size, first)
	}
	if reopen {
		if err := l.s.Close(); err != nil {
			t.Fatal(err)
		}
		d = d.Reboot(simdisk.Power)
		open()
	}
	settle(webhook.Retry, 500)
	for reopen && slices.Contains(d.Names(), "reserve") { // until what is settled has taken it
		d.SetCapacity(d.Used())
		time.Sleep(2 * time.Second)
		settle(webhook.Retry, 20)
	}
	if reopen {
		d.Crash()
		l.s.Close()
		d = d.Reboot(simdisk.Process)
		d.SetCapacity(d.Used())
		open()
		time.Sleep(2 * time.Second)
		first -= settle(webhook.Done, 500)
		d.SetCapacity(size)
	}
	time.Sleep(2 * time.Second)
	if got := settle(webhook.Done, first); got != first {
		t.Errorf("%d of %d are done", got, first)
	}
	synctest.Wait()
	time.Sleep(2 * time.Second)
	if again := fill(); again < first*8/10 {
		t.Errorf("the disk took %d deliveries, and once these were done %d", first, again)
	}
	if err := l.s.Close(); err != nil {
		t.Fatal(err)
	}
}
