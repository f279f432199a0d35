package simulation

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/hookferry/analytics/internal/disk"
	"github.com/hookferry/analytics/internal/soakenv"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/filequeue"
	"github.com/hookferry/analytics/webhook/store"
)

// The simulation finds faults. The test plants each fault in the store or the disk, and the
// simulation must then fail for at least one seed.
func TestPlantedFaultsAreFound(t *testing.T) {
	soakenv.Only(t, "planted")
	onOneCore(t)
	onDisk := func(plant func(disk.Disk) disk.Disk) opener {
		return func(w *world) (webhook.Store, error) { return w.openOn(plant(w.disk), history) }
	}
	inStore := func(plant func(*faultyStore)) opener {
		return func(w *world) (webhook.Store, error) {
			s, err := open(w)
			if err != nil {
				return nil, err
			}
			p := &faultyStore{Store: s, settle: func(s store.Settlement) (store.Settlement, bool) { return s, true }}
			plant(p)
			return p, nil
		}
	}
	changeVerdict := func(from, to store.Verdict) opener {
		return inStore(func(p *faultyStore) {
			p.settle = func(s store.Settlement) (store.Settlement, bool) {
				if s.Verdict == from {
					s.Verdict = to
				}
				return s, true
			}
		})
	}
	for _, tt := range []struct {
		name string
		open opener
	}{
		{"files are not synced", onDisk(func(d disk.Disk) disk.Disk { return noSyncDisk{Disk: d, files: true} })},
		{"names of files are not synced", onDisk(func(d disk.Disk) disk.Disk { return noSyncDisk{Disk: d, names: true} })},
		{"the reserve takes no space", onDisk(func(d disk.Disk) disk.Disk { return noReserveDisk{d} })},
		{"a delivery is settled before the answer", inStore(func(p *faultyStore) { p.settlesEarly = true })},
		{"a waiting delivery is not found", inStore(func(p *faultyStore) { p.hidesEvery = 50 })},
		{"a delivery is claimed twice", inStore(func(p *faultyStore) { p.repeatsClaims = true })},
		{"a retry is settled as done", changeVerdict(store.Retry, store.Done)},
		{"a dead letter is settled as done", changeVerdict(store.Bury, store.Done)},
		{"a claim that is given back stays claimed", inStore(func(p *faultyStore) {
			p.settle = func(s store.Settlement) (store.Settlement, bool) { return s, s.Verdict != store.Return }
		})},
		{"a failed put is acknowledged", inStore(func(p *faultyStore) { p.hidesPutErrors = true })},
		{"a delivery is not put behind another with its key", inStore(func(p *faultyStore) {
			p.keyOf = func(n int, key string) string {
				if n%10 == 0 {
					key = ""
				}
				return key
			}
		})},
		{"two deliveries with a key are released at once", inStore(func(p *faultyStore) {
			p.keyOf = func(n int, key string) string { return fmt.Sprint(key, n%2) }
		})},
		{"a retry goes to the end of its key", inStore(func(p *faultyStore) { p.putsRetries = true })},
		{"nobody is told of a delivery that is released", inStore(func(p *faultyStore) { p.hidesReleases = true })},
		{"the dedup window has two ids", func(w *world) (webhook.Store, error) {
			return w.openOn(w.disk, filequeue.Config{DedupMax: 2, HistoryAge: history.HistoryAge})
		}},
		{"a delivered one is not kept, nor counted", inStore(func(p *faultyStore) { p.forgetsEvery = 50 })},
	} {
		t.Run(tt.name, func(t *testing.T) {
			const seeds = 500 // far more than any of the faults needs
			for seed := range uint64(seeds) {
				if r := simulate(t, seed+1, tt.open); r.err != nil {
					t.Logf("seed %d: %v", seed+1, r.err)
					return
				}
			}
			t.Errorf("%d seeds did not find the fault, want at least one that does", seeds)
		})
	}
}

// A noSyncDisk ignores syncs of files or of names.
type noSyncDisk struct {
	disk.Disk
	files, names bool
}

func (d noSyncDisk) SyncNames() error {
	if d.names {
		return nil
	}
	return d.Disk.SyncNames()
}

func (d noSyncDisk) Create(name string) (disk.File, error) { return d.wrap(d.Disk.Create(name)) }
func (d noSyncDisk) Open(name string) (disk.File, error)   { return d.wrap(d.Disk.Open(name)) }

func (d noSyncDisk) wrap(f disk.File, err error) (disk.File, error) {
	if err != nil || !d.files {
		return f, err
	}
	return noSyncFile{f}, nil
}

type noSyncFile struct{ disk.File }

func (noSyncFile) Sync() error { return nil }

// On a noReserveDisk, the file that reserves space is empty.
type noReserveDisk struct{ disk.Disk }

