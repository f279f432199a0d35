package webhook

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/hookferry/analytics/event"
)

// MaxAttempts bounds the attempts that are kept with a delivery: the first
// two and the latest fourteen.
const MaxAttempts = 16

// An Attempt is one request that was made to one endpoint.
type Attempt struct {
	// At is when it started.
	At time.Time
	// Took is how long it took.
	Took time.Duration
	// Try is the number of the delivery's attempt that it was part of,
	// counted from 1.
	Try int
	// Endpoint is the URL without user, query and fragment.
	Endpoint string
	// Status is the HTTP status, 0 if there was none.
	Status int
	// Reason is why it failed, "" if it succeeded.
	Reason Reason
	// Error says more about it, at most 256 bytes.
	Error string
	// Answer is the beginning of the response body, at most 256 bytes.
	Answer string
}

// recordVersion is the first byte of every record. Versions 1 and 2 were never
// released, and are not read.
const recordVersion = 3

// errRecord is the error of a record that cannot be read.
var errRecord = errors.New("webhook: malformed delivery record")

// AppendBinary appends the record of the delivery in the form that stores
// keep: a version, then all fields but Claim, the Body last. Times are kept to the
// microsecond. For a delivery outside the limits of its fields it returns b as it
// was, and an error.
func (d *Delivery) AppendBinary(b []byte) ([]byte, error) {
	if err := d.checkRecord(); err != nil {
		return b, err
	}
	b = append(b, recordVersion)
	b = appendText(b, d.Destination)
	b = appendText(b, d.ID)
	b = appendText(b, d.MessageID)
	b = appendText(b, d.Source)
	b = appendText(b, d.User)
	b = appendText(b, d.Event)
	b = appendText(b, d.Type)
	b = appendTime(b, d.Accepted)
	b = appendTime(b, d.Due)
	b = appendTime(b, d.Expires)
	b = binary.AppendUvarint(b, uint64(d.Tries))
	b = binary.AppendUvarint(b, uint64(len(d.Closed)))
	for _, c := range d.Closed {
		b = binary.LittleEndian.AppendUint64(b, c.Endpoint)
		b = appendTime(b, c.Until)
	}
	b = binary.AppendUvarint(b, uint64(len(d.Attempts)))
	for i := range d.Attempts {
		a := &d.Attempts[i]
		b = appendTime(b, a.At)
		b = binary.AppendUvarint(b, uint64(max(a.Took, 0)/time.Microsecond))
		b = binary.AppendUvarint(b, uint64(a.Try))
		b = appendText(b, a.Endpoint)
		b = binary.AppendUvarint(b, uint64(a.Status))
		b = appendText(b, string(a.Reason))
		b = appendText(b, a.Error)
		b = appendText(b, a.Answer)
	}
	b = appendText(b, d.Trace.Parent)
	b = appendText(b, d.Trace.State)
	b = binary.AppendUvarint(b, uint64(len(d.Body)))
	return append(b, d.Body...), nil
}

// Check returns an error for a delivery outside the limits of its fields, which a store
// does not take.
func (d *Delivery) Check() error {
	if n := len(d.Destination); n < 1 || n > maxID {
		return fmt.Errorf("webhook: delivery with a destination of %d bytes, not 1 to %d", n, maxID)
	}
	if n := len(d.ID); n < 1 || n > maxID {
		return fmt.Errorf("webhook: delivery with an id of %d bytes, not 1 to %d", n, maxID)
	}
	for _, s := range [...]string{d.MessageID, d.Source, d.User, d.Event} {
		if len(s) > maxID {
			return fmt.Errorf("webhook: delivery with a message id, source, user or event of %d bytes, more than %d", len(s), maxID)
		}
	}
	return d.checkRecord()
}

// checkRecord returns an error for what UnmarshalBinary would refuse.
func (d *Delivery) checkRecord() error {
	if len(d.Attempts) > MaxAttempts || len(d.Closed) > MaxEndpoints {
		return fmt.Errorf("webhook: delivery with %d attempts and %d closed endpoints", len(d.Attempts), len(d.Closed))
	}
	if !countable(d.Tries) {
		return fmt.Errorf("webhook: delivery with %d tries", d.Tries)
	}
	for i := range d.Attempts {
		if a := &d.Attempts[i]; !countable(a.Try) || !countable(a.Status) {
			return fmt.Errorf("webhook: delivery with an attempt of try %d and status %d", a.Try, a.Status)
		}
	}
	return nil
}

// maxCount is far past any count.
const maxCount = 1 << 53

func countable(n int) bool { return n >= 0 && int64(n) <= maxCount }

