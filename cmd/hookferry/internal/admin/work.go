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

// progressEvery is how often a long request sends its progress to the client.
const progressEvery = time.Second

// A progress counts how much of a long request is done.
type progress struct {
	mu  sync.Mutex
	now api.Progress
}

func (p *progress) change(f func(*api.Progress)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f(&p.now)
}

// expect sets the number of items to do, and reach sets the number of items done.
func (p *progress) expect(total int) { p.change(func(now *api.Progress) { now.Total = total }) }
func (p *progress) reach(done int)   { p.change(func(now *api.Progress) { now.Done = done }) }

func (p *progress) get() api.Progress {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.now
}

// follow runs work, which yields the number of items done so far. It returns the error of the work.
func (p *progress) follow(work iter.Seq2[int, error]) error {
	for done, err := range work {
		p.reach(done)
		if err != nil {
			return err
		}
	}
	return nil
}

// counting yields users and counts them. A user is done when the work asks for the next one.
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

// upload runs long work that reads users, one a line of the body. Then it reads the rest of the
// body, because some clients read the answer only after they have sent the whole body. An error
// about a user names the line.
func (q *request) upload(do func(ctx context.Context, p *progress, users iter.Seq2[string, error]) error) error {
	in := linesOf(q.w, q.Request)
	err := q.work(func(ctx context.Context, p *progress) error {
		err := do(ctx, p, p.counting(in.lines()))
		if user, ok := errors.AsType[*audience.UserError](err); ok {
			return badRequest("", "line %d: an id of %d bytes, 1 to %d are allowed", in.line, user.Size, user.Limit)
		}
		return err
	})
	if q.open.Err() == nil {
		in.drain(q.Context())
	}
	return err
}

// work runs a long request by calling do. It sends the progress to the client every second, and at
// the end. It cancels the context of do when the client disconnects, and at Close.
func (q *request) work(do func(context.Context, *progress) error) error {
	if !q.works.enter() {
		return unavailable("%d long requests are being worked on; try again later", maxWorks)
	}
	defer q.works.leave()
	ctx, cancel := q.untilClosed()
	defer cancel()
	s := newStream(q.w)
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
				cancel() // the client is gone
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
	case q.open.Err() != nil && errors.Is(err, context.Canceled):
		last.Error = &unavailable("the server is stopping; ask again to go on").told
	default:
		f := failureOf(err)
		if f.status == http.StatusInternalServerError && ctx.Err() == nil {
			q.config.Logger.Error("admin: long work failed", "path", q.URL.Path, "error", err)
		}
		last.Error = &f.told
	}
	_ = s.send(last) // an error means that the client is gone
	return nil
}
