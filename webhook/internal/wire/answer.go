package wire

import (
	"bytes"
	"cmp"
	"io"
	"net/http"
	"strconv"
	"strings"
)

// The reasons why an answer is malformed.
const (
	errLong   = ProtocolError("its header is too long")
	errStatus = ProtocolError("no status line")
	errField  = ProtocolError("no header field")
	errLength = ProtocolError("its length is not one number")
	errCoding = ProtocolError("unknown transfer coding")
	errChunk  = ProtocolError("no chunk")
)

// An answerHead holds what this package uses of a status line and a header.
type answerHead struct {
	status     int
	minor      byte  // minor version: n of HTTP/1.n
	length     int64 // Content-Length; -1 if there is none
	chunked    bool
	close      bool // Connection: close
	keepAlive  bool // Connection: keep-alive
	doubtful   bool // the header says in more than one way where the answer ends, so readers may disagree
	retryAfter string
	flaw       ProtocolError // the first one of the header
}

// answer reads the final answer, and appends the beginning of the body to kept. keep reports
// whether the connection can be used again, because nothing follows the answer.
func (in *reader) answer(kept []byte) (a Answer, keep bool, err error) {
	h, err := in.finalHead()
	if err != nil {
		return a, false, err
	}
	closing := h.close || h.minor == 0 && !h.keepAlive
	if h.flaw != "" {
		return Answer{Status: h.status, RetryAfter: h.retryAfter, Flaw: h.flaw, closing: closing}, false, nil
	}
	in.budget = MaxHeader // of lines of the body
	ended := true
	keep = !closing && !h.doubtful
	switch {
	case h.status == http.StatusSwitchingProtocols:
		ended = false
	case h.status == http.StatusNoContent || h.status == http.StatusNotModified:
		// Such answers have no body, whatever their header says (RFC 9112, section 6.3). But if the
		// header announces a body, the receiver may send one, so the connection is not kept.
		keep = keep && !h.chunked && h.length <= 0
	case h.chunked:
		kept, ended, err = in.chunks(kept)
	case h.length >= 0:
		ended = h.length <= MaxBody
		kept, err = in.body(kept, min(h.length, MaxBody))
	default:
		keep, closing = false, true
		if kept, err = in.body(kept, MaxBody); err == io.EOF {
			err = nil
		}
	}
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	flaw, wrong := err.(ProtocolError)
	if err != nil && !wrong {
		return a, false, err
	}
	a = Answer{Status: h.status, RetryAfter: h.retryAfter, Kept: kept, Flaw: flaw, closing: closing}
	return a, keep && ended && !wrong && in.buf.Buffered() == 0, nil
}

// finalHead reads the head of the final answer. It skips interim answers, which come first. in.budget
// bounds their number. A 101 is the final answer: after it the connection no longer speaks HTTP.
func (in *reader) finalHead() (h answerHead, err error) {
	for err == nil && h.status < 200 && h.status != http.StatusSwitchingProtocols {
		h, err = in.head()
	}
	return h, err
}

// head reads a status line and a whole header. A flaw of the header is no error.
func (in *reader) head() (h answerHead, err error) {
	h.length = -1
	if _, err := in.buf.Peek(1); err != nil {
		return h, err // io.EOF: the connection ended before the answer
	}
	line, err := in.line()
	if err != nil {
		return h, err
	}
	if in.notes != nil {
		in.notes.Header = make(http.Header) // replaces the header of an interim answer
	}
	if err := h.statusLine(trimEnd(line)); err != nil {
		return h, err
	}
	for {
		if line, err = in.field(); err != nil {
			return h, err
		}
		if len(line) == 0 {
			return h, nil
		}
		flaw := errLong // of all fields beyond MaxHeader
		if in.budget >= maxSkipped-MaxHeader {
			flaw = in.use(&h, line)
		}
		h.flaw = cmp.Or(h.flaw, flaw)
	}
}

// use takes from a header field what this package uses, and returns the flaw of the field, if any.
func (in *reader) use(h *answerHead, line []byte) ProtocolError {
	used, name, value, flaw := field(line)
	if flaw != "" {
		return flaw
	}
	if in.notes != nil {
		in.notes.Header.Add(string(name), string(value))
	}
	return h.set(used, value)
}

// statusLine parses a status line, such as "HTTP/1.1 200 OK" or "HTTP/1.1 200".
func (h *answerHead) statusLine(line []byte) error {
	const version = "HTTP/1."
	if len(line) < len(version)+5 || string(line[:len(version)]) != version {
		return errStatus
	}
	h.minor = line[len(version)] - '0'
	rest := line[len(version)+1:]
	if h.minor > 9 || rest[0] != ' ' {
		return errStatus
	}
	rest = bytes.TrimLeft(rest, " ")
	if len(rest) < 3 || len(rest) > 3 && rest[3] != ' ' {
		return errStatus
	}
	status, err := strconv.ParseUint(string(rest[:3]), 10, 16)
	if err != nil || status < 100 {
		return errStatus
	}
	h.status = int(status)
	return nil
}

