package collector

import (
	"container/list"
	"context"
	"errors"
	"net/netip"
	"sync"
)

// shares divides what a Handler has among its requests: memory, and slots to work in.
//
// Memory. A request counts for two holders, its source and the address of its client. A
// holder may take memory as long as it then holds no more than what is left for everybody
// (the dynamic threshold of Choudhury and Hahne, 1998). So one holder alone gets half of
// the memory, two that want all of it get a third each, and there is always room left for
// another one.
//
// Slots. A request needs a slot while a processor works on it: to inflate, read and encode
// its calls. It needs none while its body arrives, nor while it waits for the store. Slots go
// to addresses round robin, whatever the number of their requests.
//
// An address has at most perAddress requests in progress, from their first slot to their
// answer, and fewer that are heavy. The store takes requests in the order that they come and
// answers many of them together: without this bound those of one address would keep all others
// waiting there.
type shares struct {
	memory     int64
	perAddress int

	mu        sync.Mutex
	held      int64 // bytes of all requests
	slots     int   // that are free
	addresses map[netip.Prefix]*holder
	sources   map[string]*holder
	line      list.List // of *holder: addresses with a request that may have the next slot, in their order
}

// A holder is a source or an address with what its requests hold.
type holder struct {
	requests int
	held     int64 // bytes

	// Of addresses only.
	running int       // requests in progress; heavy ones count as several
	waiting list.List // of *waiter
	inLine  bool
}

// A waiter is a request that waits for a slot. One that is in progress already, because its
// write key was looked up in between, comes before those of its address that are not.
type waiter struct {
	*reservation
	ready chan struct{} // closed when it has its slot
}

var (
	errMemory = errors.New("no memory left for the request")
	errNever  = errors.New("more memory than a request may ever have")
)

func newShares(memory int64, perAddress, slots int) *shares {
	return &shares{memory: memory, perAddress: perAddress, slots: slots, addresses: map[netip.Prefix]*holder{}, sources: map[string]*holder{}}
}

// A reservation is what one request holds of the shares.
type reservation struct {
	s       *shares
	held    int64
	address netip.Prefix
	client  *holder // of the address
	name    string
	source  *holder // nil: it is not known yet
	weight  int     // what it counts for in client.running; 0: it is not in progress
	slot    bool    // it has one

	body  *buffer // nil: the body was not read, or is not used any more
	space *space  // nil: no calls were read
	size  int     // of the body as it came
}

// reserve begins the reservation of a request that comes from an address.
func (s *shares) reserve(ip string) *reservation {
	m := &reservation{s: s, address: networkOf(ip)}
	s.mu.Lock()
	defer s.mu.Unlock()
	m.client = join(s.addresses, m.address)
	return m
}

// networkOf returns what counts as one address: an IPv4 address or, as one client may have
// as many of them as it likes, the first half of an IPv6 address. Requests whose address is
// not known count as one client's.
func networkOf(ip string) netip.Prefix {
	addr, err := netip.ParseAddr(ip)
	if err != nil {
		return netip.Prefix{}
	}
	addr = addr.Unmap().WithZone("")
	bits := addr.BitLen()
	if addr.Is6() {
		bits = 64
	}
	network, _ := addr.Prefix(bits)
	return network
}

// join returns the holder of a key, with a request more.
func join[K comparable](holders map[K]*holder, key K) *holder {
	h := holders[key]
	if h == nil {
		h = new(holder)
		holders[key] = h
	}
	h.requests++
	return h
}

// idleHolders is how many holders without requests are kept, as most of them come back soon.
const idleHolders = 1000

// leave notes that a holder has a request less.
func leave[K comparable](holders map[K]*holder, key K, h *holder) {
	if h.requests--; h.requests == 0 && len(holders) > idleHolders {
		delete(holders, key)
	}
}

// of counts the request for its source as well. The error is errMemory if the source may
// not hold what the request does.
func (m *reservation) of(name string) error {
	s := m.s
	s.mu.Lock()
	defer s.mu.Unlock()
	m.name, m.source = name, join(s.sources, name)
	m.source.held += m.held
	if m.source.held > s.memory-s.held {
		return errMemory
	}
	return nil
}

