package filequeue

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/hookferry/analytics/internal/disk"
	"github.com/hookferry/analytics/webhook/store"
)

// A request is an op that waits for its commit.
type request struct {
	op   op
	puts bool // the op has puts, so it may not use the reserve
	err  error
	done chan struct{}
}

// maxGroup bounds the bytes of a group. A larger request has a group to itself. So a request that
// must not share a group passes the constant alone as its size.
const (
	maxGroup = 4 << 20
	alone    = maxGroup + 1
)

// A writer commits the ops of callers: it appends their records to the active segment. All ops that
// arrive during a commit share the next commit: one write and one sync.
//
// The file called reserve takes up space that puts may not use. When the disk is full, the reserve
// becomes a segment, so that stored deliveries can still be settled. Puts are refused until there
// is space for another reserve.
type writer struct {
	disk     disk.Disk
	logger   *slog.Logger
	index    *index
	requests *store.Batcher[request]
	arrived  store.Signal // there may be a new request

	segmentBytes int64 // a segment of this length or more is sealed
	reserveBytes int64
	// The active segment grows to a multiple of step bytes. The writer fills the new space with
	// zeros, because a sync is fastest if it need not write file sizes and extents.
	step int64

	active   *segment // nil if there is none yet
	size     int64    // bytes of the file of active
	broken   bool     // active takes no more records
	manifest *manifest
	reserve  disk.File
	refused  time.Time // when the disk last had no space for the reserve
	seq      uint64    // of the next record
	number   uint32    // of the latest segment
	buf      []byte
	told     int       // the trouble that the operator was told about, 0 if there is none
	failed   time.Time // when puts or commits failed last
}

// newWriter returns the writer of an empty folder, with file sizes that suit the disk.
func newWriter(d disk.Disk, logger *slog.Logger, x *index, m *manifest) *writer {
	w := &writer{disk: d, logger: logger, index: x, manifest: m, arrived: store.NewSignal(), segmentBytes: maxSegment, reserveBytes: maxReserve}
	if total, _, err := d.Room(); err == nil {
		w.segmentBytes = max(minSegment, min(maxSegment, total/segmentFraction))
		w.reserveBytes = max(minSegment, min(maxReserve, total/reserveFraction))
	}
	x.memtableBytes = w.segmentBytes / 32
	w.step = max(minSegment/4, w.segmentBytes/32) &^ 4095
	return w
}

// start starts the goroutine of the writer, which ends when requests is closed.
func (w *writer) start() { w.requests = store.NewBatcher(1, maxGroup, w.serve) }

// do passes an op to the writer, and waits until it is durable or has failed. The argument size is
// about the number of bytes that the op writes. Once the op is part of a commit, ctx has no effect.
func (w *writer) do(ctx context.Context, o op, size int64, puts bool) error {
	r := &request{op: o, puts: puts, done: make(chan struct{})}
	w.requests.Add(r, int(size))
	w.arrived.Set()
	select {
	case <-r.done:
		return r.err
	case <-ctx.Done():
	}
	if w.requests.Drop(r) {
		return ctx.Err()
	}
	<-r.done
	return r.err
}

// serve commits a group of requests, and then gathers the next group.
func (w *writer) serve(rs []*request) {
	began := time.Now()
	w.commit(rs)
	for _, r := range rs {
		close(r.done)
	}
	w.manifest.flush(began)
	w.gather(len(rs), began)
}

// pace is the shortest time between the starts of two commits while more requests are likely to come.
// A commit of many records takes no more work than a commit of a few.
const pace = time.Millisecond

// gather waits until n requests have arrived, as many as the latest commit had: its callers are likely
// to call again. It stops waiting at pace after that commit began. A single caller never waits.
func (w *writer) gather(n int, began time.Time) {
	left := pace - time.Since(began)
	if n < 2 || left <= 0 {
		return
	}
	timer := time.NewTimer(left)
	defer timer.Stop()
	for w.requests.Len() < n {
		select {
		case <-w.arrived:
		case <-timer.C:
			return
		}
	}
}

// commit stores the ops of requests in one commit, and sets the errors of those that fail.
func (w *writer) commit(rs []*request) {
	puts := slices.ContainsFunc(rs, func(r *request) bool { return r.puts })
	// A commit without puts also makes the reserve, because an earlier commit may have used the
	// reserve.
	refused := w.secure(time.Now())
	w.index.setTight(full(refused))
	if refused != nil && puts {
		refusePuts(rs, refused)
	}
	wrote, err := w.try(rs)
	if full(err) && puts {
		// Settlements free space, and may use the reserve.
		refused = err
		refusePuts(rs, refused)
		wrote, err = w.try(rs)
	}
	w.report(wrote, refused, err)
	for _, r := range rs {
		if r.err == nil {
			r.err = err
		}
	}
}

// refusePuts sets the errors of all requests with puts, to store.ErrQueueFull if the disk is full.
func refusePuts(rs []*request, err error) {
	if err = fmt.Errorf("filequeue: %w", err); full(err) {
		err = fmt.Errorf("%w: %w", store.ErrQueueFull, err)
	}
	for _, r := range rs {
		if r.puts {
			r.err = err
		}
	}
}

// try runs the ops of those requests that have no error yet, commits the records, and reports
// whether it wrote any.
func (w *writer) try(rs []*request) (wrote bool, err error) {
	g := group{index: w.index, now: w.disk.Now(), seq: w.seq}
	w.index.mu.Lock()
	for _, r := range rs {
		if r.err != nil {
			continue
		}
		before := g
		if r.err = r.op(&g); r.err != nil {
			g.revert(len(before.transits))
			g = before
		}
		flag(g.records[len(before.records):], flagBegin, flagEnd)
		g.puts = g.puts || r.puts && len(g.records) > len(before.records)
	}
	w.seq = g.seq // never used again, even if the commit fails
	w.index.mu.Unlock()
	if len(g.records) > 0 {
		err = w.append(&g)
	}
	w.index.mu.Lock()
	defer w.index.mu.Unlock()
	if err != nil {
		g.revert(0)
		return false, err
	}
	now := w.disk.Now().UnixMicro()
	for _, ts := range g.transits {
		for i := range ts {
			ts[i].apply(g.index, now)
		}
	}
	for _, f := range g.thens {
		f()
	}
	return len(g.records) > 0, nil
}

// calm is how long puts and commits must succeed before report says that the store works again. So
// a disk that is full now and then does not flood the log.
const calm = time.Minute

// The troubles of a writer. A greater one is worse.
const (
	refusing = 1 + iota // puts are refused
	failing             // commits fail
)

// report logs that puts are refused or that commits fail, and later that the store works again. It
// logs again only if the state gets worse.
func (w *writer) report(wrote bool, refused, err error) {
	trouble, text := 0, ""
	switch {
	case err != nil:
		trouble, text = failing, "filequeue: the store cannot be written; stored deliveries are safe, but new ones are refused, and delivered ones may be sent again; check the disk"
	case refused != nil:
		trouble, text = refusing, "filequeue: the disk is full or fails; new deliveries are refused, and stored ones are delivered as before; check the disk"
	}
	switch {
	case trouble > 0:
		if w.failed = time.Now(); trouble > w.told {
			w.told = trouble
			w.logger.Error(text, "error", cmp.Or(err, refused))
		}
	case w.told > 0 && wrote && time.Since(w.failed) >= calm:
		w.told = 0
		w.logger.Info("filequeue: the store can be written again")
	}
}
