package wire

import (
	"bytes"
	"io"
	"net/http"
)

// What answers are malformed for.
const (
	errLong      = ProtocolError("its header is too long")
	errStatus    = ProtocolError("no status line")
	errField     = ProtocolError("no header field")
	errLength    = ProtocolError("its length is not one number")
	errCoding    = ProtocolError("unknown transfer coding")
	errChunk     = ProtocolError("no chunk")
	errChunkLong = ProtocolError("a chunk is too long")
)

// An answerHead is what matters of a status line and a header.
type answerHead struct {
	status     int
	minor      byte  // of HTTP/1
	length     int64 // Content-Length; -1 without
	chunked    bool
	close      bool // Connection: close
	keepAlive  bool // Connection: keep-alive
	doubtful   bool // where it ends is said in more than one way
	retryAfter string
}

// answer reads the final answer, and the beginning of its body into kept. keep
// reports whether its end was seen, with nothing after it, and the connection
// may be used again. It is as lenient as net/http, but for what could be read
// as the end of an answer by one and not by another.
func (in *reader) answer(kept []byte) (a Answer, keep bool, err error) {
	var h answerHead
	for {
		h, err = in.head()
		if err != nil {
			return a, false, err
		}
		// Interim answers, of which in.budget bounds the number. After 101 the
		// connection is not HTTP any more.
		if h.status >= 200 || h.status == 101 {
			break
		}
	}
	ended, err := true, error(nil)
	closing := h.close || h.minor == 0 && !h.keepAlive
	keep = !closing && !h.doubtful
	switch {
	case h.status == 101:
		ended = false
	case h.status == 204 || h.status == 304:
		// No body, whatever the header says (RFC 9112, section 6.3). A sender
		// that says otherwise may send one.
		keep = keep && !h.chunked && h.length <= 0
	case h.chunked:
		kept, ended, err = in.chunks(kept)
	case h.length >= 0:
		ended = h.length <= MaxBody
		kept, err = in.data(kept, min(h.length, MaxBody))
	default:
		keep, closing = false, true
		kept, err = in.rest(kept)
	}
	if err != nil {
		return a, false, err
	}
	a = Answer{Status: h.status, RetryAfter: h.retryAfter, Kept: kept, closing: closing}
	return a, keep && ended && in.r == in.w && in.err == nil, nil
}

// head reads a status line and a header.
func (in *reader) head() (h answerHead, err error) {
	h.length = -1
	line, err := in.first()
	if err != nil {
		return h, err
	}
	if in.notes != nil {
		in.notes.Header = make(http.Header) // those of an interim answer do not count
	}
	if err := h.statusLine(trimEnd(line)); err != nil {
		return h, err
	}
	f := fieldNone
	for n := 0; ; n++ {
		if line, err = in.line(); err != nil {
			return h, err
		}
		line = trimEnd(line)
		folded := len(line) > 0 && (line[0] == ' ' || line[0] == '\t')
		switch {
		case !folded:
			// What is folded onto nothing begins with the space that joins them.
			if err := h.set(f, bytes.TrimLeft(in.value, " ")); err != nil {
				return h, err
			}
			if len(line) == 0 {
				return h, nil
			}
			var value []byte
			if f, value, err = field(line); err != nil {
				return h, err
			}
			if f != fieldNone {
				in.value = append(in.value[:0], value...)
			}
			if in.notes != nil {
				name, _, _ := bytes.Cut(line, []byte(":"))
				in.notes.Header.Add(string(name), string(value))
			}
		case n == 0 || f == fieldLength || f == fieldCoding || !isValue(line):
			return h, errField
		case f != fieldNone:
			in.value = append(append(in.value, ' '), trim(line)...)
		}
	}
}

// first reads a status line. The end of the connection before it is io.EOF.
func (in *reader) first() ([]byte, error) {
	if in.r == in.w {
		if err := in.fill(); err != nil {
			return nil, err
		}
	}
	return in.line()
}

// statusLine reads "HTTP/1.1 200 OK", of which the text, and the space before
// it, may be missing.
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
	for _, c := range rest[:3] {
		if c < '0' || c > '9' {
			return errStatus
		}
		h.status = 10*h.status + int(c-'0')
	}
	if h.status < 100 {
		return errStatus
	}
	return nil
}

// A fieldName is one of the header fields that matter.
type fieldName byte

const (
	fieldNone fieldName = iota
	fieldLength
	fieldCoding
	fieldConnection
	fieldRetryAfter
)

// field takes a header line apart. Names with spaces are in use (go.dev/issue/34540).
func field(line []byte) (f fieldName, value []byte, err error) {
	i := bytes.IndexByte(line, ':')
	if i <= 0 {
		return f, nil, errField
	}
	name, value := line[:i], trim(line[i+1:])
	spaced := false
	for _, c := range name {
		if !isTokenByte(c) && c != ' ' {
			return f, nil, errField
		}
		spaced = spaced || c == ' '
	}
	if !isValue(value) {
		return f, nil, errField
	}
	if f = fieldOf(bytes.Trim(name, " ")); spaced && f != fieldNone {
		return fieldNone, nil, errField // for some it is that field
	}
	return f, value, nil
}

