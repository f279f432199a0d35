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

// maxLine bounds a line, in bytes. It is far above the longest id, so that the check of the ids
// refuses most ids that are too long, and its error has their length.
const maxLine = 64 << 10

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

// Read reads from the body, for at most 30 s.
func (l *lineReader) Read(p []byte) (int, error) {
	_ = l.control.SetReadDeadline(time.Now().Add(30 * time.Second))
	n, err := l.body.Read(p)
	if err != nil {
		// From now on, net/http reads in the background to notice when the client closes the
		// connection. It would mistake a deadline that passes for a closed connection.
		_ = l.control.SetReadDeadline(time.Time{})
	}
	return n, err
}

// lines yields the lines of the body that are not empty, without line breaks, up to the first
// error. If the upload was cut off, lines yields that error instead of the incomplete line.
func (l *lineReader) lines() iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		in := bufio.NewScanner(l)
		in.Buffer(nil, maxLine)
		// After an error, the scanner returns the incomplete line, too.
		for l.line = 1; in.Scan() && in.Err() == nil; l.line++ {
			line := in.Bytes()
			if l.line == 1 {
				line = bytes.TrimPrefix(line, []byte("\xef\xbb\xbf")) // the byte order mark of some editors
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

// drain reads the rest of a refused upload, up to 256 MB and for up to 30 s: some clients read no
// answer before they have sent everything.
func (l *lineReader) drain(ctx context.Context) {
	if ctx.Err() != nil {
		return
	}
	_ = l.control.SetReadDeadline(time.Now().Add(30 * time.Second))
	_, _ = io.CopyN(io.Discard, l.body, 256<<20)
}