// UnmarshalBinary reads what AppendBinary wrote. The delivery keeps nothing of b.
// After an error it holds nothing of use.
func (d *Delivery) UnmarshalBinary(b []byte) error {
	r := recordReader{b: b}
	if version := r.byte(); version != recordVersion {
		return fmt.Errorf("%w: version %d", errRecord, version)
	}
	*d = Delivery{Destination: r.text()}
	r.texts(&d.ID, &d.MessageID, &d.Source, &d.User, &d.Event, &d.Type)
	d.Accepted = r.time()
	d.Due = r.time()
	d.Expires = r.time()
	d.Tries = r.int()
	if n := r.count(MaxEndpoints); n > 0 {
		d.Closed = make([]Closed, n)
		for i := range d.Closed {
			d.Closed[i] = Closed{Endpoint: r.uint64(), Until: r.time()}
		}
	}
	if n := r.count(MaxAttempts); n > 0 {
		d.Attempts = make([]Attempt, n)
		for i := range d.Attempts {
			d.Attempts[i] = Attempt{
				At:       r.time(),
				Took:     r.duration(),
				Try:      r.int(),
				Endpoint: r.text(),
				Status:   r.int(),
				Reason:   Reason(r.text()),
				Error:    r.text(),
				Answer:   r.text(),
			}
		}
	}
	d.Trace = event.Trace{Parent: r.text(), State: r.text()}
	d.Body = bytes.Clone(r.bytes())
	if r.failed || len(r.b) != 0 {
		return errRecord
	}
	return nil
}

// AppendBinary appends the record of the dead letter: its Reason and Died,
// then the Delivery's. The Key is the store's.
func (d *DeadLetter) AppendBinary(b []byte) ([]byte, error) {
	b = append(b, recordVersion)
	b = appendText(b, string(d.Reason))
	b = appendTime(b, d.Died)
	return d.Delivery.AppendBinary(b)
}

// UnmarshalBinary reads what AppendBinary wrote. It leaves Key alone.
func (d *DeadLetter) UnmarshalBinary(b []byte) error {
	r := recordReader{b: b}
	if v := r.byte(); v != recordVersion {
		return fmt.Errorf("%w: version %d", errRecord, v)
	}
	d.Reason = Reason(r.text())
	d.Died = r.time()
	if r.failed {
		return errRecord
	}
	return d.Delivery.UnmarshalBinary(r.b)
}

func appendText(b []byte, s string) []byte {
	b = binary.AppendUvarint(b, uint64(len(s)))
	return append(b, s...)
}

// appendTime writes a time as microseconds since 1970, the zero time as 0.
func appendTime(b []byte, t time.Time) []byte {
	if t.IsZero() {
		return binary.AppendVarint(b, 0)
	}
	return binary.AppendVarint(b, t.UnixMicro())
}

// A recordReader takes a record apart. After the first thing that does not
// fit, failed is set and everything reads as zero.
type recordReader struct {
	b      []byte
	failed bool
}

func (r *recordReader) fail() {
	r.b, r.failed = nil, true
}

func (r *recordReader) byte() byte {
	if len(r.b) == 0 {
		r.fail()
		return 0
	}
	c := r.b[0]
	r.b = r.b[1:]
	return c
}

func (r *recordReader) uvarint() uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.fail()
		return 0
	}
	r.b = r.b[n:]
	return v
}

// int reads a count.
func (r *recordReader) int() int {
	v := r.uvarint()
	if v > maxCount || v > math.MaxInt {
		r.fail()
		return 0
	}
	return int(v)
}

// duration reads microseconds.
func (r *recordReader) duration() time.Duration {
	v := r.uvarint()
	if v > math.MaxInt64/uint64(time.Microsecond) {
		r.fail()
		return 0
	}
	return time.Duration(v) * time.Microsecond
}

func (r *recordReader) count(limit int) int {
	n := r.int()
	if n > limit {
		r.fail()
		return 0
	}
	return n
}

func (r *recordReader) uint64() uint64 {
	if len(r.b) < 8 {
		r.fail()
		return 0
	}
	v := binary.LittleEndian.Uint64(r.b)
	r.b = r.b[8:]
	return v
}

func (r *recordReader) text() string { return string(r.bytes()) }

// texts reads texts that follow each other. They share one allocation.
func (r *recordReader) texts(texts ...*string) {
	from := r.b
	for range texts {
		r.bytes()
	}
	if r.failed {
		return
	}
	all := string(from[:len(from)-len(r.b)])
	for _, text := range texts {
		n, size := binary.Uvarint(from)
		end := size + int(n)
		*text, all, from = all[size:end], all[end:], from[end:]
	}
}

// bytes returns the next text, which is a part of the record.
func (r *recordReader) bytes() []byte {
	n := r.uvarint()
	if n > uint64(len(r.b)) {
		r.fail()
		return nil
	}
	b := r.b[:n:n]
	r.b = r.b[n:]
	return b
}

func (r *recordReader) time() time.Time {
	v, n := binary.Varint(r.b)
	if n <= 0 {
		r.fail()
		return time.Time{}
	}
	r.b = r.b[n:]
	if v == 0 {
		return time.Time{}
	}
	return time.UnixMicro(v).UTC()
}
