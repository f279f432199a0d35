package store

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"time"
)

const MaxAttempts = 16 // kept with a delivery: the first two and the latest fourteen

// An Attempt is one request that was made to one endpoint.
type Attempt struct {
	At       time.Time `json:"at"` // when it started
	Took     Millis    `json:"took"`
	Try      int       `json:"try"`              // the number of the try, from 1, which all its requests have
	Endpoint string    `json:"endpoint"`         // the URL without user, query and fragment
	Status   int       `json:"status"`           // the HTTP status, 0 if there was none
	Reason   Reason    `json:"reason,omitempty"` // why it failed, "" if it succeeded
	Batch    string    `json:"batch,omitempty"`  // the webhook-id of the batch that the delivery was part of, "" if it was sent alone
	// Header has the lines of the request's header that differ from one attempt to another, without
	// secrets, each with a line feed at its end. Up to 1024 bytes.
	Header string `json:"header,omitempty"`
	// Error is the error of a request without an answer, or says what is wrong with the form of the
	// answer. Answer is the beginning of the response body. Each has at most 256 bytes.
	Error  string `json:"error,omitempty"`
	Answer string `json:"answer,omitempty"`
}

// End is when the attempt ended.
func (a *Attempt) End() time.Time { return a.At.Add(time.Duration(a.Took)) }

// Millis is a time.Duration that is a number of milliseconds in JSON, with decimals.
type Millis time.Duration

func (m Millis) String() string   { return time.Duration(m).String() }
func (m Millis) Seconds() float64 { return time.Duration(m).Seconds() }

func (m Millis) MarshalJSON() ([]byte, error) {
	return json.Marshal(float64(m) / float64(time.Millisecond))
}

func (m *Millis) UnmarshalJSON(text []byte) error {
	var ms float64
	err := json.Unmarshal(text, &ms)
	*m = Millis(math.Round(ms * float64(time.Millisecond)))
	return err
}

const recordVersion = 4 // the first byte of every record; versions 1 to 3 were never released

var errRecord = errors.New("webhook: malformed delivery record")

// AppendBinary appends the delivery in the binary form that stores keep: a version byte, then all
// fields but Claim, with the Body last. Times are truncated to the microsecond. If a field exceeds
// its limits, it returns b unchanged, and an error.
func (d *Delivery) AppendBinary(b []byte) ([]byte, error) {
	if err := d.checkRecord(); err != nil {
		return b, err
	}
	r := record{b: append(b, recordVersion)}
	r.delivery(d)
	return r.b, nil
}

// UnmarshalBinary reads what AppendBinary wrote, and keeps no reference to b.
func (d *Delivery) UnmarshalBinary(b []byte) error {
	r, err := readRecord(b)
	if err != nil {
		return err
	}
	*d = Delivery{}
	r.delivery(d)
	if r.failed || len(r.b) != 0 {
		return errRecord
	}
	return nil
}

// AppendBinary appends d in binary form: a version byte, its Reason and At, then its Delivery as
// Delivery.AppendBinary writes it. It leaves out the State.
func (d *Record) AppendBinary(b []byte) ([]byte, error) {
	r := record{b: append(b, recordVersion)}
	r.text((*string)(&d.Reason))
	r.time(&d.At)
	return d.Delivery.AppendBinary(r.b)
}

// UnmarshalBinary reads what AppendBinary wrote. It does not set the State.
func (d *Record) UnmarshalBinary(b []byte) error {
	r, err := readRecord(b)
	if err != nil {
		return err
	}
	r.text((*string)(&d.Reason))
	r.time(&d.At)
	if r.failed {
		return errRecord
	}
	return d.Delivery.UnmarshalBinary(r.b)
}

// Check returns an error if a field exceeds its limits. Stores refuse such a delivery.
func (d *Delivery) Check() error {
	for _, s := range [...]string{d.Destination, d.ID} {
		if n := len(s); n < 1 || n > MaxID {
			return fmt.Errorf("webhook: delivery with a destination or id of %d bytes, not 1 to %d", n, MaxID)
		}
	}
	for _, s := range [...]string{d.MessageID, d.Source, d.User, d.Event, d.Tenant, d.Key} {
		if len(s) > MaxID {
			return fmt.Errorf("webhook: delivery with a message id, source, user, event, tenant or key of %d bytes, more than %d", len(s), MaxID)
		}
	}
	return d.checkRecord()
}

// checkRecord returns an error for a delivery that UnmarshalBinary would refuse to read.
func (d *Delivery) checkRecord() error {
	if n := len(d.Attempts); n > MaxAttempts {
		return fmt.Errorf("webhook: delivery with %d attempts, more than %d", n, MaxAttempts)
	}
	if n := len(d.Closed); n > MaxEndpoints {
		return fmt.Errorf("webhook: delivery with %d closed endpoints, more than %d", n, MaxEndpoints)
	}
	if !countable(d.Tries) {
		return fmt.Errorf("webhook: delivery with an impossible number of tries: %d", d.Tries)
	}
	for i := range d.Attempts {
		if a := &d.Attempts[i]; !countable(a.Try) || !countable(a.Status) {
			return fmt.Errorf("webhook: delivery with an impossible attempt: try %d, status %d", a.Try, a.Status)
		}
	}
	return nil
}

const maxCount = 1 << 53 // of counts in a record, such as Tries; real counts are far smaller

