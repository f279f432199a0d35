package spool_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hookferry/analytics/internal/soakenv"
	"github.com/hookferry/analytics/internal/spool"
)

var written = []string{"11", "222", "3333", "44444"}

// image returns the bytes of a segment file that has the messages in written. The file has the
// full size of a segment.
func image(t testing.TB) []byte {
	t.Helper()
	path := t.TempDir()
	c := small()
	d, _ := open(t, path, c)
	newSegment(t, d, written...)
	b, err := os.ReadFile(filepath.Join(path, files(t, path)[0]))
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "size", len(b), spool.SegmentSize(c))
	return b
}

// A reading is the result of Open, Load, Remove and Close for one segment file.
type reading struct {
	counted  int // number of messages according to Open
	lost     int // number of lost messages according to Load
	messages []string
	reported []error
	left     []string // files set aside, which are left after Remove and Close
}

// readImage writes b to a segment file in a folder and reads the folder. It checks that the
// result is consistent, and that damage is reported if the file was set aside.
func readImage(t testing.TB, path string, b []byte) reading {
	t.Helper()
	name := filepath.Join(path, "segment-00000001")
	if err := os.WriteFile(name, b, 0o600); err != nil {
		t.Fatal(err)
	}
	var r reading
	c := small()
	c.Report = func(err error) { r.reported = append(r.reported, err) }
	d, backlog, err := spool.Open(path, c)
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	if len(backlog) > 1 {
		t.Fatalf("Open = %d segments from one file, want at most 1", len(backlog))
	}
	for _, s := range backlog {
		r.counted = s.Len()
		if r.lost, err = s.Load(); err != nil {
			t.Fatalf("Load of a file that has not changed since Open: %v", err)
		}
		if r.counted-r.lost != s.Len() {
			t.Fatalf("Load lost %d of %d messages and has %d, want the rest", r.lost, r.counted, s.Len())
		}
		r.messages = messages(s, c.Head)
		if got, want := string(s.Bytes()), c.Head+strings.Join(r.messages, ","); got != want {
			t.Fatalf("Bytes = %q, want %q", got, want)
		}
		remove(t, s)
	}
	// A new segment can be made, even if the old file was set aside.
	remove(t, newSegment(t, d, "1"))
	closeDir(t, d)
	r.left = files(t, path)
	for _, name := range r.left {
		if !strings.Contains(name, ".aside") {
			t.Fatalf("%s is still in the folder, want only files that were set aside", name)
		}
		if err := os.RemoveAll(filepath.Join(path, name)); err != nil {
			t.Fatal(err)
		}
	}
	if len(r.left) != len(r.reported) {
		t.Fatalf("%d files set aside, but reported %v, want one report for each", len(r.left), r.reported)
	}
	for _, err := range r.reported {
		if damage := (*spool.DamageError)(nil); !errors.As(err, &damage) || filepath.Base(damage.File) != r.left[0] {
			t.Fatalf("reported %v, want a *DamageError about %s", err, r.left[0])
		}
	}
	return r
}

// A truncated file keeps every message that is complete.
func TestATruncatedFileKeepsItsCompleteMessages(t *testing.T) {
	whole := image(t)
	dataAt := len(whole) - small().MaxData
	path := t.TempDir()
	for n := range len(whole) + 1 {
		r := readImage(t, path, whole[:n])
		want := []string(nil)
		end := dataAt + len(small().Head) - 1
		for _, m := range written {
			if end += 1 + len(m); end <= n {
				want = append(want, m)
			}
		}
		equal(t, fmt.Sprintf("messages in the first %d bytes", n), r.messages, want)
		aside := 1
		if n == 0 || len(want) == len(written) {
			aside = 0 // the file is empty, or complete
		}
		equal(t, fmt.Sprintf("files set aside with the first %d bytes", n), len(r.left), aside)
	}
}

