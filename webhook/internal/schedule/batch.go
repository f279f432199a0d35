package schedule

import "time"

// A Batch says how many deliveries one attempt of a destination may have. The zero Batch says one.
//
// Deliveries that do not fill a batch gather in the store, not in memory: they hold no slot, no
// claim and no share, and Drain fetches them. The lane counts the deliveries that arrive. It
// fetches full batches. Once the first fresh delivery has been due for Wait, it also fetches a
// smaller one. Deliveries that other nodes have stored are not counted, so they wait for that time,
// or for enough others.
//
// All limits of a lane count attempts, so that a batch takes the place of one delivery.
type Batch struct {
	Events int           // at most in a batch
	Bytes  int64         // at most in a batch, as the part of New counts them; a larger delivery is a batch alone
	Wait   time.Duration // how long a batch that is not full waits for more; zero: only for a slot
}

// perDelivery is about what a delivery takes in memory beside its body, in bytes. It bounds the
// number of small deliveries that a lane with large batches has in memory.
const perDelivery = 512

func (b *Batch) events() int { return max(b.Events, 1) }

// attempts returns how many attempts n deliveries make, in full batches.
func (b *Batch) attempts(n int) int {
	if b.Events <= 1 {
		return n
	}
	return (n + b.Events - 1) / b.Events
}

// bytes returns how much memory an attempt takes whose deliveries have bodies of this size.
func (b *Batch) bytes(body int64) int64 {
	if b.Events == 0 {
		return body
	}
	n := int64(b.Events)
	return max(min(n*body, b.Bytes), body, n*perDelivery)
}

// gathers reports whether l waits with fresh deliveries until they make a full batch.
func (l *Lane[S, V]) gathers(now time.Time) bool {
	return l.batch.Wait > 0 && l.hold == "" && !l.breaker.open && l.fresh.due.Add(l.batch.Wait).After(now)
}

// took records that the delivery it was fetched.
func (l *Lane[S, V]) took(it *Item[V]) {
	if !it.Retry {
		l.arrived = max(l.arrived-1, 0)
	}
}

// gather moves ready deliveries of the lane to t.Batch, after t.Item: those of its Group, and further
// groups that fit as a whole.
func (t *Slot[S, V]) gather(part func(V) int64) {
	l := t.Lane
	t.Batch = append(t.Batch, t.Item)
	bytes, last, n := part(t.Item.Value), &t.Item, 0
	for i := 0; ; i++ {
		ends := i == l.ready.len() || l.ready.at(i).Group != last.Group || last.Group == 0
		if ends || last.Group == t.Item.Group {
			n = i
		}
		if i == l.ready.len() || 1+i == l.batch.Events {
			break
		}
		it := l.ready.at(i)
		apart := it.Group != t.Item.Group && (it.Apart || t.Item.Apart || it.Retry != t.Item.Retry)
		if bytes += part(it.Value); apart || bytes > l.batch.Bytes {
			break
		}
		last = it
	}
	for range n {
		t.Batch = append(t.Batch, l.ready.pop())
	}
}

// Items returns the deliveries of t.
func (t *Slot[S, V]) Items() []Item[V] {
	if len(t.Batch) > 0 {
		return t.Batch
	}
	return []Item[V]{t.Item}
}

// Divide makes two batches of items, the deliveries of t in their order. Both become ready, and are
// attempted like any other batch. If the lane has to wait, Divide returns the deliveries instead,
// for the store.
func (s *Scheduler[S, V]) Divide(t *Slot[S, V], items []Item[V]) (back []Item[V]) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l, now := t.Lane, s.config.Now()
	if s.run.draining || !l.mayStart() {
		return items
	}
	for i, it := range items {
		if i == 0 || i == (len(items)+1)/2 {
			s.groups++
		}
		it.Group, it.Apart, it.Part, it.Due = s.groups, true, true, now
		s.run.ready(l, it, now)
	}
	return nil
}
