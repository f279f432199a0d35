package collector

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"

	"github.com/hookferry/analytics/event"
)

// Buffers for bodies have eight sizes, called classes: 4 KB, 8 KB, and so on to 512 KB. A request
// begins with the smallest buffer, and moves to one of the next class whenever its buffer is full.
// So it holds about as much memory as its client has sent. The largest buffer has room for the
// largest batch, compressed or not, and one byte more, which shows that a body is too large.
const (
	smallestBuffer = 4 << 10
	bufferClasses  = 8
)

// pools holds the free buffers of each class.
var pools [bufferClasses]sync.Pool

// A buffer has the size of its class, in bytes: smallestBuffer << class.
type buffer struct {
	class int
	b     []byte
}

// inflaters is a pool of *gzip.Reader.
var inflaters = sync.Pool{New: func() any { return new(gzip.Reader) }}

// inflaterSize is the approximate memory of a gzip reader, in bytes.
const inflaterSize = 48 << 10

// gzipOverhead is more than gzip adds to a body that does not compress: 5 bytes for each 64 KB, a
// header and a trailer (RFC 1951, section 3.2.4, and RFC 1952, section 2.3).
const gzipOverhead = 1 << 10

// buffer returns an empty buffer of a class, and takes its memory for the request.
func (m *reservation) buffer(class int) (*buffer, error) {
	size := smallestBuffer << class
	if err := m.take(size); err != nil {
		return nil, err
	}
	buf, _ := pools[class].Get().(*buffer)
	if buf == nil {
		buf = &buffer{class: class, b: make([]byte, size)}
	}
	return buf, nil
}

// drop puts a buffer back into its pool, and no longer counts its memory for the request.
func (m *reservation) drop(buf *buffer) {
	m.give(len(buf.b))
	pools[buf.class].Put(buf)
}

// dropBody drops the buffer of the body, if there is one. The body must not be used afterwards.
func (m *reservation) dropBody() {
	if m.body != nil {
		m.drop(m.body)
		m.body = nil
	}
}

// readAll reads src into a new buffer, and then drops the old buffer of the body. The result is
// valid until dropBody. The error is tooLarge(limit) if src has more than limit+slack bytes.
func (m *reservation) readAll(src io.Reader, limit, slack int) ([]byte, error) {
	buf, err := m.buffer(0)
	if err != nil {
		return nil, err
	}
	n := 0
	for {
		if n == len(buf.b) {
			next, err := m.buffer(buf.class + 1)
			if err != nil {
				m.drop(buf)
				return nil, err
			}
			copy(next.b, buf.b)
			m.drop(buf)
			buf = next
		}
		k, err := src.Read(buf.b[n:min(len(buf.b), limit+slack+1)])
		n += k
		if n > limit+slack {
			err = tooLarge(limit)
		}
		switch err {
		case nil:
			continue
		case io.EOF:
			m.dropBody()
			m.body = buf
			return buf.b[:n], nil
		}
		m.drop(buf)
		return nil, err
	}
}

// read reads the body of a request, and sets a.Size. The body may have at most limit bytes or, if it is compressed,
// gzipOverhead bytes more. The method inflate later checks the decompressed size.
func (h *Handler) read(w http.ResponseWriter, r *http.Request, m *reservation, limit int, a *Answered) (b []byte, compressed bool, err error) {
	switch encoding := strings.ToLower(strings.Join(r.Header.Values("Content-Encoding"), ",")); encoding {
	case "", "identity":
	case "gzip", "x-gzip":
		compressed = true
	default:
		w.Header().Set("Accept-Encoding", "gzip")
		return nil, false, refuse(http.StatusUnsupportedMediaType, "unsupported_encoding", "the only Content-Encoding is gzip")
	}
	if r.ContentLength > int64(limit+gzipOverhead) {
		return nil, false, tooLarge(limit)
	}
	src, done := watchPace(w, r)
	b, err = m.readAll(src, limit, gzipOverhead)
	done()
	switch {
	case err == nil:
		a.Size = len(b)
		// A body that begins with these two bytes is gzip, even without a Content-Encoding, because
		// JSON cannot begin with them.
		compressed = compressed || bytes.HasPrefix(b, []byte{0x1f, 0x8b})
		if !compressed && len(b) > limit {
			err = tooLarge(limit)
		}
	case errors.As(err, new(*refusal)):
	case errors.As(err, new(*http.MaxBytesError)):
		err = tooLarge(limit)
	case errors.Is(err, os.ErrDeadlineExceeded) && !errors.Is(r.Context().Err(), context.DeadlineExceeded):
		// The deadline is that of watchPace, or the ReadTimeout of the http.Server.
		err = refuse(http.StatusRequestTimeout, "timeout", "the body came too slowly")
	case r.Context().Err() != nil:
		err = later("the request was given up")
	default:
		err = wrong("unreadable_body", "the body could not be read to its end")
	}
	return b, compressed, err
}

// inflate decompresses the body b into a new buffer, and drops the buffer of b.
func (m *reservation) inflate(b []byte, limit int) ([]byte, error) {
	if err := m.take(inflaterSize); err != nil {
		return nil, err
	}
	defer m.give(inflaterSize)
	z := inflaters.Get().(*gzip.Reader)
	defer inflaters.Put(z)
	err := z.Reset(bytes.NewReader(b))
	if err == nil {
		b, err = m.readAll(z, limit, 0)
	}
	if err != nil && !errors.As(err, new(*refusal)) {
		err = wrong("malformed_gzip", "the body is not gzip")
	}
	return b, err
}

func tooLarge(limit int) error {
	return wrong(event.CodeTooLarge, fmt.Sprintf("the body has more than %d bytes", limit))
}
