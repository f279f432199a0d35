package natsqueue

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/hookferry/analytics/webhook"
)

var (
	_ webhook.Counter            = (*Queue)(nil)
	_ webhook.DestinationCounter = (*Queue)(nil)
)

// A question asks every process for what it owns.
type question struct {
	// Each asks for every destination, and not just for the sum.
	Each bool `json:"each,omitempty"`
}

// A tally is what a process answers. It may have several parts.
type tally struct {
	// Partitions are those that the part is all, or the last, of.
	Partitions []int   `json:"partitions,omitempty"`
	Counts     []count `json:"counts,omitempty"`
}

// A count is that of a destination, or of a process.
type count struct {
	Destination []byte `json:"destination,omitempty"`
	Waiting     int    `json:"waiting,omitempty"`
	Leased      int    `json:"leased,omitempty"`
	Oldest      int64  `json:"oldest,omitempty"` // in microseconds, 0 for none
}

// tallyCounts is how many counts a part has at most, of some 400 bytes each.
const tallyCounts = 1000

// askFor is how long processes are waited for: one that owns partitions may just have
// died. askEvery is how often they are asked.
const (
	askFor   = 30 * time.Second
	askEvery = 500 * time.Millisecond
)

// counts returns the counts of all destinations.
func (q *Queue) counts() (mine []int, all []count) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.table == nil {
		return nil, nil
	}
	for n, p := range q.owned {
		if p != nil && p.seen >= p.epoch {
			mine = append(mine, n)
		}
	}
	if time.Now().After(q.until) {
		return nil, nil // it may be others'
	}
	now := time.Now().UnixMicro()
	for _, p := range q.owned {
		if p == nil || p.seen < p.epoch {
			continue
		}
		of := make(map[string]int)
		for _, s := range p.shelves {
			i, ok := of[s.lane.Name]
			if !ok {
				i = len(all)
				of[s.lane.Name] = i
				all = append(all, count{Destination: []byte(s.lane.Name)})
			}
			c := &all[i]
			c.Waiting += s.away
			if s.away > 0 && (c.Oldest == 0 || s.first.At < c.Oldest) {
				c.Oldest = s.first.At
			}
		}
		q.table.Len(now) // ends the leases that have expired
		for _, it := range p.held {
			c := &all[of[it.Lane().Name]]
			c.Waiting++
			switch {
			case !it.Waits():
				c.Leased++
			case c.Oldest == 0 || it.At < c.Oldest:
				c.Oldest = it.At
			}
		}
	}
	n := 0
	for _, c := range all {
		if c.Waiting > 0 {
			all[n] = c
			n++
		}
	}
	return mine, all[:n]
}

func sum(all []count) (total count) {
	for _, c := range all {
		total.Waiting += c.Waiting
		total.Leased += c.Leased
		if c.Oldest != 0 && (total.Oldest == 0 || c.Oldest < total.Oldest) {
			total.Oldest = c.Oldest
		}
	}
	return total
}

// answerCount answers a process that asks.
func (q *Queue) answerCount(m *nats.Msg) {
	var asked question
	if err := json.Unmarshal(m.Data, &asked); err != nil {
		return
	}
	mine, all := q.counts()
	if len(mine) == 0 {
		return
	}
	if !asked.Each {
		all = []count{sum(all)}
	}
	for {
		part := tally{Counts: all[:min(len(all), tallyCounts)]}
		if all = all[len(part.Counts):]; len(all) == 0 {
			part.Partitions = mine
		}
		text, err := json.Marshal(part)
		if err != nil || m.Respond(text) != nil || len(all) == 0 {
			return
		}
	}
}

// ask returns the counts of all processes, once each partition is one's.
func (q *Queue) ask(ctx context.Context, each bool) ([]count, error) {
	if err := q.calls.Enter(ctx); err != nil {
		return nil, err
	}
	defer q.calls.Leave()
	ctx, cancel := context.WithTimeout(ctx, askFor)
	defer cancel()
	text, err := json.Marshal(question{each})
	if err != nil {
		return nil, err
	}
	for {
		all, missing, err := q.askOnce(ctx, text)
		if err != nil {
			return nil, fmt.Errorf("natsqueue: counting: %w", err)
		}
		if missing == 0 {
			return all, nil
		}
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("natsqueue: counting: no process has answered for %d of %d partitions: %w", missing, q.config.Partitions, err)
		}
	}
}

// askOnce asks all processes, and tells for how many partitions none has answered, or
// more than one.
func (q *Queue) askOnce(ctx context.Context, text []byte) (all []count, missing int, err error) {
	answers, err := q.nc.SubscribeSync(q.nc.NewInbox())
	if err != nil {
		return nil, 0, err
	}
	defer answers.Unsubscribe()
	if err := q.nc.PublishRequest(q.subjects.count(), answers.Subject, text); err != nil {
		return nil, 0, err
	}
	waiting, cancel := context.WithTimeout(ctx, askEvery)
	defer cancel()
	owners := make([]int, q.config.Partitions)
	for missing = len(owners); missing > 0; {
		m, err := answers.NextMsgWithContext(waiting)
		if err != nil && waiting.Err() == nil && !errors.Is(err, nats.ErrNoResponders) {
			return nil, 0, err
		}
		if err != nil {
			return all, missing, nil
		}
		var part tally
		if err := json.Unmarshal(m.Data, &part); err != nil {
			return nil, 0, err
		}
		all = append(all, part.Counts...)
		for _, n := range part.Partitions {
			if n < 0 || n >= len(owners) {
				return nil, 0, fmt.Errorf("an answer for the partition %d of %d", n, len(owners))
			}
			if owners[n]++; owners[n] > 1 {
				return nil, len(owners), nil // it has just changed hands
			}
			missing--
		}
	}
	return all, 0, nil
}

// Count implements webhook.Counter: it asks the processes that share the store. What one of
// them does is in the counts once the owner of the destination knows of it, in
// milliseconds.
func (q *Queue) Count(ctx context.Context) (webhook.Counts, error) {
	all, err := q.ask(ctx, false)
	if err != nil {
		return webhook.Counts{}, err
	}
	dead, err := q.js.Stream(ctx, q.config.dead())
	if err != nil {
		return webhook.Counts{}, fmt.Errorf("natsqueue: counting: %w", err)
	}
	total := sum(all)
	c := webhook.Counts{Waiting: total.Waiting, Claimed: total.Leased, Dead: int(dead.CachedInfo().State.Msgs)}
	if total.Oldest != 0 {
		c.Oldest = time.UnixMicro(total.Oldest).UTC()
	}
	return c, nil
}

// CountByDestination implements webhook.DestinationCounter: it asks the processes that
// share the store.
func (q *Queue) CountByDestination(ctx context.Context) iter.Seq2[webhook.DestinationCounts, error] {
	return func(yield func(webhook.DestinationCounts, error) bool) {
		all, err := q.ask(ctx, true)
		for _, c := range all {
			d := webhook.DestinationCounts{Destination: string(c.Destination), Waiting: c.Waiting, Claimed: c.Leased}
			if c.Oldest != 0 {
				d.Oldest = time.UnixMicro(c.Oldest).UTC()
			}
			if !yield(d, nil) {
				return
			}
		}
		if err != nil {
			yield(webhook.DestinationCounts{}, err)
		}
	}
}
