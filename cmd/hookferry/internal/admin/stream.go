package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"sync"
	"time"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
)

// streamTimeout bounds the time of each write to a client.
const streamTimeout = 30 * time.Second

// A stream is an answer with one JSON value a line. Each send is flushed at once. The methods may
// be called concurrently. An error means that the client is gone.
type stream struct {
	mu      sync.Mutex
	w       http.ResponseWriter
	control *http.ResponseController
	buf     bytes.Buffer
}

// newStream begins the answer of a request that may take long. It removes the read deadline that
// the server has set.
func newStream(w http.ResponseWriter) *stream {
	s := &stream{w: w, control: http.NewResponseController(w)}
	_ = s.control.SetReadDeadline(time.Time{})
	w.Header().Set("Content-Type", api.StreamType)
	return s
}

func (s *stream) send(values ...any) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.buf.Reset()
	encoder := json.NewEncoder(&s.buf)
	encoder.SetEscapeHTML(false)
	for _, v := range values {
		if err := encoder.Encode(v); err != nil {
			return err
		}
	}
	return s.flush()
}

// alive sends an empty line, which keeps the connection open.
func (s *stream) alive() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.buf.Reset()
	s.buf.WriteByte('\n')
	return s.flush()
}

// flush sends the buffer. The caller holds s.mu.
func (s *stream) flush() error {
	_ = s.control.SetWriteDeadline(time.Now().Add(streamTimeout))
	if _, err := s.w.Write(s.buf.Bytes()); err != nil {
		return err
	}
	return s.control.Flush()
}

// untilClosed returns a context that ends with the request, or when Close is called.
func (q *request) untilClosed() (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(q.Context())
	stop := context.AfterFunc(q.open, cancel)
	return ctx, func() { stop(); cancel() }
}