// fieldOf returns the field of a name.
func fieldOf(name []byte) (f fieldName) {
	switch len(name) {
	case len("Connection"):
		if equalFold(name, "connection") {
			f = fieldConnection
		}
	case len("Retry-After"):
		if equalFold(name, "retry-after") {
			f = fieldRetryAfter
		}
	case len("Content-Length"):
		if equalFold(name, "content-length") {
			f = fieldLength
		}
	case len("Transfer-Encoding"):
		if equalFold(name, "transfer-encoding") {
			f = fieldCoding
		}
	}
	return f
}

// set notes the value of a field.
func (h *answerHead) set(f fieldName, value []byte) error {
	switch f {
	case fieldLength:
		n, err := parseLength(value)
		switch {
		case err != nil:
			return err
		case h.length >= 0 && h.length != n:
			return errLength
		case h.length >= 0 || h.chunked:
			h.doubtful = true
		}
		h.length = n
	case fieldCoding:
		switch {
		case h.minor == 0:
			// HTTP/1.0 has no such thing (RFC 9112, section 6.1).
			h.doubtful = true
			return nil
		case h.chunked || !equalFold(value, "chunked"):
			return errCoding
		}
		h.chunked = true
		h.doubtful = h.doubtful || h.length >= 0
	case fieldConnection:
		for len(value) > 0 {
			var option []byte
			option, value, _ = bytes.Cut(value, []byte{','})
			option = trim(option)
			h.close = h.close || equalFold(option, "close")
			h.keepAlive = h.keepAlive || equalFold(option, "keep-alive")
		}
	case fieldRetryAfter:
		if h.retryAfter == "" {
			h.retryAfter = string(value)
		}
	}
	return nil
}

func parseLength(s []byte) (n int64, err error) {
	if len(s) == 0 || len(s) > 18 {
		return 0, errLength
	}
	for _, c := range s {
		if c < '0' || c > '9' {
			return 0, errLength
		}
		n = 10*n + int64(c-'0')
	}
	return n, nil
}

// chunks reads a chunked body and its trailer. ended is false if there was more
// than MaxBody of it.
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
		if kept, err = in.data(kept, min(size, left)); err != nil || size > left {
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

// chunkSize reads the line before a chunk. A line that ends in a bare LF is
// refused: others take that for a part of the extension.
func chunkSize(line []byte) (n int64, err error) {
	line, ok := bytes.CutSuffix(line, []byte("\r\n"))
	if !ok || bytes.IndexByte(line, '\r') >= 0 {
		return 0, errChunk
	}
	line = bytes.TrimRight(line, " \t")
	if i := bytes.IndexByte(line, ';'); i >= 0 {
		line = line[:i]
	}
	if len(line) == 0 || len(line) > 16 {
		return 0, errChunk
	}
	for _, c := range line {
		var d byte
		switch {
		case '0' <= c && c <= '9':
			d = c - '0'
		case 'a' <= c && c <= 'f':
			d = c - 'a' + 10
		case 'A' <= c && c <= 'F':
			d = c - 'A' + 10
		default:
			return 0, errChunk
		}
		if n >= 1<<59 {
			return 0, errChunkLong
		}
		n = n<<4 | int64(d)
	}
	return n, nil
}

// trailer reads the fields after the last chunk, of which none matters.
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
		if _, _, err := field(line); err != nil {
			return err
		}
	}
}

// rest reads a body that ends with the connection.
func (in *reader) rest(kept []byte) ([]byte, error) {
	for left := MaxBody; left > 0; {
		if in.r == in.w {
			switch err := in.fill(); err {
			case nil:
			case io.EOF:
				return kept, nil
			default:
				return kept, err
			}
		}
		n := min(in.w-in.r, left)
		kept = keepSome(kept, in.buf[in.r:in.r+n])
		in.r += n
		left -= n
	}
	return kept, nil
}

// trimEnd returns a line without its LF or CRLF.
func trimEnd(line []byte) []byte {
	line = line[:len(line)-1]
	if n := len(line); n > 0 && line[n-1] == '\r' {
		line = line[:n-1]
	}
	return line
}

func trim(s []byte) []byte { return bytes.Trim(s, " \t") }

// equalFold compares ASCII; lower is in lower case.
func equalFold(s []byte, lower string) bool {
	if len(s) != len(lower) {
		return false
	}
	for i, c := range s {
		if 'A' <= c && c <= 'Z' {
			c += 'a' - 'A'
		}
		if c != lower[i] {
			return false
		}
	}
	return true
}

// isValue reports whether s has no control character but the tab (RFC 9110,
// section 5.5).
func isValue(s []byte) bool {
	for _, c := range s {
		if c < ' ' && c != '\t' || c == 0x7f {
			return false
		}
	}
	return true
}

// tokenBytes are those of RFC 9110, section 5.6.2.
var tokenBytes = func() (is [256]bool) {
	for _, c := range []byte("!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ") {
		is[c] = true
	}
	return is
}()

func isTokenByte(c byte) bool { return tokenBytes[c] }