func countable(n int) bool { return n >= 0 && int64(n) <= maxCount }

// A record writes or reads a delivery field by field: its methods append to b or, with reading,
// consume b. After a malformed field, failed is set, b is empty, and all other fields read as zero.
type record struct {
	b       []byte
	reading bool
	failed  bool
}

// readRecord returns a record that reads b, beginning after the version byte.
func readRecord(b []byte) (record, error) {
	if len(b) == 0 || b[0] != recordVersion {
		return record{}, fmt.Errorf("%w: version %d", errRecord, b[:min(len(b), 1)])
	}
	return record{b: b[1:], reading: true}, nil
}

// delivery writes or reads all fields of a delivery but Claim.
func (r *record) delivery(d *Delivery) {
	r.text(&d.Destination)
	r.texts(&d.ID, &d.MessageID, &d.Source, &d.User, &d.Event, &d.Tenant, &d.Key, &d.Type)
	r.time(&d.Accepted)
	r.time(&d.Due)
	r.time(&d.Expires)
	r.int(&d.Tries)
	if n := r.count(len(d.Closed), MaxEndpoints); r.reading && n > 0 {
		d.Closed = make([]Closed, n)
	}
	for i := range d.Closed {
		c := &d.Closed[i]
		r.fixed(&c.Endpoint)
		r.time(&c.Until)
	}
	if n := r.count(len(d.Attempts), MaxAttempts); r.reading && n > 0 {
		d.Attempts = make([]Attempt, n)
	}
	for i := range d.Attempts {
		a := &d.Attempts[i]
		r.time(&a.At)
		r.duration((*time.Duration)(&a.Took))
		r.int(&a.Try)
		r.text(&a.Endpoint)
		r.int(&a.Status)
		r.text((*string)(&a.Reason))
		r.text(&a.Batch)
		r.text(&a.Header)
		r.text(&a.Error)
		r.text(&a.Answer)
	}
	r.text(&d.Trace.Parent)
	r.text(&d.Trace.State)
	if v := r.uvarint(d.Seq, math.MaxUint64); r.reading {
		d.Seq = v
	}
	if r.reading {
		d.Body = bytes.Clone(r.take())
		return
	}
	r.b = binary.AppendUvarint(r.b, uint64(len(d.Body)))
	r.b = append(r.b, d.Body...)
}

func (r *record) fail() { r.b, r.failed = nil, true }

// uvarint writes v, or reads a number of at most limit.
func (r *record) uvarint(v, limit uint64) uint64 {
	if !r.reading {
		r.b = binary.AppendUvarint(r.b, v)
		return v
	}
	v, n := binary.Uvarint(r.b)
	if n <= 0 || v > limit {
		r.fail()
		return 0
	}
	r.b = r.b[n:]
	return v
}

// count writes n, or reads a count of at most limit.
func (r *record) count(n, limit int) int { return int(r.uvarint(uint64(n), uint64(limit))) }

// int writes or reads a number from 0 to maxCount.
func (r *record) int(n *int) {
	if v := r.count(*n, min(maxCount, math.MaxInt)); r.reading {
		*n = v
	}
}

// duration writes or reads microseconds. It writes a negative duration as zero.
func (r *record) duration(d *time.Duration) {
	const limit = math.MaxInt64 / uint64(time.Microsecond)
	if v := r.uvarint(uint64(max(*d, 0)/time.Microsecond), limit); r.reading {
		*d = time.Duration(v) * time.Microsecond
	}
}

func (r *record) fixed(v *uint64) {
	switch {
	case !r.reading:
		r.b = binary.LittleEndian.AppendUint64(r.b, *v)
	case len(r.b) < 8:
		r.fail()
	default:
		*v = binary.LittleEndian.Uint64(r.b)
		r.b = r.b[8:]
	}
}

// time writes or reads microseconds since 1970, as binary.AppendVarint writes them, zero as 0.
func (r *record) time(t *time.Time) {
	v := int64(0)
	if !t.IsZero() {
		v = t.UnixMicro()
	}
	zigzag := r.uvarint(uint64(v)<<1^uint64(v>>63), math.MaxUint64)
	if !r.reading {
		return
	}
	*t = time.Time{}
	if v = int64(zigzag>>1) ^ -int64(zigzag&1); v != 0 {
		*t = time.UnixMicro(v).UTC()
	}
}

func (r *record) text(s *string) {
	if r.reading {
		*s = string(r.take())
		return
	}
	r.b = binary.AppendUvarint(r.b, uint64(len(*s)))
	r.b = append(r.b, *s...)
}

// texts writes or reads several texts. Reading makes one allocation for all of them.
func (r *record) texts(texts ...*string) {
	if !r.reading {
		for _, s := range texts {
			r.text(s)
		}
		return
	}
	from := r.b
	for range texts {
		r.take()
	}
	if r.failed {
		return
	}
	all := string(from[:len(from)-len(r.b)])
	for _, s := range texts {
		n, size := binary.Uvarint(from)
		end := size + int(n)
		*s, all, from = all[size:end], all[end:], from[end:]
	}
}

// take reads a text, and returns it as a subslice of r.b.
func (r *record) take() []byte {
	n := r.uvarint(0, math.MaxUint64)
	if n > uint64(len(r.b)) {
		r.fail()
		return nil
	}
	b := r.b[:n:n]
	r.b = r.b[n:]
	return b
}
