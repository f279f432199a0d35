package filequeue

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"
)

// An op plans the records of one call, which are stored all or not at all. It adds them to the
// group, or returns an error. If a commit fails, the writer calls the functions that the op gave to
// undo, and may then call the op again. The writer holds index.mu during each call of an op, and of
// the functions that the op gave to then and undo.
type op func(g *group) error

// A group collects the records of one commit, from one op or more.
type group struct {
	*index
	now     time.Time
	seq     uint64 // of the next record
	records []*record
	bytes   int64    // of the records
	request *request // whose op is being called
}

// add adds a record to the group. A record without a sequence number gets the next one.
func (g *group) add(r *record) {
	if r.seq == 0 {
		r.seq = g.seq
		g.seq++
	}
	g.records = append(g.records, r)
	g.bytes += recordSize(len(r.payload))
	g.request.depends = true
}

// gone adds a record of kindGone or kindLost that lists refs, if there are any. It returns the sequence
// number of the record.
func (g *group) gone(k kind, refs []ref) uint64 {
	if len(refs) == 0 {
		return 0
	}
	r := listing(k, refs)
	g.add(&r)
	if k == kindLost {
		g.then(func(seg *segment) {
			g.note(&g.notes, entryOf(&r, seg.number))
			g.losses += len(refs)
		})
	}
	return r.seq
}

// then registers f. The writer calls f once the records are durable in seg. seg is nil if the group
// has no records.
func (g *group) then(f func(seg *segment)) { g.request.then = append(g.request.then, f) }

// undo registers f, which reverts the changes that the op made to the index. The writer calls f if
// the op or the commit fails.
func (g *group) undo(f func()) { g.request.undo = append(g.request.undo, f) }

// A request is an op that waits for its commit.
type request struct {
	op      op
	size    int64 // about the bytes that the op writes
	puts    bool  // the op has puts, so it may not use the reserve
	err     error
	done    chan struct{}
	depends bool // the op fails if the commit does
	then    []func(seg *segment)
	undo    []func()
}

func (r *request) undone() {
	for _, f := range slices.Backward(r.undo) {
		f()
	}
}

// maxGroup bounds the bytes of a group. A larger request has a group to itself. So a request that
// must not share a group passes the constant alone as its size.
const (
	maxGroup = 4 << 20
	alone    = maxGroup + 1
)

// A writer commits the ops of callers. All ops that arrive during a commit share the next commit:
// one write and one sync. The inbox needs no bound: each caller waits for its own request, so there
// are never more requests than callers.
type writer struct {
	log    *log
	index  *index
	logger *slog.Logger
	wake   signal
	stop   chan struct{}
	ended  chan struct{}
	after  func() // called after a commit that may have left work for the janitor
	tidy   bool   // the store keeps a history, so every commit may leave work for the janitor

	mu    sync.Mutex
	inbox []*request

	failing bool      // the operator was told that commits fail
	failed  time.Time // the latest failure
}

// do passes an op to the writer, and waits until it is durable or has failed. Once the op is part
// of a commit, ctx has no effect.
func (w *writer) do(ctx context.Context, o op, size int64, puts bool) error {
	r := &request{op: o, size: size, puts: puts, done: make(chan struct{})}
	w.mu.Lock()
	w.inbox = append(w.inbox, r)
	w.mu.Unlock()
	w.wake.give()
	select {
	case <-r.done:
		return r.err
	case <-ctx.Done():
	}
	w.mu.Lock()
	i := slices.Index(w.inbox, r)
	if i >= 0 {
		w.inbox = append(w.inbox[:i:i], w.inbox[i+1:]...)
	}
	w.mu.Unlock()
	if i >= 0 {
		return ctx.Err()
	}
	<-r.done
	return r.err
}

// take returns the requests of the next group.
func (w *writer) take() []*request {
	w.mu.Lock()
	defer w.mu.Unlock()
	n, size := 0, int64(0)
	for n < len(w.inbox) && (n == 0 || size+w.inbox[n].size <= maxGroup) {
		size += w.inbox[n].size
		n++
	}
	some := w.inbox[:n:n]
	if w.inbox = w.inbox[n:]; len(w.inbox) == 0 {
		w.inbox = nil
	}
	return some
}

func (w *writer) len() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.inbox)
}

