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
	"time"
)

// classes are the sizes of the buffers that bodies are read into. A request
// begins with the smallest and moves on as bytes arrive, so that a client which
// sends little, or announces much and sends nothing, holds little. The largest
// takes the largest batch, compressed or not, and a byte more.
var classes = [...]int{4 << 10, 64 << 10, 512 << 10}

// pools holds buffers of each class that are not in use.
var pools [len(classes)]sync.Pool

// A buffer has the size of its class.
type buffer struct {
	class int
	b     []byte
}

// inflaters holds gzip readers that are not in use, of type *gzip.Reader.
var inflaters = sync.Pool{New: func() any { return new(gzip.Reader) }}

// inflaterSize is about what a gzip reader takes, in bytes.
const inflaterSize = 48 << 10

// gzipOverhead is by how much gzip may make a body larger that does not
// compress: 5 bytes for each 64 KB, a header and a trailer (RFC 1951, section
// 3.2.4, and RFC 1952, section 2.3).
const gzipOverhead = 1 << 10

var (
	errLarge  = errors.New("more bytes than allowed")
	errMemory = errors.New("no memory left to requests")
	errNever  = errors.New("more memory than there is for all requests")
)

// A reservation is what a request holds of Config.MaxMemory.
type reservation struct {
	h       *Handler
	held    int64
	buffers []*buffer
	lists   *list // nil: not a batch
	size    int   // of the body as it came
}

// take adds n bytes. The error is errMemory while other requests hold them, and
// errNever if this one would not get them alone either.
func (m *reservation) take(n int) error {
	if m.held+int64(n) > m.h.config.MaxMemory {
		return errNever
	}
	if m.h.memory.Add(int64(n)) > m.h.config.MaxMemory {
		m.h.memory.Add(-int64(n))
		return errMemory
	}
	m.held += int64(n)
	return nil
}

// noMemory refuses a request for an error of take.
func noMemory(err error) *refusal {
	if errors.Is(err, errNever) {
		return refuse(http.StatusBadRequest, "too_large", "the request takes more memory than there is for all requests")
	}
	return later("too many requests at once")
}

// give gives n bytes back.
func (m *reservation) give(n int) {
	m.held -= int64(n)
	m.h.memory.Add(-int64(n))
}

// release gives everything back. The bodies that were read are not used any
// more.
func (m *reservation) release() {
	for _, buf := range m.buffers {
		pools[buf.class].Put(buf)
	}
	m.buffers = nil
	if m.lists != nil {
		m.lists.release()
		m.lists = nil
	}
	m.h.memory.Add(-m.held)
	m.held = 0
}

// buffer returns an empty buffer of a class, or an error of take.
func (m *reservation) buffer(class int) (*buffer, error) {
	if err := m.take(classes[class]); err != nil {
		return nil, err
	}
	buf, _ := pools[class].Get().(*buffer)
	if buf == nil {
		buf = &buffer{class: class, b: make([]byte, classes[class])}
	}
	return buf, nil
}

// readAll reads src to its end, which may be at most limit bytes away. What it
// returns is valid until m is released.
func (m *reservation) readAll(src io.Reader, limit int) ([]byte, error) {
	buf, err := m.buffer(0)
	if err != nil {
		return nil, err
	}
	n := 0
	for {
		if n == len(buf.b) {
			next, err := m.buffer(buf.class + 1)
			if err != nil {
				m.buffers = append(m.buffers, buf)
				return nil, err
			}
			copy(next.b, buf.b)
			m.give(len(buf.b))
			pools[buf.class].Put(buf)
			buf = next
		}
		k, err := src.Read(buf.b[n:min(len(buf.b), limit+1)])
		n += k
		if n > limit {
			err = errLarge
		}
		switch {
		case err == nil:
			continue
		case err == io.EOF:
			err = nil
		}
		m.buffers = append(m.buffers, buf)
		return buf.b[:n], err
	}
}

// inflate returns what the gzip members of b hold.
func (m *reservation) inflate(b []byte, limit int) ([]byte, error) {
	if err := m.take(inflaterSize); err != nil {
		return nil, err
	}
	defer m.give(inflaterSize)
	z := inflaters.Get().(*gzip.Reader)
	defer inflaters.Put(z)
	if err := z.Reset(bytes.NewReader(b)); err != nil {
		return nil, err
	}
	return m.readAll(z, limit)
}

// read returns the body of a request without its compression. It has at most
// limit bytes.
func (m *reservation) read(w http.ResponseWriter, r *http.Request, limit int) ([]byte, *refusal) {
	tooLarge := refuse(http.StatusBadRequest, "too_large", fmt.Sprintf("the body has more than %d bytes", limit))
	compressed := false
	switch encoding := strings.ToLower(strings.Join(r.Header.Values("Content-Encoding"), ",")); encoding {
	case "", "identity":
	case "gzip", "x-gzip":
		compressed = true
	default:
		w.Header().Set("Accept-Encoding", "gzip")
		return nil, refuse(http.StatusUnsupportedMediaType, "unsupported_encoding", "the only Content-Encoding is gzip")
	}
	wire := limit + gzipOverhead
	if r.ContentLength > int64(wire) {
		return nil, tooLarge
	}

	defer interruptible(w, r)()
	b, err := m.readAll(r.Body, wire)
	switch {
	case err == nil:
		m.size = len(b)
	case errors.Is(err, errLarge) || errors.As(err, new(*http.MaxBytesError)):
		return nil, tooLarge
	case errors.Is(err, errMemory) || errors.Is(err, errNever):
		return nil, noMemory(err)
	case r.Context().Err() != nil:
		return nil, later("the request was given up")
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, refuse(http.StatusRequestTimeout, "timeout", "the body came too slowly")
	default:
		return nil, refuse(http.StatusBadRequest, "unreadable_body", "the body could not be read to its end")
	}

	// JSON does not begin as gzip does, so a body that is compressed without
	// saying so is known as well.
	if compressed || bytes.HasPrefix(b, []byte{0x1f, 0x8b}) {
		b, err = m.inflate(b, limit)
		switch {
		case err == nil:
		case errors.Is(err, errLarge):
			return nil, tooLarge
		case errors.Is(err, errMemory) || errors.Is(err, errNever):
			return nil, noMemory(err)
		default:
			return nil, refuse(http.StatusBadRequest, "malformed_gzip", "the body is not what gzip makes")
		}
	}
	if len(b) > limit {
		return nil, tooLarge
	}
	return b, nil
}

// interruptible makes reads of the body return when the context of the request
// ends, until the function it returns is called: net/http itself ends them
// only when the connection does.
func interruptible(w http.ResponseWriter, r *http.Request) (stop func() bool) {
	return context.AfterFunc(r.Context(), func() {
		// Where there is no connection there is nothing to wait for.
		_ = http.NewResponseController(w).SetReadDeadline(time.Unix(1, 0))
	})
}
