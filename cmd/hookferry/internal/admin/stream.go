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

// newStream begins an answer that may take long. It removes the read deadline of the server.
func newStream(w http.ResponseWriter) *stream {
	s := &stream{w: w, control: http.NewResponseController(w)}
	_ = s.control.SetReadDeadline(time.Time{})
	w.Header().Set("Content-Type", api.StreamType)
	return s
}

// send sends values, one a line. Without values it sends an empty line, which keeps the connection
// open.
func (s *stream) send(values ...any) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.buf.Reset()
	if len(values) == 0 {
		s.buf.WriteByte('\n')
	}
	encoder := json.NewEncoder(&s.buf)
	encoder.SetEscapeHTML(false)
	for _, v := range values {
		if err := encoder.Encode(v); err != nil {
			return err
		}
	}
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
