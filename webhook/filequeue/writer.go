package filequeue

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"
)

// An op is what one call wants to have stored, all of it or nothing. It adds the records to
// the group, or returns why it cannot be done, and may be called again after it was undone. It
// and what it hands to then and undo are called with the store's lock.
type op func(g *group) error

// A group is the ops that are committed together.
type group struct {
	*index
	now     time.Time
	seq     uint64 // of the record to come
	records []*record
	bytes   int64    // of the records
	request *request // whose op is being called
}

// add adds a record, with a sequence number of its own unless it has one.
func (g *group) add(r *record) {
	if r.seq == 0 {
		r.seq = g.seq
		g.seq++
	}
	g.records = append(g.records, r)
	g.bytes += recordSize(len(r.payload))
	g.request.depends = true
}

// list adds a record that lists refs, if there are any, and returns it.
func (g *group) list(k kind, refs []ref) *record {
	r := listRecord(k, refs)
	if len(refs) > 0 {
		g.add(&r)
	}
	return &r
}

// then has f called once the records are durable in seg, which is nil if there are none.
func (g *group) then(f func(seg *segment)) { g.request.then = append(g.request.then, f) }

// undo has f called if the op or the commit fails. It takes back what the op did to the index.
func (g *group) undo(f func()) { g.request.undo = append(g.request.undo, f) }

// A request is an op that is on its way.
type request struct {
	op      op
	size    int64 // about how many bytes it writes
	puts    bool  // it may not take the reserve
	err     error
	done    chan struct{}
	taken   bool
	depends bool // the op fails if the commit does
	then    []func(seg *segment)
	undo    []func()
}

// undone takes back what the op did.
func (r *request) undone() {
	for _, f := range slices.Backward(r.undo) {
		f()
	}
}

// The bounds of a group and of what waits for the next one, in bytes. A request that is longer
// goes alone.
const (
	maxGroup = 4 << 20
	maxInbox = 16 << 20
)

// A writer commits what callers hand it. All ops that come while it writes share the next
// commit: one write and one sync.
type writer struct {
	log    *log
	index  *index
	logger *slog.Logger
	wake   signal
	stop   chan struct{}
	ended  chan struct{}
	after  func() // is called after a commit that may have left work behind

	inbox struct {
		sync.Mutex
		requests []*request
		size     int64
		room     chan struct{} // closed and replaced when there is room again
	}
	tidy    bool // every commit may leave work behind, as there is a history
	failing bool // the log was told so
}

func newWriter(l *log, logger *slog.Logger) *writer {
	w := &writer{log: l, index: l.index, logger: logger, wake: make(signal, 1), stop: make(chan struct{}), ended: make(chan struct{})}
	w.inbox.room = make(chan struct{})
	return w
}

// do has an op done, and waits for that. Once it is being written, ctx has no say any more.
func (w *writer) do(ctx context.Context, o op, size int64, puts bool) error {
	r := &request{op: o, size: size, puts: puts, done: make(chan struct{})}
	if err := w.send(ctx, r); err != nil {
		return err
	}
	select {
	case <-r.done:
		return r.err
	case <-ctx.Done():
	}
	if w.withdraw(r) {
		return ctx.Err()
	}
	<-r.done
	return r.err
}

// send puts a request into the inbox, once there is room for it.
func (w *writer) send(ctx context.Context, r *request) error {
	in := &w.inbox
	for {
		in.Lock()
		if in.size == 0 || in.size+r.size <= maxInbox {
			break
		}
		room := in.room
		in.Unlock()
		select {
		case <-room:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	in.requests = append(in.requests, r)
	in.size += r.size
	in.Unlock()
	w.wake.give()
	return nil
}

// withdraw takes a request back, and reports whether it could.
func (w *writer) withdraw(r *request) bool {
	in := &w.inbox
	in.Lock()
	defer in.Unlock()
	if r.taken {
		return false
	}
	for i := range in.requests {
		if in.requests[i] == r {
			in.requests = append(in.requests[:i:i], in.requests[i+1:]...)
			break
		}
	}
	w.shrink(r.size)
	return true
}

// shrink says that the inbox has room for n more bytes. The caller holds its lock.
func (w *writer) shrink(n int64) {
	w.inbox.size -= n
	close(w.inbox.room)
	w.inbox.room = make(chan struct{})
}

// take returns the requests of the next group.
func (w *writer) take() []*request {
	in := &w.inbox
	in.Lock()
	defer in.Unlock()
	n, size := 0, int64(0)
	for n < len(in.requests) {
		if size += in.requests[n].size; n > 0 && size > maxGroup {
			size -= in.requests[n].size
			break
		}
		in.requests[n].taken = true
		n++
	}
	some := in.requests[:n:n]
	in.requests = in.requests[n:]
	if n > 0 {
		w.shrink(size)
	}
	return some
}

func (w *writer) len() int {
	w.inbox.Lock()
	defer w.inbox.Unlock()
	return len(w.inbox.requests)
}

// run commits until stop is closed, and then what is in the inbox.
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
			before := w.log.number
			w.commit(rs)
			for _, r := range rs {
				close(r.done)
			}
			if w.tidy || w.log.number != before || w.leftover() {
				w.after()
			}
		}
	}
}

// leftover reports whether nothing is needed in a segment that is sealed.
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

// pace is the time between the beginnings of two commits while there is more to come: a commit
// of a few records takes as much work as one of many.
const pace = time.Millisecond

// gather lets requests come until there are as many as in the latest commit, whose callers
// are likely to be back, but not longer than a pace after it began. So a caller that is alone
// never waits.
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

// commit does the ops of requests, or sets why not.
func (w *writer) commit(rs []*request) {
	puts := false
	for _, r := range rs {
		puts = puts || r.puts
	}
	// What is only settled makes the reserve too: it may have been taken.
	if err := w.log.secure(time.Now()); err != nil && puts {
		w.refuse(rs, noRoom(err))
	}
	err := w.try(rs)
	if full(err) && puts {
		// What is settled makes room, and may take the reserve.
		w.refuse(rs, noRoom(err))
		err = w.try(rs)
	}
	w.report(err)
	for _, r := range rs {
		if r.err == nil {
			r.err = err
		}
	}
}

// refuse has all puts fail.
func (w *writer) refuse(rs []*request, err error) {
	for _, r := range rs {
		if r.puts {
			r.err = err
		}
	}
}

// try does the ops of the requests that have not failed. After an error the ones without
// records are done.
func (w *writer) try(rs []*request) error {
	g := group{index: w.index, now: time.Now(), seq: w.log.seq}
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
	w.log.seq = g.seq // is not used again, even if the commit fails
	w.index.mu.Unlock()
	var seg *segment
	var err error
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
	if err == nil {
		if seg != nil {
			seg.turn = w.index.seen.Turns()
		}
		return nil
	}
	for _, r := range slices.Backward(rs) {
		if r.err == nil && r.depends {
			r.undone()
		}
	}
	return err
}

// report tells the log once that commits fail, and once that they work again.
func (w *writer) report(err error) {
	switch failing := err != nil; {
	case failing && !w.failing:
		w.logger.Error("filequeue: the store cannot be written; what it holds is safe, and nothing new is accepted or settled", "error", err)
		w.failing = true
	case !failing && w.failing:
		w.logger.Info("filequeue: the store can be written again")
		w.failing = false
	}
}
