package wire

import (
	"bytes"
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
}

// answer reads the final answer, and appends the beginning of the body to kept. keep reports
// whether the connection can be used again, because nothing follows the answer. answer accepts the
// same answers as net/http, with one exception: it refuses some answers that two HTTP readers could
// see as ending at different places; see Target.NetHTTP.
func (in *reader) answer(kept []byte) (a Answer, keep bool, err error) {
	var h answerHead
	// Skip interim answers, which come first. in.budget bounds their number. A 101 is the final
	// answer: after it the connection no longer speaks HTTP.
	for h.status < 200 && h.status != http.StatusSwitchingProtocols {
		if h, err = in.head(); err != nil {
			return a, false, err
		}
	}
	ended := true
	closing := h.close || h.minor == 0 && !h.keepAlive
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
	if err != nil {
		return a, false, err
	}
	a = Answer{Status: h.status, RetryAfter: h.retryAfter, Kept: kept, closing: closing}
	return a, keep && ended && in.buf.Buffered() == 0, nil
}

// head reads a status line and a header.
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
	used := ""
	for n := 0; ; n++ {
		if line, err = in.line(); err != nil {
			return h, err
		}
		if line = trimEnd(line); len(line) == 0 {
			return h, nil
		}
		if line[0] == ' ' || line[0] == '\t' {
			// A folded line continues a field, which must be one that this package does not use.
			if n == 0 || used != "" || !isValue(line) {
				return h, errField
			}
			continue
		}
		var name, value []byte
		if used, name, value, err = field(line); err != nil {
			return h, err
		}
		if err := h.set(used, value); err != nil {
			return h, err
		}
		if in.notes != nil {
			in.notes.Header.Add(string(name), string(value))
		}
	}
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
func field(line []byte) (used string, name, value []byte, err error) {
	name, value, ok := bytes.Cut(line, []byte{':'})
	value = trim(value)
	if !ok || len(name) == 0 || !isValue(value) {
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
	return used, name, value, nil
}

func (h *answerHead) set(field string, value []byte) error {
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
			return nil
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
	return nil
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
		if _, _, _, err := field(line); err != nil {
			return err
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
