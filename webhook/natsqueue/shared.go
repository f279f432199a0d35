package natsqueue

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hookferry/analytics/webhook"
)

var (
	_ webhook.Pauses    = (*Queue)(nil)
	_ webhook.Presenter = (*Queue)(nil)
	_ webhook.Releaser  = (*Queue)(nil)
)

// SetPaused implements webhook.Pauses.
func (q *Queue) SetPaused(ctx context.Context, destination string, paused bool) error {
	if err := q.calls.Enter(ctx); err != nil {
		return err
	}
	defer q.calls.Leave()
	if n := len(destination); n < 1 || n > maxName {
		return fmt.Errorf("natsqueue: destination of %d bytes, not 1 to %d", n, maxName)
	}
	subject := q.config.paused() + token(destination)
	if !paused {
		return q.purge(ctx, q.config.state(), subject, 0)
	}
	// If it is paused already, that stays.
	m := change(subject, 0, nil)
	if err := q.publisher.send(ctx, m); err != nil {
		return err
	}
	if m.err != nil && m.err != errChanged {
		return fmt.Errorf("natsqueue: pausing: %w", m.err)
	}
	return nil
}

// paused is the subject of a pause but for the last token.
func (c *Config) paused() string { return c.state() + ".paused." }

// Paused implements webhook.Pauses.
func (q *Queue) Paused(ctx context.Context) (map[string]time.Time, error) {
	if err := q.calls.Enter(ctx); err != nil {
		return nil, err
	}
	defer q.calls.Leave()
	all := make(map[string]time.Time)
	for next := uint64(1); ; {
		pages, err := q.reader.read(ctx, q.config.state(), request{Batch: fetchMax, MaxBytes: fetchBytes, Seq: next, Next: q.config.paused() + "*"})
		if err != nil {
			return nil, fmt.Errorf("natsqueue: what is paused: %w", err)
		}
		if len(pages[0]) == 0 {
			return all, nil
		}
		for _, m := range pages[0] {
			next = m.seq + 1
			name, err := untoken(strings.TrimPrefix(m.subject, q.config.paused()))
			if err != nil {
				return nil, err
			}
			all[name] = m.at
		}
	}
}

// Present implements webhook.Presenter.
func (q *Queue) Present(note func() []byte) {
	q.mu.Lock()
	q.note = note
	q.mu.Unlock()
	select {
	case q.speak <- struct{}{}:
	default:
	}
}

// maxNodes is how many Nodes returns at most.
const maxNodes = 1000

// Nodes implements webhook.Presenter.
func (q *Queue) Nodes(ctx context.Context) ([]webhook.Node, error) {
	if err := q.calls.Enter(ctx); err != nil {
		return nil, err
	}
	defer q.calls.Leave()
	all, err := q.nodes(ctx)
	if err != nil {
		return nil, fmt.Errorf("natsqueue: listing nodes: %w", err)
	}
	slices.SortFunc(all, func(a, b node) int {
		return cmp.Or(cmp.Compare(a.Opened, b.Opened), cmp.Compare(a.id, b.id))
	})
	nodes := make([]webhook.Node, 0, len(all))
	for _, n := range all[:min(len(all), maxNodes)] {
		nodes = append(nodes, webhook.Node{
			Name: n.Name, Self: n.self, Opened: time.UnixMicro(n.Opened).UTC(), Seen: n.at, Note: n.Note,
		})
	}
	return nodes, nil
}

// Release implements webhook.Releaser. A partition of which something is leased is given
// away once that is settled.
func (q *Queue) Release(ctx context.Context) error {
	if err := q.calls.Enter(ctx); err != nil {
		return err
	}
	defer q.calls.Leave()
	q.mu.Lock()
	q.leaving = true
	q.mu.Unlock()
	err := q.beat(ctx)
	if err == nil {
		err = q.oversee(ctx)
	}
	if err == nil {
		err = q.nc.Publish(q.subjects.look(), nil)
	}
	if err != nil {
		return fmt.Errorf("natsqueue: giving away what is owned: %w", err)
	}
	return nil
}
