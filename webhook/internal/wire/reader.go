package wire

import (
	"bytes"
	"io"
)

const (
	smallBuffer = 4 << 10 // bytes kept from one answer to the next
	// maxReads bounds the reads in a row that bring nothing.
	maxReads = 100
)

// A reader reads an answer: lines, and the bytes of a body.
type reader struct {
	src  io.Reader
	buf  []byte // grows while a line is longer
	r, w int    // buf[r:w] is to be read
	err  error  // of src, to be returned once that is read
	got  bool   // anything has been read

	budget int    // bytes that lines may still have
	value  []byte // of the header field being read
	notes  *Notes // nil: nobody wants them
}

// begin makes in ready for an answer from src.
func (in *reader) begin(src io.Reader) {
	in.src, in.err = src, nil
	in.r, in.w = 0, 0
	in.got = false
	in.budget = MaxHeader
}

// release lets go of what a large answer needed.
func (in *reader) release() {
	in.src, in.err = nil, nil
	if len(in.buf) > smallBuffer {
		in.buf = nil
	}
	if cap(in.value) > smallBuffer {
		in.value = nil
	}
}

// space returns what the next read may fill. There is some.
func (in *reader) space() []byte {
	if in.r == in.w {
		in.r, in.w = 0, 0
	}
	if in.w == len(in.buf) {
		switch {
		case in.r > 0:
			in.w = copy(in.buf, in.buf[in.r:in.w])
			in.r = 0
		case len(in.buf) == 0:
			in.buf = make([]byte, smallBuffer)
		default:
			buf := make([]byte, 2*len(in.buf))
			copy(buf, in.buf)
			in.buf = buf
		}
	}
	return in.buf[in.w:]
}

// took notes that n bytes were read into space.
func (in *reader) took(n int) {
	if in.notes != nil && n > 0 {
		in.notes.began()
	}
	in.w += n
	in.got = in.got || n > 0
}

// fill reads more, at least one byte unless it returns an error.
func (in *reader) fill() error {
	for range maxReads {
		if in.err != nil {
			return in.err
		}
		n, err := in.src.Read(in.space())
		in.took(n)
		in.err = err
		if n > 0 {
			return nil
		}
	}
	if in.err != nil {
		return in.err
	}
	return io.ErrNoProgress
}

// more is fill within an answer: the end of the connection is an error.
func (in *reader) more() error {
	err := in.fill()
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// line returns the next line with its LF. It is valid until the next read.
func (in *reader) line() ([]byte, error) {
	seen := 0
	for {
		if i := bytes.IndexByte(in.buf[in.r+seen:in.w], '\n'); i >= 0 {
			line := in.buf[in.r : in.r+seen+i+1]
			if len(line) > in.budget {
				return nil, errLong
			}
			in.budget -= len(line)
			in.r += len(line)
			return line, nil
		}
		seen = in.w - in.r
		if seen > in.budget {
			return nil, errLong
		}
		if err := in.more(); err != nil {
			return nil, err
		}
	}
}

// data reads n bytes of a body. It appends the first of them to kept, as far as
// that has room.
func (in *reader) data(kept []byte, n int64) ([]byte, error) {
	for n > 0 {
		if in.r == in.w {
			if err := in.more(); err != nil {
				return kept, err
			}
		}
		p := in.buf[in.r:in.w]
		p = p[:min(int64(len(p)), n)]
		in.r += len(p)
		n -= int64(len(p))
		kept = keepSome(kept, p)
	}
	return kept, nil
}

// keepSome appends as much of p to kept as there is room for.
func keepSome(kept, p []byte) []byte {
	return append(kept, p[:min(len(p), cap(kept)-len(kept))]...)
}
