package collector

import (
	"context"
	"net/netip"
	"slices"
	"sync"

	"github.com/hookferry/analytics/event"
)

// shares divides memory and slots among the requests of a Handler.
//
// Memory. A request counts for two holders: its source, and the address of its client. A holder may
// take memory as long as it then holds no more than is still free (the dynamic threshold of
// Choudhury and Hahne, 1998). So one holder alone gets half of the memory, and two that want all of
// it get a third each. Some always stays free for one more.
//
// Slots. A request needs a slot while a processor works on it, to inflate, read and encode its
// calls, but not while its body arrives or while it waits for the store. Slots go to addresses
// round robin, however many requests an address has.
//
// An address has at most perAddress requests in progress, from their first slot to their answer. A
// request with many bytes counts as several. The store takes requests in order. Without this bound,
// the requests of all other addresses could have to wait behind very many of one address.
type shares struct {
	memory     int64
	perAddress int

	mu      sync.Mutex
	held    int64 // bytes that all requests hold
	slots   int   // free slots
	holders map[holderKey]*holder
	line    []*holder // addresses with a request that may have a slot, the next first
}

// A holderKey is an address or the name of a source.
type holderKey struct {
	address netip.Prefix
	source  string
}

// A holder is a source or an address. It counts the memory that its requests hold.
type holder struct {
	key      holderKey
	requests int
	held     int64 // bytes

	// These fields are used for addresses only.
	running int            // requests in progress; heavy ones count as several
	waiting []*reservation // the requests that wait for a slot, the next first
	inLine  bool
}

var (
	// errMemory refuses a request because others hold the memory or the slots that it needs.
	errMemory = later("too many requests at once")
	// errNever refuses a request that needs more memory than one request may ever have.
	errNever = wrong(event.CodeTooLarge, "the request takes more memory than one may have")
)

func newShares(memory int64, perAddress, slots int) *shares {
	return &shares{memory: memory, perAddress: perAddress, slots: slots, holders: map[holderKey]*holder{}}
}

// A reservation holds the memory and the slot of one request.
type reservation struct {
	s      *shares
	held   int64
	client *holder       // the holder of the address
	source *holder       // nil: not known yet
	weight int           // what the request adds to client.running; 0: not in progress
	slot   bool          // the request has a slot
	ready  chan struct{} // closed when the request that waits has a slot

	body     *buffer   // nil: not read yet, or given back
	contents *contents // nil: no calls were read
}

func (s *shares) reserve(ip string) *reservation {
	network := networkOf(ip)
	s.mu.Lock()
	defer s.mu.Unlock()
	return &reservation{s: s, client: s.join(holderKey{address: network})}
}

// networkOf returns the network that counts as one address: for IPv6 the /64, because one client
// may use all its addresses. Unknown addresses count as one.
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

// join returns the holder with this key, creating it if needed, and counts one more request for it.
// The caller holds s.mu.
func (s *shares) join(key holderKey) *holder {
	h := s.holders[key]
	if h == nil {
		h = &holder{key: key}
		s.holders[key] = h
	}
	h.requests++
	return h
}

// While there are at most idleHolders holders, those without requests are kept, because most
// sources and addresses soon send the next request.
const idleHolders = 2000

// leave subtracts one request from the count of the holder h. It removes h if h has no requests and
// there are more than idleHolders holders. The caller holds s.mu.
func (s *shares) leave(h *holder) {
	if h.requests--; h.requests == 0 && len(s.holders) > idleHolders {
		delete(s.holders, h.key)
	}
}

// join makes the source of the request its second holder. It returns errMemory if the source then
// holds more memory than is free.
func (m *reservation) join(name string) error {
	s := m.s
	s.mu.Lock()
	defer s.mu.Unlock()
	m.source = s.join(holderKey{source: name})
	m.source.held += m.held
	if m.source.held > s.memory-s.held {
		return errMemory
	}
	return nil
}

// take counts n bytes more for the request. Call it before allocating them. It returns errMemory if
// other requests have to give memory back first, and errNever if this request could not get the
// bytes even if it were alone.
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

func (m *reservation) give(n int) {
	m.s.mu.Lock()
	defer m.s.mu.Unlock()
	m.add(-int64(n))
}

// add adds n bytes, which may be negative, for the request and its holders. The caller holds s.mu.
func (m *reservation) add(n int64) {
	m.held += n
	m.s.held += n
	m.client.held += n
	if m.source != nil {
		m.source.held += n
	}
}

// work waits for a slot, which the method rest gives back later. If ctx ends first, work returns
// errMemory.
func (m *reservation) work(ctx context.Context) error {
	s, h := m.s, m.client
	s.mu.Lock()
	defer s.mu.Unlock()
	// While a slot is free, no address is in line, so the request need not queue.
	if s.slots > 0 && (m.weight > 0 || h.running < s.perAddress) {
		m.start()
		return nil
	}
	m.ready = make(chan struct{})
	if m.weight > 0 { // the request had a slot, and gave it back while its write key was looked up
		h.waiting = slices.Insert(h.waiting, 0, m)
	} else {
		h.waiting = append(h.waiting, m)
	}
	s.queue(h)
	s.mu.Unlock()
	select {
	case <-m.ready:
	case <-ctx.Done():
	}
	s.mu.Lock()
	if !m.slot {
		i := slices.Index(h.waiting, m)
		h.waiting = slices.Delete(h.waiting, i, i+1)
		return errMemory
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
		s.line = append(s.line, h)
	}
}

// next returns the request that gets the next slot of an address. It returns nil if no request of
// the address waits, or if none may have a slot now. The caller holds s.mu.
func (s *shares) next(h *holder) *reservation {
	if len(h.waiting) > 0 && (h.waiting[0].weight > 0 || h.running < s.perAddress) {
		return h.waiting[0]
	}
	return nil
}

// assign gives free slots to the addresses in line. The caller holds s.mu.
func (s *shares) assign() {
	for s.slots > 0 && len(s.line) > 0 {
		h := s.line[0]
		s.line = s.line[1:]
		h.inLine = false
		if m := s.next(h); m != nil { // otherwise the request that put the address in line waits no more
			h.waiting = h.waiting[1:]
			m.start()
			close(m.ready)
			s.queue(h)
		}
	}
}

// A request in progress counts as one, plus one for each weightSize bytes of its webhooks; see
// reservation.weight.
const weightSize = 256 << 10

// rest gives the slot back. The argument stored is how many bytes the store will have to write for
// the request, or 0 if that is not known yet. For each weightSize bytes, the request counts as one
// more.
func (m *reservation) rest(stored int) {
	m.s.mu.Lock()
	defer m.s.mu.Unlock()
	m.weight += stored / weightSize
	m.client.running += stored / weightSize
	m.leaveSlot()
}

// leaveSlot gives the slot back, if the request has one. The caller holds s.mu.
func (m *reservation) leaveSlot() {
	if m.slot {
		m.slot = false
		m.s.slots++
		m.s.assign()
	}
}

// release gives back everything, including the data that the request has read.
func (m *reservation) release() {
	m.dropBody()
	if m.contents != nil {
		m.contents.release()
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
	s.leave(m.client)
	if m.source != nil {
		s.leave(m.source)
	}
}
