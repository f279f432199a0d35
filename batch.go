package analytics

import (
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hookferry/analytics/internal/isotime"
	"github.com/hookferry/analytics/internal/spool"
	"github.com/hookferry/analytics/internal/uuid"
)

// A batch is the messages of one request, already in the form in which they
// are sent. The envelope around them is
//
//	{"batch":[ messages ],"context":{"library":{...}},"messageId":"...","sentAt":"..."}
//
// of which buf, or a segment of the spool, holds everything up to the last
// message. What follows, the tail, is written anew for every attempt because of
// sentAt, into memory of its own: a request that timed out may still be reading
// the previous one.
//
// The Client's mutex guards a batch while it takes messages; after that its
// text no longer changes.
type batch struct {
	buf    []byte         // the text, unless seg holds it
	seg    *spool.Segment // nil for a batch that lives in memory alone
	packed *packed        // the text compressed, if that is how it is sent
	ends   []int32        // where each message ends in buf; of a segment, see Segment.Ends
	n      int            // messages
	size   int            // bytes of the text
	id     [uuid.Size]byte
	opened time.Time // when the first message came
	due    bool      // to be sent as soon as an uploader is free
	onDisk bool      // seg is not in memory
	tries  int       // attempts made before it was put on disk

	// settled is for the waiters of the batch. It is made, under the Client's
	// mutex, for the first of them.
	settled *settlement
	fate    fate

	refs atomic.Int32 // who may still read the batch; see release
}

// A settlement is what became of a batch, for those who wait for that. Its
// other fields are set once done is closed.
type settlement struct {
	done chan struct{}
	fate fate
	n    int  // messages that shared it; fewer than there were if the disk has lost some
	kept bool // the batch stays on disk for a later attempt, because of fate.err
}

// answer tells those who wait for b. The Client's mutex is held.
func (b *batch) answer(f fate, kept bool) {
	if s := b.settled; s != nil {
		s.fate, s.n, s.kept = f, b.n, kept
		close(s.done)
		b.settled = nil
	}
}

const (
	batchHead  = `{"batch":[`
	batchTail1 = `],"context":{"library":{"name":"` + libraryName + `","version":"` + Version + `"}},"messageId":"`
	batchTail2 = `","sentAt":"`
	batchTail3 = `"}`

	sentAtSize   = len("2006-01-02T15:04:05.000Z")
	tailSize     = len(batchTail1) + uuid.Size + len(batchTail2) + sentAtSize + len(batchTail3)
	firstBufSize = 16 << 10
	maxIdleBuf   = 64 << 10 // see reusable
	growth       = 4        // of a buffer, in one step
)

var batches = sync.Pool{New: func() any {
	return &batch{buf: make([]byte, 0, firstBufSize)}
}}

// newBatch returns an empty batch with one reference.
func newBatch(now time.Time) *batch {
	b := batches.Get().(*batch)
	b.buf = append(b.buf[:0], batchHead...)
	b.ends = b.ends[:0]
	b.n, b.size = 0, len(batchHead)
	b.packed = nil
	b.opened = now
	b.due = false
	b.settled = nil
	b.fate = fate{}
	uuid.Append(b.id[:0])
	b.refs.Store(1)
	return b
}

// fits reports whether a message of n bytes keeps the request within
// MaxBatchSize and MaxBatchCalls.
func (b *batch) fits(n int) bool {
	return b.size+len(",")+n+tailSize <= MaxBatchSize && b.n < MaxBatchCalls
}

// append adds a message to a batch in memory.
func (b *batch) append(message []byte) {
	if size := len(b.buf) + len(",") + len(message); size > cap(b.buf) {
		b.grow(size)
	}
	if b.n > 0 {
		b.buf = append(b.buf, ',')
	}
	b.buf = append(b.buf, message...)
	b.ends = append(b.ends, int32(len(b.buf)))
	b.n, b.size = b.n+1, len(b.buf)
}

// grow makes room for size bytes, in fewer steps than append would: callers wait
// for each, and each leaves garbage.
func (b *batch) grow(size int) {
	room := max(min(growth*cap(b.buf), MaxBatchSize), size)
	b.buf = append(make([]byte, 0, room), b.buf...)
}