// TestFlippedBits flips single bits of a file. A flipped bit in a message loses that message, in
// the index at most two messages, and in the header possibly all. A loss is always noticed.
func TestFlippedBits(t *testing.T) {
	whole := image(t)
	dataAt := len(whole) - small().MaxData
	used := dataAt + len("[11,222,3333,44444")
	path := t.TempDir()
	for bit := range 8 * len(whole) {
		if bit%8 != 3*(bit/8)%8 && !soakenv.On() {
			continue // an ordinary test run flips one bit of each byte
		}
		b := slices.Clone(whole)
		b[bit/8] ^= 1 << (bit % 8)
		r := readImage(t, path, b)
		missing := 0
		for _, m := range written {
			if !slices.Contains(r.messages, m) {
				missing++
			}
		}
		if len(r.messages)+missing != len(written) {
			t.Errorf("bit %d flipped: messages %q, want only messages of %q", bit, r.messages, written)
		}
		most := 0
		switch at := bit / 8; {
		case at < 80: // the header
			most = len(written)
		case at < 128: // unused bytes
		case at < dataAt: // the index; an entry ends its message and begins the next one
			most = 2
		case at < used:
			most = 1
		}
		if missing > most {
			t.Errorf("bit %d of byte %d flipped: %d messages missing, want at most %d", bit%8, bit/8, missing, most)
		}
		if noticed := len(r.left) > 0; noticed != (missing > 0) {
			t.Errorf("bit %d of byte %d flipped: %d messages missing, but the file is set aside: %t", bit%8, bit/8, missing, noticed)
		}
	}
}

// TestAFileWithZeroedPartsIsReadAsFarAsPossible zeroes parts of a file. A loss of power has this
// effect on pages that the system has not written yet.
func TestAFileWithZeroedPartsIsReadAsFarAsPossible(t *testing.T) {
	whole := image(t)
	const index, entry = 128, 8
	tests := []struct {
		name     string
		from, to int
		messages []string
		lost     int
		aside    bool
	}{
		{"nothing", 0, 0, written, 0, false},
		{"all", 0, len(whole), nil, 0, false},
		{"magic", 0, 8, nil, 0, false},
		{"header except the magic", 8, 128, nil, 0, true},
		{"index", index, index + 4*entry, nil, 0, false},
		{"first entry", index, index + entry, []string{"3333", "44444"}, 1, true},
		{"last entries", index + 2*entry, index + 4*entry, []string{"11", "222"}, 0, false},
		{"a message", index + 4*entry + 1, index + 4*entry + 3, []string{"222", "3333", "44444"}, 1, true},
		{"a comma", index + 4*entry + 3, index + 4*entry + 4, written, 0, false},
		{"the head", index + 4*entry, index + 4*entry + 1, written, 0, false},
		{"all messages", index + 4*entry, len(whole), nil, 4, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := slices.Clone(whole)
			clear(b[tt.from:tt.to])
			r := readImage(t, t.TempDir(), b)
			equal(t, "messages", r.messages, tt.messages)
			equal(t, "lost", r.lost, tt.lost)
			equal(t, "set aside", len(r.left) > 0, tt.aside)
		})
	}
}

// TestMessagesOfAnEarlierUseAreNotRead combines the header of a reused file with the index and the
// data of its earlier use. A loss of power can have this effect.
func TestMessagesOfAnEarlierUseAreNotRead(t *testing.T) {
	path := t.TempDir()
	d, _ := open(t, path, small())
	s := newSegment(t, d, written...)
	name := filepath.Join(path, files(t, path)[0])
	before, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	remove(t, s)
	s = newSegment(t, d, "5")
	after, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	const header = 128
	r := readImage(t, t.TempDir(), append(after[:header:header], before[header:]...))
	equal(t, "messages", r.messages, []string(nil))
	equal(t, "lost", r.lost, len(written))
	remove(t, s)
}

