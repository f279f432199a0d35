package natsqueue

import (
	"encoding/binary"
	"maps"
	"slices"

	"github.com/nats-io/nats.go"
)

// A part has the items whose deliveries are in one message. They wait for the owner's answer about
// that message.
type part struct {
	items []*item
	size  int
}

// answers are what puts wait for: the owners say which deliveries are duplicates, or behind others.
type answers struct {
	index   *index
	awaited map[uint64]*part // by the serial of their records; guarded by index.mu
}

// The bits of a delivery in an owner's answer.
const (
	isDuplicate = 1 << iota
	isBehind
)

// await registers a part, and returns the serial of its record.
func (an *answers) await(x *part) uint64 {
	an.index.mu.Lock()
	defer an.index.mu.Unlock()
	serial := an.index.serial.Add(1)
	an.awaited[serial] = x
	return serial
}

// forget ends the waiting of p. The index is locked.
func (an *answers) forget(p *put) {
	if p.left == 0 {
		return
	}
	p.left = 0
	maps.DeleteFunc(an.awaited, func(_ uint64, x *part) bool {
		return !slices.ContainsFunc(x.items, func(it *item) bool { return it.put.left > 0 })
	})
}

// received processes the answer of an owner on another node. The answer consists of the serial of
// the record that was put and two bits for each delivery.
func (an *answers) received(m *nats.Msg) {
	serial, n := binary.Uvarint(m.Data)
	if n <= 0 {
		return
	}
	an.index.mu.Lock()
	defer an.index.mu.Unlock()
	an.heard(serial, m.Data[n:])
}

// heard applies an owner's answer to the part with the given serial. The index is locked.
func (an *answers) heard(serial uint64, verdicts []byte) {
	x := an.awaited[serial]
	if x == nil {
		return
	}
	delete(an.awaited, serial)
	for i, it := range x.items {
		p := it.put
		if p.left == 0 || i/4 >= len(verdicts) {
			continue
		}
		bits := verdicts[i/4] >> (i % 4 * 2)
		it.Stored, it.Behind = bits&isDuplicate == 0, bits&isBehind != 0
		if p.left--; p.left == 0 {
			close(p.done)
		}
	}
}
