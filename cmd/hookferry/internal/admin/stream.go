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

// streamTimeout bounds each write to a client.
const streamTimeout = 30 * time.Second

// A stream is an answer of one JSON value a line, each sent at once. Its methods may be called
// concurrently. An error means that the client is gone.
type stream struct {
	mu      sync.Mutex
	w       http.ResponseWriter
	control *http.ResponseController
	buf     bytes.Buffer
}

// newStream begins the answer of a request that may take long. It lifts the server's deadlines;
// in tests without deadlines there is nothing to lift.
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

// alive sends an empty line.
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

// untilClosed returns the context of the request, which Close ends too.
func (q *request) untilClosed() (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(q.Context())
	stop := context.AfterFunc(q.open, cancel)
	return ctx, func() { stop(); cancel() }
}
