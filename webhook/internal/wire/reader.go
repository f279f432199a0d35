package wire

import (
	"bufio"
	"io"
	"net/http"
	"time"
)

// A reader reads the lines and bodies of answers. It must not be copied after its first use.
type reader struct {
	src    io.Reader
	buf    bufio.Reader // reads from src by way of reader.Read
	got    bool         // src has returned a byte of this answer
	budget int          // bytes that the remaining lines of the answer may have
	notes  *Notes       // where to record details of the answer; may be nil
}

func (in *reader) begin(src io.Reader) {
	in.src, in.got, in.budget = src, false, MaxHeader
	in.buf.Reset(in)
}

// Read reads from src on behalf of buf.
func (in *reader) Read(p []byte) (int, error) {
	n, err := in.src.Read(p)
	if n > 0 {
		in.got = true
		in.notes.began()
	}
	return n, err
}

// line returns the next line with its LF, valid until the next read. Only a line that is longer
// than the buffer takes an allocation.
func (in *reader) line() ([]byte, error) {
	var long []byte
	for {
		part, err := in.buf.ReadSlice('\n')
		if in.budget -= len(part); in.budget < 0 {
			return nil, errLong
		}
		if err == nil && long == nil {
			return part, nil
		}
		long = append(long, part...)
		switch err {
		case nil:
			return long, nil
		case bufio.ErrBufferFull:
		case io.EOF:
			return nil, io.ErrUnexpectedEOF
		default:
			return nil, err
		}
	}
}

// body reads n bytes of a body. It appends them to kept up to its capacity, and discards the rest.
// If src ends too early, it returns the error of src, such as io.EOF.
func (in *reader) body(kept []byte, n int64) ([]byte, error) {
	size := int(min(n, int64(cap(kept)-len(kept))))
	for end := len(kept) + size; len(kept) < end; {
		got, err := in.buf.Read(kept[len(kept):end])
		kept = kept[:len(kept)+got]
		if err != nil {
			return kept, err
		}
	}
	_, err := in.buf.Discard(int(n) - size)
	return kept, err
}

// Notes are details of an answer, for people to look at.
type Notes struct {
	FirstByte time.Time   // when the first byte was read
	Header    http.Header // of the final answer; of a folded field only the first line
}

// began records the time of the first call as FirstByte, unless n is nil.
func (n *Notes) began() {
	if n != nil && n.FirstByte.IsZero() {
		n.FirstByte = time.Now()
	}
}
