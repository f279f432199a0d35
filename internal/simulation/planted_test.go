package simulation

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/hookferry/analytics/internal/disk"
	"github.com/hookferry/analytics/internal/simdisk"
	"github.com/hookferry/analytics/internal/soak"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/filequeue"
)

// The simulation finds faults: the test plants each of these into the store or the disk, and at least one
// seed must fail.
func TestPlantedFaultsAreFound(t *testing.T) {
	soak.Only(t, "planted")
	onDisk := func(plant func(disk.Disk) disk.Disk) opener {
		return func(d *simdisk.Disk) (webhook.Store, error) {
			return filequeue.OpenOn(plant(d), filequeue.Config{Logger: slog.New(slog.DiscardHandler)})
		}
	}
	inStore := func(plant func(*planted)) opener {
		return func(d *simdisk.Disk) (webhook.Store, error) {
			s, err := open(d)
			if err != nil {
				return nil, err
			}
			p := &planted{Store: s, settle: func(s webhook.Settlement) (webhook.Settlement, bool) { return s, true }}
			plant(p)
			return p, nil
		}
	}
	turn := func(from, to webhook.Verdict) opener {
		return inStore(func(p *planted) {
			p.settle = func(s webhook.Settlement) (webhook.Settlement, bool) {
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
		{"a sync of a file is left out", onDisk(func(d disk.Disk) disk.Disk { return lazyDisk{Disk: d, files: true} })},
		{"a sync of names is left out", onDisk(func(d disk.Disk) disk.Disk { return lazyDisk{Disk: d, names: true} })},
		{"a reserve is not kept", onDisk(func(d disk.Disk) disk.Disk { return spendthrift{d} })},
		{"a delivery is settled before the answer", inStore(func(p *planted) { p.early = true })},
		{"an index entry is missing", inStore(func(p *planted) { p.drop = 50 })},
		{"a claim is handed out twice", inStore(func(p *planted) { p.twice = true })},
		{"a retry is taken for done", turn(webhook.Retry, webhook.Done)},
		{"a dead letter is taken for done", turn(webhook.Bury, webhook.Done)},
		{"a returned claim is kept", inStore(func(p *planted) {
			p.settle = func(s webhook.Settlement) (webhook.Settlement, bool) { return s, s.Verdict != webhook.Return }
		})},
		{"a put that failed is acknowledged", inStore(func(p *planted) { p.bold = true })},
		{"nothing is remembered", func(d *simdisk.Disk) (webhook.Store, error) {
			return filequeue.OpenOn(d, filequeue.Config{DedupMax: 2, Logger: slog.New(slog.DiscardHandler)})
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			const seeds = 500 // far more than any takes
			for seed := range uint64(seeds) {
				var err error
				synctest.Test(t, func(t *testing.T) { err = simulate(t, seed+1, tt.open) })
				if err != nil {
					t.Logf("seed %d: %v", seed+1, err)
					return
				}
			}
			t.Errorf("not found by %d seeds", seeds)
		})
	}
}

// A lazyDisk leaves out syncs.
type lazyDisk struct {
	disk.Disk
	files, names bool
}

func (d lazyDisk) SyncNames() error {
	if d.names {
		return nil
	}
	return d.Disk.SyncNames()
}

func (d lazyDisk) Create(name string) (disk.File, error) { return d.wrap(d.Disk.Create(name)) }
func (d lazyDisk) Open(name string) (disk.File, error)   { return d.wrap(d.Disk.Open(name)) }

func (d lazyDisk) wrap(f disk.File, err error) (disk.File, error) {
	if err != nil || !d.files {
		return f, err
	}
	return lazyFile{f}, nil
}

type lazyFile struct{ disk.File }

func (lazyFile) Sync() error { return nil }

// A spendthrift makes a reserve that takes no space.
type spendthrift struct{ disk.Disk }

func (d spendthrift) Create(name string) (disk.File, error) {
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

// A planted is a store with a fault.
type planted struct {
	webhook.Store
	settle func(webhook.Settlement) (_ webhook.Settlement, keep bool)
	early  bool // settles what it hands out
	bold   bool // acknowledges puts that failed
	twice  bool // hands out again what it has handed out
	drop   int  // hands out all but each so-manieth delivery

	mu   sync.Mutex
	n    int
	last []webhook.Delivery
}

func (p *planted) Put(ctx context.Context, ps []webhook.Put, out []webhook.Result) error {
	err := p.Store.Put(ctx, ps, out)
	if err != nil && p.bold {
		clear(out)
		return nil
	}
	if err == nil && p.early {
		var ds []webhook.Delivery
		for i, r := range out {
			if r.Claim != 0 {
				ds = append(ds, ps[i].Delivery)
				ds[len(ds)-1].Claim = r.Claim
			}
		}
		p.end(ctx, ds)
	}
	return err
}

func (p *planted) end(ctx context.Context, ds []webhook.Delivery) {
	for _, d := range ds {
		d.Body = nil
		_, _ = p.Store.Settle(ctx, []webhook.Settlement{{Verdict: webhook.Done, Delivery: d}})
	}
}

func (p *planted) Fetch(ctx context.Context, wants []webhook.Want, maxBytes int64, dst []webhook.Delivery) ([]webhook.Delivery, error) {
	n := len(dst)
	ds, err := p.Store.Fetch(ctx, wants, maxBytes, dst)
	if err != nil {
		return ds, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.early {
		p.end(ctx, ds[n:])
	}
	if p.twice {
		fetched := append([]webhook.Delivery(nil), ds[n:]...)
		ds = append(ds, p.last...)
		p.last = fetched
	}
	if p.drop > 0 {
		kept := ds[:n]
		for _, d := range ds[n:] {
			if p.n++; p.n%p.drop != 0 {
				kept = append(kept, d)
			}
		}
		ds = kept
	}
	return ds, nil
}

func (p *planted) Settle(ctx context.Context, ss []webhook.Settlement) (int, error) {
	kept := make([]webhook.Settlement, 0, len(ss))
	for _, s := range ss {
		if s, keep := p.settle(s); keep {
			kept = append(kept, s)
		}
	}
	n, err := p.Store.Settle(ctx, kept)
	if err == nil {
		n = len(ss)
	}
	return n, err
}
