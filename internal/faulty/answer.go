package faulty

import (
	"context"
	"fmt"
	"io"
	"iter"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Abort ends a handler by a panic, so that the http.Server closes the connection without an answer.
func Abort() { panic(http.ErrAbortHandler) }

// Pause first waits for the close of a channel, the argument until, unless that is nil. It then
// waits for the time delay. If ctx ends before, it returns the error of ctx.
func Pause(ctx context.Context, until <-chan struct{}, delay time.Duration) error {
	if until != nil {
		select {
		case <-until:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if delay <= 0 {
		return nil
	}
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Flush sends what was written so far.
func Flush(w http.ResponseWriter) {
	if http.NewResponseController(w).Flush() != nil {
		Abort()
	}
}

// Drip sends a body one byte at a time, with an interval before each byte. The caller has written
// the header.
func Drip(ctx context.Context, w http.ResponseWriter, interval time.Duration, body iter.Seq[byte]) {
	Flush(w)
	for b := range body {
		if Pause(ctx, nil, interval) != nil {
			Abort()
		}
		if _, err := w.Write([]byte{b}); err != nil {
			Abort()
		}
		Flush(w)
	}
}

// Stream sends a body of size bytes as fast as the client reads. The caller has written the header.
func Stream(w http.ResponseWriter, size int64) {
	chunk := []byte(strings.Repeat("x", 32<<10))
	for size > 0 {
		n, err := w.Write(chunk[:min(size, int64(len(chunk)))])
		if err != nil {
			Abort()
		}
		size -= int64(n)
	}
}

// PrepareHangUp adds headers to an answer after which the server closes the connection. The body of
// the answer has length bytes. On HTTP/1.1 the headers do not announce the close. On HTTP/2 the
// server sends GOAWAY.
func PrepareHangUp(header http.Header, r *http.Request, status, length int) {
	if r.ProtoMajor > 1 {
		header.Set("Connection", "close") // becomes GOAWAY
	} else if status != http.StatusNoContent && status != http.StatusNotModified {
		// Without a Content-Length, the end of the chunked body would come after the connection has
		// closed.
		header.Set("Content-Length", strconv.Itoa(length))
	}
}

// CloneHeader returns a copy of h that is never nil.
func CloneHeader(h http.Header) http.Header {
	if h == nil {
		return make(http.Header)
	}
	return h.Clone()
}

// WriteAnswer writes an answer directly to a connection, because http.Server would correct a
// Content-Length that differs from the length of the body.
func WriteAnswer(c io.Writer, status int, header http.Header, contentLength int, body string) {
	header = CloneHeader(header)
	header.Set("Content-Length", strconv.Itoa(contentLength))
	_, _ = fmt.Fprintf(c, "HTTP/1.1 %03d %s\r\n", status, http.StatusText(status))
	_ = header.Write(c)
	_, _ = io.WriteString(c, "\r\n"+body)
}

// EndlessHeader writes an answer whose header never ends, until c fails.
func EndlessHeader(c io.Writer) {
	_, err := io.WriteString(c, "HTTP/1.1 200 OK\r\n")
	lines := strings.Repeat("X-Padding: "+strings.Repeat("x", 1011)+"\r\n", 16)
	for err == nil {
		_, err = io.WriteString(c, lines)
	}
}

// EndlessInformational answers with 103 Early Hints until ctx ends, and then aborts.
func EndlessInformational(ctx context.Context, w http.ResponseWriter) {
	w.Header().Set("Link", "</"+strings.Repeat("x", 2000)+">; rel=preload")
	for ctx.Err() == nil {
		w.WriteHeader(http.StatusEarlyHints)
	}
	Abort()
}
