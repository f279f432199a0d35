package natsqueue

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"
)

// headerFrom tells of a delivery that was put back which message it was before,
// and in which epoch: so the one settles the other, whatever else is stored.
const headerFrom = "Hookferry-From"

// headerEpoch tells of a record in which epoch it was written.
const headerEpoch = "Hookferry-Epoch"

// An origin is the value of headerFrom.
type origin struct{ epoch, seq uint64 }

func (o origin) String() string {
	return strconv.FormatUint(o.epoch, 10) + " " + strconv.FormatUint(o.seq, 10)
}

var errOrigin = errors.New("natsqueue: a malformed origin")

// originOf reads headerFrom; ok is false where there is none.
func originOf(h nats.Header) (o origin, ok bool, err error) {
	text := h.Get(headerFrom)
	if text == "" {
		return o, false, nil
	}
	epoch, seq, found := strings.Cut(text, " ")
	if o.epoch, err = strconv.ParseUint(epoch, 10, 64); err == nil && found {
		o.seq, err = strconv.ParseUint(seq, 10, 64)
	}
	if err != nil || !found || o.String() != text {
		return origin{}, false, errOrigin
	}
	return o, true, nil
}

const recordVersion = 1

// appendRecord appends a record of the messages that were settled, whose sequences
// it sorts: a version and the differences between them.
func appendRecord(b []byte, seqs []uint64) []byte {
	slices.Sort(seqs)
	b = append(b, recordVersion)
	last := uint64(0)
	for _, seq := range seqs {
		b = binary.AppendUvarint(b, seq-last)
		last = seq
	}
	return b
}

var errRecord = errors.New("natsqueue: a malformed record")

// parseRecord reads what appendRecord wrote.
func parseRecord(b []byte) ([]uint64, error) {
	if len(b) == 0 || b[0] != recordVersion {
		return nil, errRecord
	}
	var seqs []uint64
	last := uint64(0)
	for b = b[1:]; len(b) > 0; {
		d, n := binary.Uvarint(b)
		if n <= 0 || last+d < last {
			return nil, errRecord
		}
		last += d
		seqs = append(seqs, last)
		b = b[n:]
	}
	return seqs, nil
}

// A deed says whose a partition is. Its sequence is the epoch that begins with it.
type deed struct {
	// Node is the id of the owner, empty if there is none, nobody if there is none and
	// what he had settled is to be looked for.
	Node string `json:"node,omitempty"`
	// Name is the owner's Config.Node.
	Name string `json:"name,omitempty"`
	// Settled is a record of what the one before had settled and not erased,
	// if he left in order; then there is no other to look for.
	Settled []byte `json:"settled,omitempty"`
}

func parseDeed(b []byte) (d deed, err error) {
	if err := json.Unmarshal(b, &d); err != nil {
		return deed{}, fmt.Errorf("natsqueue: the owner of a partition: %w", err)
	}
	return d, nil
}
