package analytics

import (
	"bytes"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hookferry/analytics/internal/isotime"
	"github.com/hookferry/analytics/internal/spool"
	"github.com/hookferry/analytics/internal/uuid"
)

// A batch is the messages of one request, in the form in which they are sent:
//
//	{"batch":[ messages ],"context":{"library":{...}},"messageId":"...","sentAt":"..."}
//
// The text of a batch is everything up to the end of the last message. It is in buf or,
// with SpoolDir, in a segment, which is a file of the spool. The tail is the rest. The
// client writes a new tail for each attempt, because sentAt changes. Each tail has its own
// memory, because a request that timed out may still be reading the previous tail.
//
// The queue's mutex guards a batch while it takes messages. After that its text does not
// change.
type batch struct {
	buf    []byte         // the text, unless seg holds it
	seg    *spool.Segment // the file with the text; nil for a batch that lives in memory alone
	packed *packed        // the compressed text; nil unless the batch is sent compressed
	ends   []int32        // the end of each message in buf
	n      int            // number of messages
	size   int            // bytes of the text
	id     [uuid.Size]byte
	opened time.Time // when the first message arrived
	due    bool      // the batch is sent as soon as an uploader is free
	onDisk bool      // the text is on disk alone
	lost   bool      // the file was deleted, and could not be made again

	unspooled bool // the batch is in memory because SpoolDir could not be written
	tries     int  // attempts made before the batch was put on disk

	// settled tells waiters the outcome of the batch. It is nil until the first waiter
	// makes it, with the queue's mutex held.
	settled *settlement
	outcome outcome

	refs atomic.Int32 // number of readers; see retain
}

// A settlement tells waiters the outcome of a batch. They wait until done is closed. The
// other fields are set before that.
type settlement struct {
	done chan struct{}

	outcome outcome
	n       int  // number of messages in the batch, without those that the disk has lost
	spooled bool // the batch stays on disk for a later attempt, because of outcome.err
}

