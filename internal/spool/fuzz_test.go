package spool_test

import (
	"encoding/binary"
	"slices"
	"strings"
	"testing"

	"github.com/hookferry/analytics/internal/spool"
)

// FuzzOpen reads arbitrary bytes as a segment file. Every message that is read must be in the
// file, with an entry that has its checksum. Random changes rarely keep a header valid, so with
// mend the test corrects the start and the checksum of the header.
func FuzzOpen(f *testing.F) {
	whole := image(f)
	f.Add(whole, false)
	f.Add(whole, true)
	f.Add(whole[:len(whole)-50], true)
	f.Add([]byte{}, false)
	f.Add(make([]byte, len(whole)), true)
	f.Fuzz(func(t *testing.T, b []byte, mend bool) {
		if mend && len(b) >= 80 {
			b = slices.Clone(b)
			copy(b, whole[:12])
			binary.LittleEndian.PutUint32(b[76:], spool.Checksum(b[8:76]))
		}
		r := readImage(t, t.TempDir(), b)
		if len(r.messages) == 0 {
			return
		}
		le := binary.LittleEndian
		room := int(le.Uint32(b[12:]))
		index, data := b[128:128+8*room], b[128+8*room:]
		header := le.Uint32(b[76:])
		ends := map[uint32][]int{} // ends of messages by checksum
		for ; len(index) > 0; index = index[8:] {
			sum := le.Uint32(index[4:])
			ends[sum] = append(ends[sum], int(le.Uint32(index)))
		}
		for _, m := range r.messages {
			if !slices.ContainsFunc(ends[spool.Checksum([]byte(m))^header], func(end int) bool {
				return end <= len(data) && strings.HasSuffix(string(data[:end]), m)
			}) {
				t.Errorf("read the message %q, but the file has no such message with its checksum", m)
			}
		}
	})
}

// FuzzDamage changes a valid file. The messages that are read must be among those written, and in
// the same order.
func FuzzDamage(f *testing.F) {
	f.Add(uint16(130), []byte{1, 2, 3})
	f.Add(uint16(160), []byte("[99"))
	f.Add(uint16(76), []byte{0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, at uint16, change []byte) {
		b := image(t)
		copy(b[min(int(at), len(b)):], change)
		next := 0
		for _, m := range readImage(t, t.TempDir(), b).messages {
			for next < len(written) && written[next] != m {
				next++
			}
			if next == len(written) {
				t.Fatalf("read the message %q, which was not written, or not in this order", m)
			}
			next++
		}
	})
}
