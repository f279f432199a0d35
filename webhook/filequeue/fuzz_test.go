package filequeue

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"slices"
	"testing"
	"time"

	"github.com/hookferry/analytics/internal/simdisk"
	"github.com/hookferry/analytics/webhook"
)

// filesOf returns the segments and the hints of a store that has all kinds of records.
func filesOf(f *testing.F) (segments, hints map[segmentID][]byte) {
	segments, hints = make(map[segmentID][]byte), make(map[segmentID][]byte)
	d := simdisk.New(1)
	for range 2 {
		s, err := OpenOn(d, Config{})
		if err != nil {
			f.Fatal(err)
		}
		ps := []webhook.Put{
			{Delivery: webhook.Delivery{Destination: "a", ID: "1", User: "u", Due: s.Now(), Body: []byte("{}")}, Keep: true},
			{Delivery: webhook.Delivery{Destination: "b", ID: "2", Due: s.Now().Add(time.Hour)}},
		}
		out := make([]webhook.Result, len(ps))
		if err := s.Put(f.Context(), ps, out); err != nil {
			f.Fatal(err)
		}
		ps[0].Claim = out[0].Claim
		if _, err := s.Settle(f.Context(), []webhook.Settlement{{Verdict: webhook.Bury, Delivery: ps[0].Delivery, Reason: webhook.ReasonExpired, At: s.Now()}}); err != nil {
			f.Fatal(err)
		}
		if _, err := s.Set(f.Context(), webhook.Setting{Name: "pause/a", Value: []byte("{}")}); err != nil && err != webhook.ErrConflict {
			f.Fatal(err)
		}
		if err := s.Close(); err != nil {
			f.Fatal(err)
		}
	}
	for _, name := range d.Names() {
		if id, hint, ok := parseName(name); hint {
			hints[id] = d.ReadFile(name)
		} else if ok {
			segments[id] = bytes.TrimRight(d.ReadFile(name), "\x00")
		}
	}
	if len(segments) == 0 || len(hints) == 0 {
		f.Fatalf("got %d segments and %d hints, want some of both", len(segments), len(hints))
	}
	return segments, hints
}

// FuzzScan reads any bytes as a segment. The records that scan finds are in order and within the
// segment. Together with the gaps they cover it.
func FuzzScan(f *testing.F) {
	segments, _ := filesOf(f)
	for id, b := range segments {
		f.Add(b, id.salt, true)
		f.Add(b[:len(b)-1], id.salt, false)
	}
	f.Fuzz(func(t *testing.T, b []byte, salt uint64, known bool) {
		d := simdisk.New(1)
		d.WriteFile("segment", b)
		r, err := d.Open("segment")
		if err != nil {
			t.Fatal(err)
		}
		c, err := scan(r, salt, int64(len(b)), known)
		if err != nil {
			t.Fatal(err)
		}
		at := int64(0)
		gaps := slices.Clone(c.gaps)
		for _, s := range c.records {
			for len(gaps) > 0 && gaps[0].from == at {
				at, gaps = gaps[0].to, gaps[1:]
			}
			if int64(s.off) != at {
				t.Fatalf("got a record at %d, want one at %d or a gap from there; gaps %v", s.off, at, c.gaps)
			}
			at += recordSize(int(s.length))
		}
		if limit := int64(len(b) + 7); at > limit || c.end > limit {
			t.Fatalf("the records end at %d, the segment at %d; want ends within the %d bytes of the file", at, c.end, len(b))
		}
	})
}

// FuzzHint reads any bytes as a hint file. If decodeHint accepts them, encoding its records gives
// the same bytes.
func FuzzHint(f *testing.F) {
	_, hints := filesOf(f)
	for id, b := range hints {
		f.Add(b, id.salt)
	}
	f.Fuzz(func(t *testing.T, b []byte, salt uint64) {
		if len(b) < hintStart+4 {
			return
		}
		le := binary.LittleEndian
		end := int64(le.Uint64(b[8:]))
		le.PutUint32(b[len(b)-4:], crc32.Checksum(b[:len(b)-4], castagnoli)) // a wrong checksum would end the test here
		rs, err := decodeHint(b, salt, end, nil)
		if err != nil {
			return
		}
		again := b[:hintStart:hintStart]
		for _, r := range rs {
			again = append(r.append(again, salt, int64(r.off)), r.payload...)
		}
		if !bytes.Equal(again[hintStart:], b[hintStart:len(b)-4]) {
			t.Fatalf("decoded and encoded again:\ngot  %x\nwant %x", again, b)
		}
	})
}
