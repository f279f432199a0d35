package admin

import (
	"context"
	"errors"
	"iter"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hookferry/analytics/audience"
	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
)

const streamTimeout = 30 * time.Second // of each write to a client

// A stream is an answer of lines that may take long. An error means that the client is gone.
type stream struct {
	w       http.ResponseWriter
	control *http.ResponseController
}

// newStream begins a stream with a content type.
func newStream(w http.ResponseWriter, kind string) *stream {
	w.Header().Set("Content-Type", kind)
	return &stream{w, http.NewResponseController(w)}
}

// write sends lines at once.
func (s *stream) write(lines []byte) error {
	_ = s.control.SetWriteDeadline(time.Now().Add(streamTimeout))
	if _, err := s.w.Write(lines); err != nil {
		return err
	}
	return s.control.Flush()
}

// send sends values as JSON, one a line. Without values it sends an empty line, which keeps the
// connection open.
func (s *stream) send(values ...any) error {
	if len(values) == 0 {
		return s.write([]byte("\n"))
	}
	return s.write(encode(values...))
}

// untilClosed returns a context that ends with the request, or when Close is called.
func (q *request) untilClosed() (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(q.http.Context())
	stop := context.AfterFunc(q.handler.open, cancel)
	return ctx, func() { stop(); cancel() }
}

// A progress counts how much of a long request is done; see api.Progress.
type progress struct{ done, total, claimed, joined, left atomic.Int64 }

func (p *progress) now() api.Progress {
	return api.Progress{
		Done: int(p.done.Load()), Total: int(p.total.Load()), Claimed: int(p.claimed.Load()),
		Joined: int(p.joined.Load()), Left: int(p.left.Load()),
	}
}

// counting yields users and counts them. A user is done when the work asks for the next one.
func (p *progress) counting(users iter.Seq2[string, error]) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		for user, err := range users {
			if !yield(user, err) {
				return
			}
			p.done.Add(1)
		}
	}
}

// upload runs long work on the users in the lines of the body; an error about a user names the line
// of the user.
func (q *request) upload(do func(ctx context.Context, p *progress, users iter.Seq2[string, error]) error) error {
	in := linesOf(q.w, q.http)
	err := q.work(func(ctx context.Context, p *progress) error {
		err := do(ctx, p, p.counting(in.lines()))
		if user, ok := errors.AsType[*audience.UserError](err); ok {
			return badRequest("", "line %d: an id of %d bytes, 1 to %d are allowed", in.line, user.Size, user.Limit)
		}
		return err
	})
	if q.handler.open.Err() == nil {
		in.drain(q.http.Context())
	}
	return err
}

// work runs a long request by calling do, and sends the progress every second and at the end. The
// context of do ends when the client disconnects, and at Close.
func (q *request) work(do func(context.Context, *progress) error) error {
	if !q.handler.works.TryAcquire(1) {
		return unavailable("%d long requests are being worked on; try again later", maxWorks)
	}
	defer q.handler.works.Release(1)
	ctx, cancel := q.untilClosed()
	defer cancel()
	s := newStream(q.w, api.StreamType)
	var p progress
	if s.send(p.now()) != nil {
		return nil
	}
	ended := make(chan struct{})
	var telling sync.WaitGroup
	telling.Go(func() {
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for {
			select {
			case <-ended:
				return
			case <-tick.C:
			}
			if s.send(p.now()) != nil {
				cancel() // the client is gone
			}
		}
	})
	err := do(ctx, &p)
	close(ended)
	telling.Wait()
	last := p.now()
	last.Ended = true
	switch {
	case err == nil:
	case q.handler.open.Err() != nil && errors.Is(err, context.Canceled):
		last.Error = &unavailable("the server is stopping; ask again to go on").answer
	default:
		last.Error = &q.failed(ctx, err).answer
	}
	_ = s.send(last) // an error means that the client is gone
	return nil
}
