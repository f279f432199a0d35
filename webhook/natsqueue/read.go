package natsqueue

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

// A request is what the server is asked to read directly from a stream.
type request struct {
	Batch     int      `json:"batch,omitempty"`
	MaxBytes  int      `json:"max_bytes,omitempty"`
	Seq       uint64   `json:"seq,omitempty"`
	Next      string   `json:"next_by_subj,omitempty"`
	MultiLast []string `json:"multi_last,omitempty"`
}

// A page is what was read: the first of the answers to a request.
type page struct {
	messages []stored
	done     chan struct{}
	err      error
}

// An asking is a request that was sent, and what has come of the answer to it.
type asking struct {
	page     *page
	messages []stored
}

// A stored message.
type stored struct {
	subject string
	seq     uint64
	at      time.Time
	header  nats.Header
	data    []byte
}

const (
	// askAgain is how long an answer may take before the request is made again, which
	// another replica may answer then; twice as long after each time.
	askAgain = 250 * time.Millisecond
	// asks is how often a request is made.
	asks = 4
)

// A reader reads batches of messages. Any replica answers, and may be a little
// behind the leader. The servers choose which: also one that they can no longer reach, until
// they know.
type reader struct {
	nc    *nats.Conn
	inbox string
	sub   *nats.Subscription

	mu      sync.Mutex
	next    uint64
	asked   map[uint64]*asking
	renewed chan struct{} // closed when the connection is a new one
}

func newReader(nc *nats.Conn) (*reader, error) {
	r := &reader{nc: nc, inbox: nc.NewInbox() + ".", asked: make(map[uint64]*asking), renewed: make(chan struct{})}
	var err error
	if r.sub, err = nc.Subscribe(r.inbox+"*", r.answer); err != nil {
		return nil, err
	}
	return r, r.sub.SetPendingLimits(-1, -1) // no more than was asked for
}

func (r *reader) close() { r.sub.Unsubscribe() }

// again makes the requests again that were not answered: the connection is a new one.
func (r *reader) again() {
	r.mu.Lock()
	defer r.mu.Unlock()
	close(r.renewed)
	r.renewed = make(chan struct{})
}

// read reads from a stream; the answers are in the order of the requests.
func (r *reader) read(ctx context.Context, stream string, requests ...request) ([][]stored, error) {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	pages := make([]*page, len(requests))
	texts := make([][]byte, len(requests))
	for i := range requests {
		var err error
		if texts[i], err = json.Marshal(requests[i]); err != nil {
			return nil, err
		}
		pages[i] = &page{done: make(chan struct{})}
	}
	var ids []uint64
	defer func() {
		r.mu.Lock()
		for _, id := range ids {
			delete(r.asked, id)
		}
		r.mu.Unlock()
	}()
	began := time.Now()
	for wait, left := askAgain, asks; left > 0; left-- {
		r.mu.Lock()
		renewed := r.renewed
		r.mu.Unlock()
		for i, p := range pages {
			if p.isDone() {
				continue
			}
			id := r.expect(p)
			ids = append(ids, id)
			if err := r.nc.PublishRequest("$JS.API.DIRECT.GET."+stream, r.inbox+strconv.FormatUint(id, 36), texts[i]); err != nil {
				return nil, fmt.Errorf("natsqueue: reading: %w", err)
			}
		}
		all, err := await(ctx, pages, wait, renewed)
		switch {
		case err == nil:
			return all, nil
		case errors.Is(err, errRenewed):
			wait, left = askAgain, asks+1
		case errors.Is(err, errSlow):
			wait *= 2
		default:
			return nil, err
		}
	}
	return nil, fmt.Errorf("natsqueue: reading: no answer of the server in %v", time.Since(began).Round(time.Millisecond))
}

var (
	errSlow    = errors.New("natsqueue: an answer takes its time")
	errRenewed = errors.New("natsqueue: the connection is a new one")
)

// await returns what is read once all pages are done.
func await(ctx context.Context, pages []*page, patience time.Duration, renewed <-chan struct{}) ([][]stored, error) {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	all := make([][]stored, len(pages))
	for i, p := range pages {
		select {
		case <-p.done:
			if p.err != nil {
				return nil, p.err
			}
			all[i] = p.messages
		case <-timer.C:
			return nil, errSlow
		case <-renewed:
			return nil, errRenewed
		case <-ctx.Done():
			return nil, fmt.Errorf("natsqueue: reading: %w", ctx.Err())
		}
	}
	return all, nil
}

func (p *page) isDone() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// expect returns the id of another request for a page.
func (r *reader) expect(p *page) uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.next++
	r.asked[r.next] = &asking{page: p}
	return r.next
}

// answer takes a message of an answer, the last of which has a status.
func (r *reader) answer(m *nats.Msg) {
	id, err := strconv.ParseUint(m.Subject[len(r.inbox):], 36, 64)
	if err != nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	a := r.asked[id]
	if a == nil {
		return
	}
	end := func(err error) {
		delete(r.asked, id)
		if p := a.page; !p.isDone() {
			p.messages, p.err = a.messages, err
			close(p.done)
		}
	}
	switch status := m.Header.Get("Status"); {
	case status == "204" || status == "404":
		end(nil)
	case status != "":
		end(fmt.Errorf("natsqueue: reading: the server: %s %s", status, m.Header.Get("Description")))
	default:
		s := stored{subject: m.Header.Get("Nats-Subject"), header: m.Header, data: m.Data}
		if s.seq, err = strconv.ParseUint(m.Header.Get("Nats-Sequence"), 10, 64); err != nil {
			end(fmt.Errorf("natsqueue: reading: %w", err))
			return
		}
		if s.at, err = time.Parse(time.RFC3339Nano, m.Header.Get("Nats-Time-Stamp")); err != nil {
			end(fmt.Errorf("natsqueue: reading: %w", err))
			return
		}
		a.messages = append(a.messages, s)
	}
}
