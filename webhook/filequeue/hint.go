package filequeue

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"io/fs"
	"slices"

	"github.com/hookferry/analytics/internal/disk"
)

// A hint file has the summaries of a sealed segment, so that Open need not read the segment:
//
//	"hookhnt1"  8 bytes
//	salt of the segment  8
//	where it ends        8
//	the summaries
//	CRC-32C     4, of all above
const (
	hintMagic = "hookhnt1"
	hintStart = 24
)

// A hintWriter encodes summaries, each as the difference to the one before where that is short.
type hintWriter struct {
	b     []byte
	last  summary
	dests map[string]uint64
}

func newHintWriter() *hintWriter {
	return &hintWriter{b: make([]byte, hintStart, 4096), dests: make(map[string]uint64)}
}

func (w *hintWriter) add(s *summary) {
	b := append(w.b, byte(s.kind))
	b = binary.AppendVarint(b, int64(s.seq-w.last.seq))
	b = binary.AppendUvarint(b, uint64(s.off-w.last.off))
	b = binary.AppendUvarint(b, uint64(s.size))
	w.last.seq, w.last.off = s.seq, s.off
	switch {
	case s.kind == kindPut:
		flags := byte(0)
		if s.retry {
			flags = 1
		}
		b = append(b, flags)
		b = binary.AppendVarint(b, s.due-w.last.due)
		b = binary.AppendVarint(b, s.at-w.last.at)
		w.last.due, w.last.at = s.due, s.at
		b = binary.AppendUvarint(b, uint64(s.body))
		b = binary.LittleEndian.AppendUint32(b, s.user)
		b = append(b, s.key[:]...)
		n, ok := w.dests[s.dest]
		b = binary.AppendUvarint(b, n)
		if !ok {
			w.dests[string([]byte(s.dest))] = uint64(len(w.dests) + 1)
			b = binary.AppendUvarint(b, uint64(len(s.dest)))
			b = append(b, s.dest...)
		}
	case s.kind.state():
		b = binary.AppendVarint(b, s.due-w.last.due)
		w.last.due = s.due
		b = binary.AppendUvarint(b, uint64(s.bytes))
		b = binary.LittleEndian.AppendUint32(b, s.user)
	case s.kind.lists() || s.kind == kindDropped:
		b = binary.AppendUvarint(b, uint64(len(s.refs)))
		for _, r := range s.refs {
			b = binary.AppendVarint(b, int64(r.seq-w.last.seq))
			b = binary.AppendUvarint(b, uint64(r.seg))
			w.last.seq = r.seq
		}
	case s.kind == kindSetting:
		b = binary.AppendUvarint(b, uint64(len(s.name)))
		b = append(b, s.name...)
	case s.kind == kindKeys:
		b = binary.AppendVarint(b, s.at)
	}
	w.b = b
}

// finish returns the hint file of a segment.
func (w *hintWriter) finish(salt uint64, end int64) []byte {
	b := w.b
	copy(b, hintMagic)
	binary.LittleEndian.PutUint64(b[8:], salt)
	binary.LittleEndian.PutUint64(b[16:], uint64(end))
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

var errHint = errors.New("malformed hint file")

// decodeHint appends the summaries of a hint file to dst. A dest that was seen before is the
// same string.
func decodeHint(b []byte, salt uint64, end int64, dst []summary) ([]summary, error) {
	n := len(b) - 4
	if n < hintStart || string(b[:8]) != hintMagic || binary.LittleEndian.Uint64(b[8:]) != salt ||
		int64(binary.LittleEndian.Uint64(b[16:])) != end || crc32.Checksum(b[:n], castagnoli) != binary.LittleEndian.Uint32(b[n:]) {
		return nil, errHint
	}
	return decodeSummaries(b[hintStart:n], dst)
}

// decodeSummaries appends what a hintWriter has written.
func decodeSummaries(b []byte, dst []summary) ([]summary, error) {
	r := payloadReader{b: b}
	var last summary
	dests := []string{""}
	for len(r.b) > 0 {
		s := summary{kind: kind(r.byte())}
		last.seq += uint64(r.varint())
		last.off += uint32(r.uvarint())
		s.seq, s.off, s.size = last.seq, last.off, uint32(r.uvarint())
		switch {
		case s.kind == kindPut:
			s.retry = r.byte() == 1
			last.due += r.varint()
			last.at += r.varint()
			s.due, s.at, s.body = last.due, last.at, uint32(r.uvarint())
			s.user = r.uint32()
			copy(s.key[:], r.bytes(16))
			i := r.uvarint()
			if i == 0 {
				i = uint64(len(dests))
				dests = append(dests, string(r.text()))
			}
			if i >= uint64(len(dests)) {
				return nil, errHint
			}
			s.dest = dests[i]
		case s.kind.state():
			last.due += r.varint()
			s.due, s.bytes = last.due, int64(r.uvarint())
			s.user = r.uint32()
		case s.kind.lists() || s.kind == kindDropped:
			n := r.uvarint()
			if n > uint64(len(r.b)) {
				return nil, errHint
			}
			s.refs = make([]ref, n)
			for i := range s.refs {
				last.seq += uint64(r.varint())
				s.refs[i] = ref{last.seq, uint32(r.uvarint())}
			}
		case s.kind == kindSetting:
			s.name = string(r.text())
		case s.kind == kindKeys:
			s.at = r.varint()
		case s.kind != kindClosed:
			return nil, errHint
		}
		if r.failed {
			return nil, errHint
		}
		dst = append(dst, s)
	}
	return dst, nil
}

func (r *payloadReader) uint32() uint32 {
	if b := r.bytes(4); b != nil {
		return binary.LittleEndian.Uint32(b)
	}
	return 0
}

// writeHint writes the hint file of a segment.
func writeHint(d disk.Disk, number uint32, b []byte) error {
	const temporary = "hint"
	if err := d.Remove(temporary); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := d.Create(temporary)
	if err != nil {
		return err
	}
	if _, err = f.WriteAt(b, 0); err == nil {
		err = f.Sync()
	}
	f.Close()
	if err == nil {
		err = d.Rename(temporary, hintName(number))
	}
	if err != nil {
		d.Remove(temporary)
	}
	return err
}

// readAll reads a file of at most limit bytes.
func readAll(d disk.Disk, name string, limit int64) ([]byte, error) {
	f, err := d.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	size, err := f.Size()
	if err != nil {
		return nil, err
	}
	b := make([]byte, min(size, limit))
	if n, err := f.ReadAt(b, 0); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	} else {
		b = b[:n]
	}
	return b, nil
}

// maxHint is how long a hint file is at most, in bytes.
const maxHint = 256 << 20

// summaries returns those of a segment, up to where it ends now. It takes the lock itself.
func (x *index) summaries(d disk.Disk, g *segment) ([]summary, error) {
	x.mu.Lock()
	end := g.end
	var b []byte
	if g.hint != nil {
		b = slices.Clone(g.hint.b[hintStart:])
	}
	x.mu.Unlock()
	if b != nil {
		return decodeSummaries(b, nil)
	}
	if b, err := readAll(d, hintName(g.number), maxHint); err == nil {
		if sums, err := decodeHint(b, g.salt, end, nil); err == nil {
			return sums, nil
		}
	}
	c, err := scan(g.file, &g.segmentHeader, end, true)
	return c.summaries, err
}