// resolve reports the outcome f of b to the waiters of b. spooled says that b stays on
// disk for a later attempt, because of f.err. The queue's mutex must be held.
func (b *batch) resolve(f outcome, spooled bool) {
	if s := b.settled; s != nil {
		s.outcome, s.n, s.spooled = f, b.n, spooled
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
	maxIdleBuf   = 64 << 10 // in bytes; see reusable
	growth       = 4        // factor by which a buffer grows in one step
)

var batches = sync.Pool{New: func() any {
	return &batch{buf: make([]byte, 0, firstBufSize)}
}}

// newBatch returns an empty batch in memory with one reference.
func newBatch(now time.Time) *batch {
	b := batches.Get().(*batch)
	*b = batch{buf: append(b.buf[:0], batchHead...), ends: b.ends[:0], size: len(batchHead), opened: now}
	uuid.Append(b.id[:0])
	b.refs.Store(1)
	return b
}

// hasFile reports whether the text of b is in a file of SpoolDir.
func (b *batch) hasFile() bool { return b.seg != nil }

// isKept reports whether the text of b is in a file that the next process finds. The queue's mutex
// must be held.
func (b *batch) isKept() bool { return b.hasFile() && !b.lost }

// fits reports whether a message of n bytes keeps the request within
// MaxBatchSize and MaxBatchCalls.
func (b *batch) fits(n int) bool {
	return b.size+len(",")+n+tailSize <= MaxBatchSize && b.n < MaxBatchCalls
}

// append adds a message. If the batch has a file, sum must be the message's spool.Checksum.
// append fails only if the disk does. After an error, the batch must not take further
// messages.
func (b *batch) append(message []byte, sum uint32) error {
	if b.seg != nil {
		if err := b.seg.Append(message, sum); err != nil {
			return err
		}
		b.n, b.size = b.seg.Len(), len(b.seg.Bytes())
		return nil
	}
	if size := len(b.buf) + len(",") + len(message); size > cap(b.buf) {
		b.grow(size)
	}
	if b.n > 0 {
		b.buf = append(b.buf, ',')
	}
	b.buf = append(b.buf, message...)
	b.ends = append(b.ends, int32(len(b.buf)))
	b.n, b.size = b.n+1, len(b.buf)
	return nil
}

// grow enlarges the buffer to size bytes or more. It grows in larger steps than the built-in
// append, because at each step a caller waits, and the old buffer becomes garbage.
func (b *batch) grow(size int) {
	room := max(min(growth*cap(b.buf), MaxBatchSize), size)
	b.buf = append(make([]byte, 0, room), b.buf...)
}

// footprint returns how many bytes a message of n bytes counts towards MaxMemory.
func footprint(n int) int { return n + len(",") }

// footprint returns the sum of the footprints of the batch's messages that are in memory.
func (b *batch) footprint() int {
	if b.n == 0 || b.onDisk {
		return 0
	}
	return b.size - len(batchHead) + len(",")
}

// text returns everything before the tail, or nil if the disk has lost it. It copies the
// text of a segment, because reading mapped memory would crash the program if the disk
// fails.
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

// reader returns a reader of the text.
func (b *batch) reader() io.Reader {
	if b.seg == nil {
		return bytes.NewReader(b.buf)
	}
	return io.NewSectionReader(b.seg, 0, int64(b.size))
}

// message returns the i-th message. text must be the batch's text.
func (b *batch) message(text []byte, i int) []byte {
	ends := b.ends
	if b.seg != nil {
		ends = b.seg.Ends()
	}
	start := len(batchHead)
	if i > 0 {
		start = int(ends[i-1]) + len(",")
	}
	end := int(ends[i])
	return text[start:end:end]
}

// part returns a batch in memory with the messages from number from up to number to, without it.
// The argument text must be the batch's text.
func (b *batch) part(text []byte, from, to int) *batch {
	p := newBatch(b.opened)
	for i := from; i < to; i++ {
		p.append(b.message(text, i), 0) // cannot fail in memory
	}
	return p
}

// retain and release count the readers of the batch: the client until the batch is settled,
// and each request body until the transport closes it. The last release puts the batch into
// the pool. If a transport never closes a body, the garbage collector takes the batch, and
// the pool does not get it.
func (b *batch) retain() { b.refs.Add(1) }

func (b *batch) release() {
	if b.refs.Add(-1) == 0 && b.seg == nil && b.reusable() {
		batches.Put(b)
	}
}

// reusable reports whether b should go to the pool. The buffer of b must be small, or the
// batch must have filled at least a quarter of it. Without this rule, many small batches
// might keep the large buffers of earlier batches.
func (b *batch) reusable() bool {
	return cap(b.buf) <= maxIdleBuf || len(b.buf) >= cap(b.buf)/growth
}

// A requestBody reads the text of a batch and a tail. It may be closed while it is being
// read: HTTP/2 does this if the server answers early.
type requestBody struct {
	mu    sync.Mutex
	batch *batch    // nil once closed
	text  io.Reader // reads the text and the tail
	size  int       // of the body, in bytes
}

// newBody returns the body of one request, with now as its sentAt. It adds a reference
// to b, which closing the body releases.
func (b *batch) newBody(now time.Time) *requestBody {
	tail := make([]byte, 0, storedSize+tailSize+gzipEnd)
	tail = append(tail, batchTail1...)
	tail = append(tail, b.id[:]...)
	tail = append(tail, batchTail2...)
	tail = isotime.Append(tail, now)
	tail = append(tail, batchTail3...)
	head, size := b.reader(), b.size
	if b.packed != nil {
		head, size = bytes.NewReader(b.packed.data), len(b.packed.data)
		tail = b.packed.appendTail(nil, tail, b.size)
	}
	b.retain()
	return &requestBody{batch: b, text: io.MultiReader(head, bytes.NewReader(tail)), size: size + len(tail)}
}

// Len returns the size of the body; retryablehttp uses it as the Content-Length.
func (r *requestBody) Len() int { return r.size }

func (r *requestBody) Read(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.batch == nil {
		return 0, io.ErrClosedPipe
	}
	return r.text.Read(p)
}

func (r *requestBody) Close() error {
	r.mu.Lock()
	b := r.batch
	r.batch, r.text = nil, nil
	r.mu.Unlock()
	if b != nil {
		b.release()
	}
	return nil
}
