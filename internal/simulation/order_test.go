package simulation

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/store"
)

// A watchedStore reports to an orders which deliveries are put and settled, and to a ledger which
// settlements fail.
type watchedStore struct {
	webhook.Store
	orders *orders
	ledger *ledger
}

func (s *watchedStore) Put(ctx context.Context, ps []store.Put, out []store.Result) error {
	news, began := s.orders.put(ps)
	err := s.Store.Put(ctx, ps, out)
	s.orders.hasPut(news, err)
	for i := range ps {
		if err == nil && out[i].Stored && s.ledger.store(&ps[i].Delivery) {
			s.orders.putAgain(&ps[i].Delivery, i, began)
		}
	}
	return err
}

func (s *watchedStore) Settle(ctx context.Context, ss []store.Settlement) (int, error) {
	for i := range ss { // before the call, during which the store may hand out the next one
		if v := ss[i].Verdict; v == store.Done || v == store.Bury {
			s.orders.end(ss[i].Delivery.Destination, ss[i].Delivery.MessageID)
		}
	}
	n, err := s.Store.Settle(ctx, ss)
	if err != nil {
		s.ledger.doubt(ss[n:])
	}
	return n, err
}

// An orders checks that the deliveries of a destination with one key are attempted one after the
// other, in the order in which they were put, through all faults.
type orders struct {
	mu    sync.Mutex
	steps int               // counts the beginnings and ends of puts, and the requests
	all   map[string]*keyed // by destination and id
	keys  map[string][]*keyed
	found []string
}

// A keyed is a delivery with a key. Its other numbers are steps of orders, or 0.
type keyed struct {
	id          string
	number      int  // in its first put
	began, done int  // when this put began and ended
	unsure      bool // the put failed, and may have stored the delivery or not
	requested   int  // the first request
	ended       bool // it was delivered or given up
}

func newOrders() *orders {
	return &orders{all: make(map[string]*keyed), keys: make(map[string][]*keyed)}
}

// put records that a put begins. It returns the deliveries that are put for the first time, and the step.
func (o *orders) put(ps []store.Put) (news []*keyed, began int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.steps++
	for i := range ps {
		d := &ps[i].Delivery
		if d.Key == "" || o.all[d.Destination+" "+d.MessageID] != nil {
			continue
		}
		k := &keyed{id: d.MessageID, number: i, began: o.steps}
		o.all[d.Destination+" "+d.MessageID] = k
		o.keys[d.Destination+" "+d.Key] = append(o.keys[d.Destination+" "+d.Key], k)
		news = append(news, k)
	}
	return news, o.steps
}

// hasPut records that the put of the deliveries in news has ended.
func (o *orders) hasPut(news []*keyed, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.steps++
	for _, k := range news {
		k.done, k.unsure = o.steps, err != nil
	}
}

// putAgain records that a put has stored a delivery once more, which now comes after those of earlier puts.
func (o *orders) putAgain(d *store.Delivery, number, began int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if k := o.all[d.Destination+" "+d.MessageID]; k != nil && !k.unsure {
		*k = keyed{id: k.id, number: number, began: began, done: o.steps}
	}
}

// isBefore reports whether k was put before x, as far as that is known.
func (k *keyed) isBefore(x *keyed) bool {
	if k.unsure || x.unsure {
		return false
	}
	return k.done > 0 && k.done < x.began || k.began == x.began && k.number < x.number
}

func (o *orders) end(destination, id string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if k := o.all[destination+" "+id]; k != nil {
		k.ended = true
	}
}

// request records a request for a delivery. All earlier deliveries with its key must have ended.
// The delivery must not come again after a later one with its key has come.
func (o *orders) request(destination, key, id string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	k := o.all[destination+" "+id]
	if k == nil { // it has no key
		return
	}
	o.steps++
	again := k.requested > 0
	if !again {
		k.requested = o.steps
	}
	for _, x := range o.keys[destination+" "+key] {
		switch {
		case again && x.requested > k.requested:
			o.found = append(o.found, fmt.Sprintf("%s of %s came again after %s, which has its key", id, destination, x.id))
		case !again && x.isBefore(k) && !x.ended:
			o.found = append(o.found, fmt.Sprintf("%s of %s came before %s, which has its key, had ended", id, destination, x.id))
		}
	}
}

// faults returns what was found.
func (o *orders) faults() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.found)
}
