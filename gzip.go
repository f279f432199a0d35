package analytics

import (
	"bytes"
	"compress/flate"
	"encoding/binary"
	"hash/crc32"
	"io"
)

// A packer compresses the text of a batch, which is the same in every attempt. It writes
// the beginning of one gzip member (RFC 1952), up to a byte boundary. The tail changes with
// sentAt, so each attempt appends it in a stored block (RFC 1951, section 3.2.4), which
// needs no compression. The whole body is a single gzip member, as some readers require.
type packer struct {
	deflate *flate.Writer // about 1 MB; made at the first use
	size    int           // size of the previous result, in bytes; a guess for the next
}

// A packed is the compressed text of a batch.
type packed struct {
	data []byte
	sum  uint32 // CRC-32 of the text
}

const (
	gzipHeader = "\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff" // deflate, no time, unknown system
	storedSize = 5                                          // size of the header of a stored block
	gzipEnd    = 8                                          // size of CRC-32 and length
)

// pack compresses all bytes of r.
func (p *packer) pack(r io.Reader) (*packed, error) {
	out := bytes.NewBuffer(make([]byte, 0, p.size+p.size/4+512))
	out.WriteString(gzipHeader)
	if p.deflate == nil {
		p.deflate, _ = flate.NewWriter(out, flate.BestSpeed) // fails only for an invalid level
	} else {
		p.deflate.Reset(out)
	}
	sum := crc32.NewIEEE()
	if _, err := io.Copy(io.MultiWriter(p.deflate, sum), r); err != nil {
		return nil, err
	}
	if err := p.deflate.Flush(); err != nil {
		return nil, err
	}
	p.size = out.Len()
	return &packed{out.Bytes(), sum.Sum32()}, nil
}

// appendTail appends tail in a stored block and ends the gzip member. The argument size is the
// uncompressed length of the text before tail.
func (p *packed) appendTail(dst, tail []byte, size int) []byte {
	n := uint16(len(tail))
	dst = append(dst, 1) // the last block, stored
	dst = binary.LittleEndian.AppendUint16(dst, n)
	dst = binary.LittleEndian.AppendUint16(dst, ^n)
	dst = append(dst, tail...)
	dst = binary.LittleEndian.AppendUint32(dst, crc32.Update(p.sum, crc32.IEEETable, tail))
	return binary.LittleEndian.AppendUint32(dst, uint32(size+len(tail)))
}

// pack sets b.packed to the compressed text of b.
func (b *batch) pack(p *packer) error {
	var err error
	b.packed, err = p.pack(b.reader())
	return err
}
