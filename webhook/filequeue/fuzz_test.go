package filequeue

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"slices"
	"testing"
	"time"

	"github.com/hookferry/analytics/internal/simdisk"
	"github.com/hookferry/analytics/webhook/store"
)

// segmentsOf returns the segments of a store that has all kinds of records.
func segmentsOf(f *testing.F) map[segmentID][]byte {
	segments := make(map[segmentID][]byte)
	d := simdisk.New(1)
	for range 2 {
		s, err := OpenOn(d, Config{})
		if err != nil {
			f.Fatal(err)
		}
		ps := []store.Put{
			{Delivery: store.Delivery{Destination: "a", ID: "1", User: "u", Due: s.Now(), Body: []byte("{}")}, Keep: true},
			{Delivery: store.Delivery{Destination: "b", ID: "2", Key: "k", Due: s.Now().Add(time.Hour)}},
		}
		out := make([]store.Result, len(ps))
		if err := s.Put(f.Context(), ps, out); err != nil {
			f.Fatal(err)
		}
		ps[0].Claim = out[0].Claim
		if _, err := s.Settle(f.Context(), []store.Settlement{{Verdict: store.Bury, Delivery: ps[0].Delivery, Reason: store.ReasonExpired, At: s.Now()}}); err != nil {
			f.Fatal(err)
		}
		if _, err := s.SetDocument(f.Context(), store.Document{Folder: "pause", Name: "a", Value: []byte("{}")}); err != nil && err != store.ErrConflict {
			f.Fatal(err)
		}
		if err := s.Close(); err != nil {
			f.Fatal(err)
		}
	}
	for _, name := range d.Names() {
		if id, ok := parseName(name); ok {
			segments[id] = bytes.TrimRight(d.ReadFile(name), "\x00")
		}
	}
	if len(segments) == 0 {
		f.Fatal("got no segments, want some")
	}
	return segments
}

// FuzzScan reads any bytes as a segment. The records that scan finds are in order and within the
// segment. Together with the gaps they cover it.
func FuzzScan(f *testing.F) {
	for id, b := range segmentsOf(f) {
		f.Add(b, id.salt, len(b))
		f.Add(b[:len(b)-1], id.salt, 0)
	}
	f.Fuzz(func(t *testing.T, b []byte, salt uint64, known int) {
		d := simdisk.New(1)
		d.WriteFile("segment", b)
		r, err := d.Open("segment")
		if err != nil {
			t.Fatal(err)
		}
		c, err := scan(r, segmentID{1, salt}, int64(max(0, min(known, len(b)))), int64(len(b)))
		if err != nil {
			t.Fatal(err)
		}
		at := int64(0)
		gaps := slices.Concat(c.gaps, c.holes)
		for _, s := range c.records {
			for len(gaps) > 0 && gaps[0].from == at {
				at, gaps = gaps[0].to, gaps[1:]
			}
			if int64(s.pos.off) != at {
				t.Fatalf("got a record at %d, want one at %d or a gap from there; gaps %v", s.pos.off, at, c.gaps)
			}
			at += recordSize(int(s.length))
		}
		if limit := int64(len(b) + 7); at > limit || c.end > limit {
			t.Fatalf("the records end at %d, the segment at %d; want ends within the %d bytes of the file", at, c.end, len(b))
		}
	})
}

// FuzzHint reads any bytes as a hint. If decodeHint accepts them, encoding its records gives the
// same bytes.
func FuzzHint(f *testing.F) {
	for id, b := range segmentsOf(f) {
		c, err := scan(bytes.NewReader(b), id, 0, int64(len(b)))
		if err != nil || len(c.records) == 0 {
			f.Fatalf("scan = %d records, %v; want some", len(c.records), err)
		}
		f.Add(appendHint(nil, c.records, id.salt), id.salt, c.end)
	}
	f.Fuzz(func(t *testing.T, b []byte, salt uint64, end int64) {
		if len(b) < 4 {
			return
		}
		binary.LittleEndian.PutUint32(b[len(b)-4:], crc32.Checksum(b[:len(b)-4], castagnoli)) // a wrong checksum would end the test here
		rs, ok := decodeHint(b, segmentID{1, salt}, end, nil)
		if !ok {
			return
		}
		if again := appendHint(nil, rs, salt); !bytes.Equal(again, b) {
			t.Fatalf("decoded and encoded again:\ngot  %x\nwant %x", again, b)
		}
	})
}
