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
	// uploadTimeout bounds how long an upload may pause between two bytes.
	uploadTimeout = 30 * time.Second
	// maxLine bounds a line, in bytes. An error says the length of an id that is too long but fits.
	maxLine = 64 << 10
	// maxRefused and refusedTimeout bound what drain reads, in bytes and time.
	maxRefused     = 256 << 20
	refusedTimeout = 30 * time.Second
)

type lineReader struct {
	body    io.Reader
	control *http.ResponseController
	line    int // the number of the latest line, from 1
}

// linesOf returns a lineReader of the body. The handler may write the answer while it reads.
func linesOf(w http.ResponseWriter, r *http.Request) *lineReader {
	l := &lineReader{body: r.Body, control: http.NewResponseController(w)}
	_ = l.control.EnableFullDuplex() // HTTP/2 needs no such call
	return l
}

// Read reads from the body. Each call takes at most uploadTimeout.
func (l *lineReader) Read(p []byte) (int, error) {
	_ = l.control.SetReadDeadline(time.Now().Add(uploadTimeout))
	n, err := l.body.Read(p)
	if err != nil {
		// From now on, net/http reads in the background to notice when the client closes the
		// connection. It would mistake a deadline that passes for that.
		_ = l.control.SetReadDeadline(time.Time{})
	}
	return n, err
}

// lines yields the lines of the body that are not empty, without line breaks, up to the first error.
// If the upload was cut off, that comes instead of the incomplete line.
func (l *lineReader) lines() iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		in := bufio.NewScanner(l)
		in.Buffer(nil, maxLine)
		// After an error, the scanner returns the incomplete line, too.
		for l.line = 1; in.Scan() && in.Err() == nil; l.line++ {
			line := in.Bytes()
			if l.line == 1 {
				line = bytes.TrimPrefix(line, byteOrderMark)
			}
			if !utf8.Valid(line) {
				yield("", badRequest("", "line %d is not UTF-8", l.line))
				return
			}
			if len(line) > 0 && !yield(string(line), nil) {
				return
			}
		}
		switch err := in.Err(); {
		case errors.Is(err, bufio.ErrTooLong):
			yield("", refuse(api.CodeTooLarge, http.StatusRequestEntityTooLarge, "", "line %d has %d bytes or more", l.line, maxLine))
		case err != nil:
			yield("", badRequest("", "the upload was cut off in line %d: %v", l.line, err))
		}
	}
}

// byteOrderMark is the UTF-8 byte order mark, which some editors write at the beginning of a file.
var byteOrderMark = []byte("\xef\xbb\xbf")

// drain reads the rest of a refused upload: some clients read no answer before they have sent it all.
func (l *lineReader) drain(ctx context.Context) {
	if ctx.Err() != nil {
		return
	}
	_ = l.control.SetReadDeadline(time.Now().Add(refusedTimeout))
	_, _ = io.CopyN(io.Discard, l.body, maxRefused)
}