// run commits requests until stop is closed, and then the requests that are left in the inbox.
func (w *writer) run() {
	defer close(w.ended)
	var began time.Time
	last := 0 // requests in the latest group
	for stopped := false; !stopped; {
		select {
		case <-w.wake:
		case <-w.stop:
			stopped = true
		}
		for {
			w.gather(began, last)
			rs := w.take()
			if len(rs) == 0 {
				break
			}
			began, last = time.Now(), len(rs)
			segment := w.log.number
			w.commit(rs)
			for _, r := range rs {
				close(r.done)
			}
			if w.tidy || w.log.number != segment || w.leftover() {
				w.after()
			}
		}
	}
}

// leftover reports whether a sealed segment has no needed record.
func (w *writer) leftover() bool {
	w.index.mu.Lock()
	defer w.index.mu.Unlock()
	for _, g := range w.index.segs {
		if g.sealed && g.live == 0 {
			return true
		}
	}
	return false
}

// pace is the shortest time between the starts of two commits while more requests are likely to
// come. A commit of a few records takes as much work as a commit of many, so waiting for more
// requests saves work.
const pace = time.Millisecond

// gather waits until the inbox has as many requests as the latest commit had, because the callers
// of that commit are likely to call again. It stops waiting when the duration pace has passed since
// that commit began. A single caller never waits.
func (w *writer) gather(began time.Time, last int) {
	left := pace - time.Since(began)
	if n := w.len(); left <= 0 || n >= last || n == 0 {
		return
	}
	timer := time.NewTimer(left)
	defer timer.Stop()
	for w.len() < last {
		select {
		case <-w.wake:
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
	if err := w.log.secure(time.Now()); err != nil && puts {
		refusePuts(rs, err)
	}
	wrote, err := w.try(rs)
	if full(err) && puts {
		// Settlements free space, and may use the reserve.
		refusePuts(rs, err)
		wrote, err = w.try(rs)
	}
	w.report(wrote, err)
	for _, r := range rs {
		if r.err == nil {
			r.err = err
		}
	}
}

// refusePuts sets the errors of all requests with puts.
func refusePuts(rs []*request, err error) {
	for _, r := range rs {
		if r.puts {
			r.err = noSpace(err)
		}
	}
}

// try runs the ops of those requests that have no error yet, commits the records, and reports
// whether it wrote any. If the commit fails, each request whose field depends is true fails.
func (w *writer) try(rs []*request) (wrote bool, err error) {
	g := group{index: w.index, now: w.log.disk.Now(), seq: w.log.seq}
	w.index.mu.Lock()
	puts := false
	for _, r := range rs {
		if r.err != nil {
			continue
		}
		before, bytes := len(g.records), g.bytes
		g.request, r.depends, r.then, r.undo = r, false, nil, nil
		if r.err = r.op(&g); r.err != nil {
			r.undone()
			g.records, g.bytes = g.records[:before], bytes
			continue
		}
		puts = puts || r.puts && r.depends
	}
	w.log.seq = g.seq // never used again, even if the commit fails
	w.index.mu.Unlock()
	var seg *segment
	if len(g.records) > 0 {
		seg, err = w.log.commit(g.records, puts)
	}
	w.index.mu.Lock()
	defer w.index.mu.Unlock()
	for _, r := range rs {
		if r.err == nil && (err == nil || !r.depends) {
			for _, f := range r.then {
				f(seg)
			}
		}
	}
	if seg != nil {
		return true, nil
	}
	for _, r := range slices.Backward(rs) {
		if r.err == nil && r.depends && err != nil {
			r.undone()
		}
	}
	return false, err
}

// calm is how long commits must succeed before report says that the store works again. So a disk
// that is full now and then does not flood the log.
const calm = time.Minute

// report logs that commits fail, and later that they work again.
func (w *writer) report(wrote bool, err error) {
	switch {
	case err != nil:
		if w.failed = time.Now(); !w.failing {
			w.failing = true
			w.logger.Error("filequeue: the store cannot be written; stored deliveries are safe, but new ones are refused, and delivered ones may be sent again; check the disk", "error", err)
		}
	case w.failing && wrote && time.Since(w.failed) >= calm:
		w.failing = false
		w.logger.Info("filequeue: the store can be written again")
	}
}
