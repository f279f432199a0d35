package admin

import (
	"context"
	"errors"
	"iter"
	"net/http"
	"sync"
	"time"

	"github.com/hookferry/analytics/audience"
	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
)

// progressEvery is how often the client is told how far its work is.
const progressEvery = time.Second

// A progress is how far long work is.
type progress struct {
	mu  sync.Mutex
	now api.Progress
}

func (p *progress) change(f func(*api.Progress)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f(&p.now)
}

// expect says how much there is to do, and reach how much is done.
func (p *progress) expect(total int) { p.change(func(now *api.Progress) { now.Total = total }) }
func (p *progress) reach(done int)   { p.change(func(now *api.Progress) { now.Done = done }) }

func (p *progress) get() api.Progress {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.now
}

// counting returns users, whose progress is noted as they are read.
func (p *progress) counting(users iter.Seq2[string, error]) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		done := 0
		for user, err := range users {
			if !yield(user, err) {
				return
			}
			done++
			p.reach(done)
		}
	}
}

// upload is work that reads the lines of the request's body. What the work leaves
// unread is read and thrown away, so that a client which sends all before it reads
// gets the answer.
func (h *Handler) upload(w http.ResponseWriter, r *http.Request, do func(context.Context, *progress, *lineReader) error) error {
	in := linesOf(w, r)
	err := h.work(w, r, func(ctx context.Context, p *progress) error { return do(ctx, p, in) })
	if h.open.Err() == nil {
		in.drain(r.Context())
	}
	return err
}

// lineError names the line that err is about, if it is about one.
func lineError(err error, line int) error {
	var user *audience.UserError
	if errors.As(err, &user) {
		return badRequest("", "line %d: an id of %d bytes, 1 to %d are allowed", line, user.Size, user.Limit)
	}
	return err
}

// work does something long, and answers with how far it is, every second and at
// the end. It ends with the client, and with Close.
func (h *Handler) work(w http.ResponseWriter, r *http.Request, do func(context.Context, *progress) error) error {
	select {
	case h.works <- struct{}{}:
		defer func() { <-h.works }()
	default:
		return refuse(api.CodeUnavailable, http.StatusServiceUnavailable, "", "%d long requests are being worked on; try again later", maxWorks)
	}
	ctx, cancel := h.untilClosed(r.Context())
	defer cancel()
	s := newStream(w)
	var p progress
	if s.send(p.get()) != nil {
		return nil
	}
	ended := make(chan struct{})
	var telling sync.WaitGroup
	telling.Go(func() {
		tick := time.NewTicker(progressEvery)
		defer tick.Stop()
		for {
			select {
			case <-ended:
				return
			case <-tick.C:
			}
			if s.send(p.get()) != nil {
				cancel() // nobody is there any more
			}
		}
	})
	err := do(ctx, &p)
	close(ended)
	telling.Wait()
	last := p.get()
	last.Ended = true
	switch {
	case err == nil:
	case h.open.Err() != nil && errors.Is(err, context.Canceled):
		last.Error = &api.Error{Code: api.CodeUnavailable, Message: "the server is stopping; ask again to go on"}
	default:
		f := failureOf(err)
		if f.status == http.StatusInternalServerError && ctx.Err() == nil {
			h.config.Logger.Error("admin: long work failed", "path", r.URL.Path, "error", err)
		}
		last.Error = &f.told
	}
	_ = s.send(last) // if that fails there is nobody to tell
	return nil
}