// take adds n bytes, before they are allocated. The error is errMemory while others, or
// other requests of the same source or address, hold them, and errNever if this request
// would not get them alone either.
func (m *reservation) take(n int) error {
	s, more := m.s, int64(n)
	if m.held+more > s.memory/2 {
		return errNever
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	left := s.memory - s.held - more
	if m.client.held+more > left || m.source != nil && m.source.held+more > left {
		return errMemory
	}
	m.add(more)
	return nil
}

// give gives n bytes back.
func (m *reservation) give(n int) {
	m.s.mu.Lock()
	defer m.s.mu.Unlock()
	m.add(-int64(n))
}

// add adds n bytes to what is held. The caller holds s.mu.
func (m *reservation) add(n int64) {
	m.held += n
	m.s.held += n
	m.client.held += n
	if m.source != nil {
		m.source.held += n
	}
}

// work waits for a slot, which rest gives back. The error is that of ctx, if it is done
// before.
func (m *reservation) work(ctx context.Context) error {
	s, h := m.s, m.client
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.slots > 0 && (m.weight > 0 || h.running < s.perAddress) { // then nobody is in line
		m.start()
		return nil
	}
	w := &waiter{m, make(chan struct{})}
	var at *list.Element
	if m.weight > 0 {
		at = h.waiting.PushFront(w)
	} else {
		at = h.waiting.PushBack(w)
	}
	s.queue(h)
	s.mu.Unlock()
	select {
	case <-w.ready:
	case <-ctx.Done():
	}
	s.mu.Lock()
	if !m.slot {
		h.waiting.Remove(at)
		return ctx.Err()
	}
	return nil
}

// start gives the request a slot. The caller holds s.mu.
func (m *reservation) start() {
	m.s.slots--
	m.slot = true
	if m.weight == 0 {
		m.weight = 1
		m.client.running++
	}
}

// queue puts an address at the end of the line if one of its requests may have a slot. The
// caller holds s.mu.
func (s *shares) queue(h *holder) {
	if !h.inLine && s.next(h) != nil {
		h.inLine = true
		s.line.PushBack(h)
	}
}

// next returns the waiter of an address that may have a slot, nil if there is none. The
// caller holds s.mu.
func (s *shares) next(h *holder) *waiter {
	if first := h.waiting.Front(); first != nil {
		if w := first.Value.(*waiter); w.weight > 0 || h.running < s.perAddress {
			return w
		}
	}
	return nil
}

// assign gives free slots to the addresses in line. The caller holds s.mu.
func (s *shares) assign() {
	for s.slots > 0 && s.line.Len() > 0 {
		h := s.line.Remove(s.line.Front()).(*holder)
		h.inLine = false
		w := s.next(h)
		if w == nil {
			continue // it no longer waits
		}
		h.waiting.Remove(h.waiting.Front())
		w.start()
		close(w.ready)
		s.queue(h)
	}
}

// weightSize is how many bytes of webhooks make a request count as one more.
const weightSize = 256 << 10

// rest gives the slot back. If it is known how many bytes the request will have stored, they
// may make it count as several.
func (m *reservation) rest(stored int) {
	m.s.mu.Lock()
	defer m.s.mu.Unlock()
	m.weight += stored / weightSize
	m.client.running += stored / weightSize
	m.leaveSlot()
}

// leaveSlot gives the slot back, if there is one. The caller holds s.mu.
func (m *reservation) leaveSlot() {
	if m.slot {
		m.slot = false
		m.s.slots++
		m.s.assign()
	}
}

// release gives everything back. The bodies that were read are not used any more.
func (m *reservation) release() {
	m.dropBody()
	if m.space != nil {
		m.space.release()
	}
	s := m.s
	s.mu.Lock()
	defer s.mu.Unlock()
	m.add(-m.held)
	m.leaveSlot()
	if m.weight > 0 {
		m.client.running -= m.weight
		s.queue(m.client)
		s.assign()
	}
	leave(s.addresses, m.address, m.client)
	if m.source != nil {
		leave(s.sources, m.name, m.source)
	}
}