func (d noReserveDisk) Create(name string) (disk.File, error) {
	f, err := d.Disk.Create(name)
	if err != nil || name != "reserve" {
		return f, err
	}
	return emptyFile{f}, nil
}

// An emptyFile ignores writes.
type emptyFile struct{ disk.File }

func (emptyFile) WriteAt(b []byte, _ int64) (int, error) { return len(b), nil }
func (emptyFile) Truncate(int64) error                   { return nil }

// A faultyStore is a store with the faults that its fields describe.
type faultyStore struct {
	webhook.Store
	// settle returns the settlement that the store gets in place of the given one. If keep is
	// false, the store gets none.
	settle         func(store.Settlement) (_ store.Settlement, keep bool)
	settlesEarly   bool // settles deliveries as done when they are claimed
	hidesPutErrors bool // acknowledges failed puts
	repeatsClaims  bool // returns the deliveries of the previous Fetch again
	hidesEvery     int  // hides every n-th delivery from Fetch, if not 0
	putsRetries    bool // makes new deliveries of retries with a key
	hidesReleases  bool // leaves out Released
	forgetsEvery   int  // hides every n-th delivery from List, if not 0
	// keyOf returns the key that the store gets for the n-th delivery that has a key.
	keyOf func(n int, key string) string

	mu   sync.Mutex
	n    int
	last []webhook.Delivery
}

func (p *faultyStore) Put(ctx context.Context, ps []store.Put, out []store.Result) error {
	if p.keyOf != nil {
		ps = slices.Clone(ps)
		p.mu.Lock()
		for i := range ps {
			if d := &ps[i].Delivery; d.Key != "" {
				p.n++
				d.Key = p.keyOf(p.n, d.Key)
			}
		}
		p.mu.Unlock()
	}
	err := p.Store.Put(ctx, ps, out)
	if err != nil && p.hidesPutErrors {
		clear(out)
		return nil
	}
	if err == nil && p.settlesEarly {
		var ds []webhook.Delivery
		for i, r := range out {
			if r.Claim != 0 {
				ds = append(ds, ps[i].Delivery)
				ds[len(ds)-1].Claim = r.Claim
			}
		}
		p.settleDone(ctx, ds)
	}
	return err
}

func (p *faultyStore) settleDone(ctx context.Context, ds []webhook.Delivery) {
	for _, d := range ds {
		d.Body = nil
		_, _ = p.Store.Settle(ctx, []store.Settlement{{Verdict: store.Done, Delivery: d}})
	}
}

func (p *faultyStore) Fetch(ctx context.Context, wants []store.Want, maxBytes int64, dst []webhook.Delivery) ([]webhook.Delivery, error) {
	n := len(dst)
	ds, err := p.Store.Fetch(ctx, wants, maxBytes, dst)
	if err != nil {
		return ds, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.settlesEarly {
		p.settleDone(ctx, ds[n:])
	}
	if p.repeatsClaims {
		fetched := append([]webhook.Delivery(nil), ds[n:]...)
		ds = append(ds, p.last...)
		p.last = fetched
	}
	if p.hidesEvery > 0 {
		kept := ds[:n]
		for _, d := range ds[n:] {
			if p.n++; p.n%p.hidesEvery != 0 {
				kept = append(kept, d)
			}
		}
		ds = kept
	}
	return ds, nil
}

func (p *faultyStore) List(ctx context.Context, q store.Query, after uint64, max int) ([]store.Record, uint64, error) {
	page, next, err := p.Store.List(ctx, q, after, max)
	page = slices.DeleteFunc(page, func(store.Record) bool {
		p.n++
		return p.forgetsEvery > 0 && p.n%p.forgetsEvery == 0
	})
	return page, next, err
}

func (p *faultyStore) Settle(ctx context.Context, ss []store.Settlement) (int, error) {
	kept, from := make([]store.Settlement, 0, len(ss)), make([]int, 0, len(ss))
	var retries []store.Put
	for i := range ss {
		s, keep := p.settle(ss[i])
		if !keep {
			continue
		}
		if p.putsRetries && s.Verdict == store.Retry && s.Delivery.Key != "" {
			s.Verdict = store.Done
			again := s.Delivery
			again.Expires, again.Claim = time.Time{}, 0
			retries = append(retries, store.Put{Delivery: again, NoDedup: true})
		}
		kept, from = append(kept, s), append(from, i)
	}
	n, err := p.Store.Settle(ctx, kept)
	for i := range kept[:n] {
		if !p.hidesReleases {
			ss[from[i]].Released = kept[i].Released
		}
	}
	if err == nil {
		n = len(ss)
		if len(retries) > 0 {
			err = p.Store.Put(ctx, retries, make([]store.Result, len(retries)))
		}
	}
	return n, err
}
