package simulation

import (
	"cmp"
	"context"
	"fmt"
	"hash/crc32"
	"iter"
	"log/slog"
	"net"
	"slices"
	"sync"

	"github.com/hookferry/analytics/internal/disk"
	"github.com/hookferry/analytics/internal/simdisk"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/filequeue"
	"github.com/hookferry/analytics/webhook/store"
)

// These are the entry points between the service and the simulated world, at which goroutines wait
// for their turn: the disk, the store, and the forwarder's connections. The entry points of clients
// are in link, and those of receivers in endpoint.

// digest returns a short name for b.
func digest(b []byte) string { return fmt.Sprintf("%08x", crc32.ChecksumIEEE(b)) }

// useDisk makes d the disk of the server. Its operations are done in turns.
func (w *world) useDisk(d *simdisk.Disk) {
	w.disk = d
	d.SetCapacity(w.capacity)
	d.OnOp(w.fault)
	d.OnTurn(func(op simdisk.Op) {
		w.turns.wait("disk %s %s at %d, %d bytes, %s", op.Kind, op.Name, op.Off, op.Len, digest(op.Data))
	})
}

// A turnStore is a file store. Its callers enter and leave it in turns.
type turnStore struct {
	*filequeue.Store
	turns *turns
}

// openOn opens a turnStore.
func (w *world) openOn(d disk.Disk, c filequeue.Config) (webhook.Store, error) {
	c.Logger = slog.New(slog.DiscardHandler)
	s, err := filequeue.Open(disk.Mount(d), c)
	if err != nil {
		return nil, err
	}
	w.histories = append(w.histories, s)
	return &turnStore{s, w.turns}, nil
}

func (s *turnStore) Put(ctx context.Context, ps []store.Put, out []store.Result) error {
	name := fmt.Sprintf("%d from %s", len(ps), ps[0].MessageID)
	s.turns.wait("put %s", name)
	err := s.Store.Put(ctx, ps, out)
	s.turns.wait("has put %s: %v", name, err)
	return err
}

func (s *turnStore) Fetch(ctx context.Context, wants []store.Want, maxBytes int64, dst []webhook.Delivery) ([]webhook.Delivery, error) {
	s.turns.wait("fetch up to %d bytes", maxBytes)
	for _, want := range wants {
		s.turns.note("	%d of %s, retries %t", want.Max, want.Destination, want.Retries)
	}
	ds, err := s.Store.Fetch(ctx, wants, maxBytes, dst)
	s.turns.wait("has fetched %d: %v", len(ds)-len(dst), err)
	return ds, err
}

func (s *turnStore) Settle(ctx context.Context, ss []store.Settlement) (int, error) {
	s.turns.wait("settle %d", len(ss))
	for i := range ss {
		s.turns.note("	outcome %d of %s for %s", ss[i].Verdict, ss[i].Delivery.MessageID, ss[i].Delivery.Destination)
	}
	n, err := s.Store.Settle(ctx, ss)
	s.turns.wait("has settled %d: %v", n, err)
	return n, err
}

// Heads implements store.Store.
func (s *turnStore) Heads(ctx context.Context, all bool) iter.Seq2[store.Head, error] {
	s.turns.wait("heads, all %t", all)
	return shuffled(s.turns, s.Store.Heads(ctx, all), func(h store.Head) string { return h.Destination })
}

// CountByDestination implements store.Inspector.
func (s *turnStore) CountByDestination(ctx context.Context, only ...string) iter.Seq2[store.DestinationCounts, error] {
	s.turns.wait("count by destination")
	return shuffled(s.turns, s.Store.CountByDestination(ctx, only...), func(c store.DestinationCounts) string { return c.Destination })
}

// shuffled yields values in an order that the seed chooses. The store yields them in the random
// order of a map.
func shuffled[T any](t *turns, values iter.Seq2[T, error], destination func(T) string) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		var all []T
		for v, err := range values {
			if err != nil {
				yield(v, err)
				return
			}
			all = append(all, v)
		}
		slices.SortFunc(all, func(a, b T) int { return cmp.Compare(destination(a), destination(b)) })
		t.shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		for _, v := range all {
			if !yield(v, nil) {
				return
			}
		}
	}
}

// dial is the forwarder's DialContext. It takes no turn: until its first request, a connection is
// like any other to its receiver.
func (w *world) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	c, err := w.network.DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return &turnConn{Conn: c, turns: w.turns, name: addr}, nil
}

// A turnConn is the forwarder's end of a connection. A write begins, and a read ends, in turn. A close
// takes no turn, because closes may happen in any order.
type turnConn struct {
	net.Conn
	turns *turns

	mu   sync.Mutex
	name string // the address and a digest of the latest request
}

func (c *turnConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.mu.Lock()
	name := c.name
	c.mu.Unlock()
	c.turns.wait("read %s, %d bytes", name, n)
	return n, err
}

func (c *turnConn) Write(b []byte) (int, error) {
	name := fmt.Sprint(c.RemoteAddr(), " ", digest(b))
	c.mu.Lock()
	c.name = name
	c.mu.Unlock()
	c.turns.wait("write %s", name)
	return c.Conn.Write(b)
}
