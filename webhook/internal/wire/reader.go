package wire

import (
	"bufio"
	"bytes"
	"io"
	"net/http"
	"time"
)

// A reader reads the lines and bodies of answers. It must not be copied after its first use.
type reader struct {
	src    io.Reader
	buf    bufio.Reader // reads from src by way of reader.Read
	got    bool         // src has returned a byte of this answer
	budget int          // bytes that the remaining lines of the header, or of the body, may have
	notes  *Notes       // where to record details of the answer; may be nil
}

func (in *reader) begin(src io.Reader) {
	in.src, in.got, in.budget = src, false, maxSkipped
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
// than the buffer takes an allocation. line cuts what is longer than MaxHeader.
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
		long = append(long, part[:min(len(part), MaxHeader-len(long))]...)
		switch err {
		case nil:
			return append(long[:len(long)-1], '\n'), nil
		case bufio.ErrBufferFull:
		case io.EOF:
			return nil, io.ErrUnexpectedEOF
		default:
			return nil, err
		}
	}
}

// field returns the next line of a header, joined with the lines that continue it, and without its end.
func (in *reader) field() ([]byte, error) {
	line, err := in.line()
	if err != nil {
		return nil, err
	}
	line = trimEnd(line)
	for owned := false; len(line) > 0; {
		if !owned && in.buf.Buffered() == 0 {
			line, owned = bytes.Clone(line), true // as Peek reads
		}
		next, err := in.buf.Peek(1)
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		if err != nil || next[0] != ' ' && next[0] != '\t' {
			return line, err
		}
		if !owned {
			line, owned = bytes.Clone(line), true
		}
		more, err := in.line()
		if err != nil {
			return nil, err
		}
		if more = trim(trimEnd(more)); len(line)+len(more) < MaxHeader {
			line = append(append(bytes.TrimRight(line, " \t"), ' '), more...)
		}
	}
	return line, nil
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
	Header    http.Header // of the final answer, up to MaxHeader
}

// began records the time of the first call as FirstByte, unless n is nil.
func (n *Notes) began() {
	if n != nil && n.FirstByte.IsZero() {
		n.FirstByte = time.Now()
	}
}