// footprint is what a message of n bytes counts towards MaxMemory.
func footprint(n int) int { return n + len(",") }

// footprint is the sum of the footprints of the messages in the batch.
func (b *batch) footprint() int {
	if b.n == 0 || b.onDisk {
		return 0
	}
	return b.size - len(batchHead) + len(",")
}

// text returns what precedes the tail; nil if the disk has lost it. It copies
// that of a segment, which is not safe to touch in place when a disk fails.
func (b *batch) text() []byte {
	if b.seg == nil {
		return b.buf
	}
	text := make([]byte, b.size)
	if _, err := b.seg.ReadAt(text, 0); err != nil {
		return nil
	}
	return text
}

// message returns the i-th message of the batch with that text.
func (b *batch) message(text []byte, i int) []byte {
	start := len(batchHead)
	if i > 0 {
		start = int(b.ends[i-1]) + len(",")
	}
	end := int(b.ends[i])
	return text[start:end:end]
}

// retain and release count who may read the batch: the client until the batch
// is settled, and each request body that the transport has not closed. The last
// one to leave gives it to the pool. A transport that forgets to close a body
// costs a reuse and nothing else.
func (b *batch) retain() { b.refs.Add(1) }

func (b *batch) release() {
	if b.refs.Add(-1) == 0 && b.seg == nil && b.reusable() {
		batches.Put(b)
	}
}

// reusable reports whether b should go to the pool: with a small buffer, or one
// of which it used at least a quarter. A large buffer with little in it was grown by an
// earlier use, and small batches, of which there may be many at once, should not
// keep it.
func (b *batch) reusable() bool {
	return cap(b.buf) <= maxIdleBuf || len(b.buf) >= cap(b.buf)/growth
}

// A requestBody reads a batch and a tail. It may be closed while it is read,
// which HTTP/2 does to a request that is answered early.
type requestBody struct {
	mu    sync.Mutex
	batch *batch         // nil once closed
	seg   *spool.Segment // what precedes the tail, unless it is in head
	head  []byte         // what is left to read of that
	at    int            // what has been read of seg
	left  int            // bytes left to read before the tail
	tail  []byte         // what is left to read of the tail
	text  [storedSize + tailSize + gzipEnd]byte
}

// newBody returns a body whose sentAt is now.
func (b *batch) newBody(now time.Time) *requestBody {
	r := &requestBody{batch: b, seg: b.seg, head: b.buf, left: b.size}
	var plain [tailSize]byte
	t := append(plain[:0], batchTail1...)
	t = append(t, b.id[:]...)
	t = append(t, batchTail2...)
	t = isotime.Append(t, now)
	t = append(t, batchTail3...)
	if b.packed == nil {
		r.tail = append(r.text[:0], t...)
	} else {
		r.seg, r.head, r.left = nil, b.packed.data, len(b.packed.data)
		r.tail = b.packed.appendTail(r.text[:0], t, b.size)
	}
	b.retain()
	return r
}

// Len is the length of the body; retryablehttp makes it the Content-Length.
func (r *requestBody) Len() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.left + len(r.tail)
}

func (r *requestBody) Read(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.batch == nil {
		return 0, io.ErrClosedPipe
	}
	n := min(len(p), r.left)
	if r.seg == nil {
		r.head = r.head[copy(p[:n], r.head):]
	} else if n > 0 {
		read, err := r.seg.ReadAt(p[:n], int64(r.at))
		if r.at += read; read < n {
			return read, err
		}
	}
	if r.left -= n; r.left == 0 {
		m := copy(p[n:], r.tail)
		r.tail = r.tail[m:]
		n += m
		if len(r.tail) == 0 {
			return n, io.EOF
		}
	}
	return n, nil
}

func (r *requestBody) Close() error {
	r.mu.Lock()
	b := r.batch
	r.batch, r.head = nil, nil
	r.mu.Unlock()
	if b != nil {
		b.release()
	}
	return nil
}
