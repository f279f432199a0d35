package admin

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"iter"
	"net/http"
	"time"
	"unicode/utf8"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
)

const (
	// uploadTimeout is how long an upload may go without a byte.
	uploadTimeout = 30 * time.Second
	// maxLine bounds a line, in bytes. It is longer than any user id, so that the error of a
	// slightly too long id can say its length.
	maxLine = 64 << 10
	// maxRefused bounds how much of a refused upload is read and thrown away, in bytes, because a
	// client that is still sending does not see the answer. refusedTimeout bounds the time.
	maxRefused     = 256 << 20
	refusedTimeout = 30 * time.Second
)

// A lineReader yields the lines of an upload.
type lineReader struct {
	body    io.Reader
	control *http.ResponseController
}

// linesOf returns a reader of the body of a request. An answer may be written
// while it is read.
func linesOf(w http.ResponseWriter, r *http.Request) *lineReader {
	l := &lineReader{body: r.Body, control: http.NewResponseController(w)}
	_ = l.control.EnableFullDuplex() // as HTTP/2 always is
	return l
}

// Read reads from the body, for uploadTimeout at most.
func (l *lineReader) Read(p []byte) (int, error) {
	_ = l.control.SetReadDeadline(time.Now().Add(uploadTimeout))
	n, err := l.body.Read(p)
	if err != nil {
		// net/http now reads on to notice when the client closes the connection, for which it
		// would take the deadline.
		_ = l.control.SetReadDeadline(time.Time{})
	}
	return n, err
}

// lines yields the lines that are not empty, without their line breaks. Before each line it calls
// each with the line's number, from 1. An error ends it. If the upload was cut off, it yields the
// error in place of the incomplete line.
func (l *lineReader) lines(each func(n int)) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		in := bufio.NewReaderSize(l, maxLine)
		for n := 1; ; n++ {
			line, err := in.ReadSlice('\n')
			switch {
			case errors.Is(err, bufio.ErrBufferFull):
				yield("", refuse(api.CodeTooLarge, http.StatusRequestEntityTooLarge, "", "line %d has %d bytes or more", n, maxLine))
				return
			case err != nil && err != io.EOF:
				yield("", badRequest("", "the upload was cut off in line %d: %v", n, err))
				return
			}
			line = bytes.TrimSuffix(bytes.TrimSuffix(line, []byte("\n")), []byte("\r"))
			if n == 1 {
				line = bytes.TrimPrefix(line, byteOrderMark)
			}
			if !utf8.Valid(line) {
				yield("", badRequest("", "line %d is not UTF-8", n))
				return
			}
			if len(line) > 0 {
				each(n)
				if !yield(string(line), nil) {
					return
				}
			}
			if err == io.EOF {
				return
			}
		}
	}
}

// byteOrderMark is what some editors begin a file with.
var byteOrderMark = []byte("\xef\xbb\xbf")

// drain throws the rest of a refused upload away.
func (l *lineReader) drain(ctx context.Context) {
	if ctx.Err() != nil {
		return
	}
	_ = l.control.SetReadDeadline(time.Now().Add(refusedTimeout))
	_, _ = io.CopyN(io.Discard, l.body, maxRefused)
}