// Open sets aside files that have the name of a segment but cannot be read as one. It leaves files
// with other names alone.
func TestForeignFilesAreSetAsideOrLeftAlone(t *testing.T) {
	path := t.TempDir()
	whole := image(t)
	newer := slices.Clone(whole)
	binary.LittleEndian.PutUint32(newer[8:], 2)
	put := func(name string, b []byte) {
		if err := os.WriteFile(filepath.Join(path, name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put("segment-00000001", []byte("#!/bin/sh\n"))
	put("segment-00000001.aside", []byte("an earlier one"))
	put("segment-00000002", newer)
	put("segment-00000003", whole)
	put("segment-4611686018427387904", whole) // larger than the number of any other segment
	put("segment-9223372036854775808", whole) // not a valid number
	put("segment-3", whole)
	put("segment-00000003.bak", whole)
	put("notes.txt", []byte("notes"))
	if err := os.MkdirAll(filepath.Join(path, "segment-00000005", "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	var reported []string
	c := small()
	c.Report = func(err error) { reported = append(reported, filepath.Base(err.(*spool.DamageError).File)) }
	for range 2 {
		d, backlog := open(t, path, c)
		equal(t, "segments", len(backlog), 2)
		for _, s := range backlog {
			load(t, s)
			equal(t, "messages", messages(s, c.Head), written)
		}
		s := newSegment(t, d, "1")
		remove(t, s)
		closeDir(t, d)
	}
	equal(t, "reported", reported, []string{"segment-00000001.aside2", "segment-00000002.aside", "segment-00000005.aside"})
	equal(t, "files", files(t, path), []string{
		"notes.txt",
		"segment-00000001.aside",
		"segment-00000001.aside2",
		"segment-00000002.aside",
		"segment-00000003",
		"segment-00000003.bak",
		"segment-00000005.aside",
		"segment-3",
		"segment-4611686018427387904",
		"segment-9223372036854775808",
	})
}

// If a file is removed, cut off or replaced between Open and Load, Load returns a *DamageError.
func TestLoadReturnsADamageErrorIfTheFileHasChanged(t *testing.T) {
	tests := []struct {
		name   string
		change func(name string) error
	}{
		{"removed", os.Remove},
		{"emptied", func(name string) error { return os.Truncate(name, 0) }},
		{"cut off in its index", func(name string) error { return os.Truncate(name, 140) }},
		{"replaced", func(name string) error { return os.WriteFile(name, image(t), 0o600) }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			path := t.TempDir()
			var reported []error
			c := small()
			c.Report = func(err error) { reported = append(reported, err) }
			d, _ := open(t, path, c)
			newSegment(t, d, "0")
			s := newSegment(t, d, "1")
			if err := s.Unload(); err != nil {
				t.Fatal(err)
			}
			name := filepath.Join(path, files(t, path)[1])
			if err := tt.change(name); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				lost, err := s.Load()
				if damage := (*spool.DamageError)(nil); !errors.As(err, &damage) || lost != 0 {
					t.Errorf("Load = %d, %v, want 0 and a *DamageError", lost, err)
				}
				equal(t, "Len", s.Len(), 1)
			}
			remove(t, s)
			equal(t, "reported", len(reported), 1)
		})
	}
}

// TestDamageIsCountedOnce loads a damaged segment twice. A client does so if it could not send the
// intact messages at first. Only the first Load counts and reports the damaged message.
func TestDamageIsCountedOnce(t *testing.T) {
	path := t.TempDir()
	c := small()
	reports := 0
	c.Report = func(error) { reports++ }
	d, _ := open(t, path, c)
	s := newSegment(t, d, "0", "1", "2")
	if err := s.Unload(); err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(path, files(t, path)[0])
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	text[len(text)-1] ^= 1
	if err := os.WriteFile(name, text, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, want := range []int{1, 0} {
		if lost, err := s.Load(); lost != want || err != nil {
			t.Errorf("Load = %d, %v, want %d, nil", lost, err, want)
		}
		equal(t, "Len", s.Len(), 2)
		if err := s.Unload(); err != nil {
			t.Error(err)
		}
	}
	remove(t, s)
	equal(t, "files", files(t, path), []string{filepath.Base(name) + ".aside"})
	equal(t, "reports", reports, 1)
}