// usedFields are the header fields that this package uses.
var usedFields = [...]string{"connection", "retry-after", "content-length", "transfer-encoding"}

// field splits a header line into its name and value. used is the name in lower case if usedFields
// has that, and otherwise empty. field allows spaces in the name, because some receivers send them
// (go.dev/issue/34540).
func field(line []byte) (used string, name, value []byte, flaw ProtocolError) {
	name, value, ok := bytes.Cut(line, []byte{':'})
	value = trim(value)
	if !ok || len(name) == 0 || line[0] == ' ' || !isValue(value) {
		return "", nil, nil, errField
	}
	for _, c := range name {
		if !tokenBytes[c] && c != ' ' {
			return "", nil, nil, errField
		}
	}
	bare := bytes.Trim(name, " ")
	for _, f := range usedFields {
		if equalFold(bare, f) {
			used = f
		}
	}
	if used != "" && len(bare) < len(name) {
		return "", nil, nil, errField // only some readers take the line for that field
	}
	return used, name, value, ""
}

func (h *answerHead) set(field string, value []byte) ProtocolError {
	switch field {
	case "content-length":
		u, err := strconv.ParseUint(string(value), 10, 63)
		n := int64(u)
		switch {
		case err != nil || h.length >= 0 && h.length != n:
			return errLength
		case h.length >= 0 || h.chunked:
			h.doubtful = true
		}
		h.length = n
	case "transfer-encoding":
		switch {
		case h.minor == 0:
			h.doubtful = true // HTTP/1.0 has no transfer codings (RFC 9112, section 6.1)
			return ""
		case h.chunked || !equalFold(value, "chunked"):
			return errCoding
		}
		h.chunked = true
		h.doubtful = h.doubtful || h.length >= 0
	case "connection":
		for len(value) > 0 {
			var option []byte
			option, value, _ = bytes.Cut(value, []byte{','})
			option = trim(option)
			h.close = h.close || equalFold(option, "close")
			h.keepAlive = h.keepAlive || equalFold(option, "keep-alive")
		}
	case "retry-after":
		if h.retryAfter == "" {
			h.retryAfter = string(value)
		}
	}
	return ""
}

// chunks reads a chunked body and its trailer. ended is false if the body has more than MaxBody
// bytes, because chunks then leaves the rest unread.
func (in *reader) chunks(kept []byte) (_ []byte, ended bool, err error) {
	for left := int64(MaxBody); ; {
		line, err := in.line()
		if err != nil {
			return kept, false, err
		}
		size, err := chunkSize(line)
		if err != nil {
			return kept, false, err
		}
		if size == 0 {
			return kept, true, in.trailer()
		}
		if kept, err = in.body(kept, min(size, left)); err != nil || size > left {
			return kept, false, err
		}
		left -= size
		if line, err = in.line(); err != nil {
			return kept, false, err
		}
		if string(line) != "\r\n" {
			return kept, false, errChunk
		}
	}
}

// chunkSize parses the line before a chunk. It refuses a line that ends in a bare LF, because other
// readers take the LF for a part of the chunk extension.
func chunkSize(line []byte) (n int64, err error) {
	line, ok := bytes.CutSuffix(line, []byte("\r\n"))
	if !ok || bytes.IndexByte(line, '\r') >= 0 {
		return 0, errChunk
	}
	line, _, _ = bytes.Cut(bytes.TrimRight(line, " \t"), []byte{';'})
	size, err := strconv.ParseUint(string(line), 16, 63)
	if err != nil || len(line) > 16 {
		return 0, errChunk
	}
	return int64(size), nil
}

// trailer reads and ignores the fields after the last chunk.
func (in *reader) trailer() error {
	for {
		line, err := in.line()
		if err != nil {
			return err
		}
		line = trimEnd(line)
		if len(line) == 0 {
			return nil
		}
		if _, _, _, flaw := field(line); flaw != "" {
			return flaw
		}
	}
}

// trimEnd returns a line without its LF or CRLF.
func trimEnd(line []byte) []byte { return bytes.TrimSuffix(line[:len(line)-1], []byte{'\r'}) }

func trim(s []byte) []byte { return bytes.Trim(s, " \t") }

// equalFold compares s with an ASCII text without regard to case. Some other letters fold to ASCII
// ones, such as the Kelvin sign. They have more bytes, so the comparison of lengths keeps them out.
func equalFold(s []byte, ascii string) bool {
	return len(s) == len(ascii) && strings.EqualFold(string(s), ascii)
}

// isValue reports whether s has no control characters except tabs (RFC 9110, section 5.5).
func isValue(s []byte) bool {
	for _, c := range s {
		if c < ' ' && c != '\t' || c == 0x7f {
			return false
		}
	}
	return true
}

// tokenBytes says which bytes a token may have (RFC 9110, section 5.6.2).
var tokenBytes = func() (is [256]bool) {
	for _, c := range []byte("!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ") {
		is[c] = true
	}
	return is
}()
