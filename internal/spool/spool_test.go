package spool_test

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hookferry/analytics/internal/soakenv"
	"github.com/hookferry/analytics/internal/spool"
)

var (
	idA   = spool.ID([]byte("4b0a1c5e-55b1-4f6e-9c6c-0f4f3a1d2e3f"))
	start = time.Date(2026, 3, 4, 5, 6, 7, 891_000_001, time.UTC)
)

// small returns the configuration of a folder with small segments.
func small() spool.Config {
	return spool.Config{Head: "[", MaxData: 64, MaxMessages: 4}
}

// eachMode runs a test with files that are written with system calls and, where the system can map
// files, with mapped files.
func eachMode(t *testing.T, f func(t *testing.T, c spool.Config)) {
	t.Run("not mapped", func(t *testing.T) {
		c := small()
		spool.Plain(&c)
		f(t, c)
	})
	if spool.CanMap {
		t.Run("mapped", func(t *testing.T) { f(t, small()) })
	}
}

// open opens a folder, and closes it when the test ends. Unless c.Report is set, the test fails if
// damage is reported.
func open(t testing.TB, path string, c spool.Config) (*spool.Dir, []*spool.Segment) {
	t.Helper()
	if c.Report == nil {
		c.Report = func(err error) { t.Errorf("reported: %v", err) }
	}
	d, segments, err := spool.Open(path, c)
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	t.Cleanup(func() { closeDir(t, d) })
	return d, segments
}

func closeDir(t testing.TB, d *spool.Dir) {
	t.Helper()
	if err := d.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
}

func newSegment(t testing.TB, d *spool.Dir, messages ...string) *spool.Segment {
	t.Helper()
	s, err := d.New(idA, start)
	if err != nil {
		t.Fatalf("New: %v", err)
	}
	for _, m := range messages {
		add(t, s, m)
	}
	return s
}

func add(t testing.TB, s *spool.Segment, message string) {
	t.Helper()
	if err := s.Append([]byte(message), spool.Checksum([]byte(message))); err != nil {
		t.Fatalf("Append(%q): %v", message, err)
	}
}

// messages returns the messages of a segment.
func messages(s *spool.Segment, head string) []string {
	var list []string
	start := len(head)
	for _, end := range s.Ends() {
		list = append(list, string(s.Bytes()[start:end]))
		start = int(end) + 1
	}
	return list
}

func load(t testing.TB, s *spool.Segment) {
	t.Helper()
	if lost, err := s.Load(); lost != 0 || err != nil {
		t.Fatalf("Load = %d, %v, want 0, nil", lost, err)
	}
}

func remove(t testing.TB, s *spool.Segment) {
	t.Helper()
	if err := s.Remove(); err != nil {
		t.Fatalf("Remove: %v", err)
	}
}

// files returns the names of the files in a folder, except the lock file.
func files(t testing.TB, path string) []string {
	t.Helper()
	list, err := os.ReadDir(path)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, item := range list {
		if item.Name() != "lock" {
			names = append(names, item.Name())
		}
	}
	return names
}

func equal(t testing.TB, what string, got, want any) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

func TestASegmentIsFoundByTheNextOpen(t *testing.T) {
	eachMode(t, func(t *testing.T, c spool.Config) {
		path := filepath.Join(t.TempDir(), "a", "b")
		d, backlog := open(t, path, c)
		equal(t, "backlog of an empty folder", len(backlog), 0)
		s := newSegment(t, d, `{"a":1}`, `{}`, `"ccc"`)
		const want = `[{"a":1},{},"ccc"`
		equal(t, "Bytes", string(s.Bytes()), want)
		equal(t, "Ends", s.Ends(), []int32{8, 11, 17})
		closeDir(t, d)

		d, backlog = open(t, path, c)
		equal(t, "segments", len(backlog), 1)
		s = backlog[0]
		equal(t, "Len before Load", s.Len(), 3)
		equal(t, "Bytes before Load", len(s.Bytes()), 0)
		load(t, s)
		load(t, s)
		equal(t, "Bytes", string(s.Bytes()), want)
		equal(t, "Ends", s.Ends(), []int32{8, 11, 17})
		equal(t, "ID", s.ID(), idA)
		equal(t, "Opened", s.Opened(), start)
		if s.Fits(1) {
			t.Error("Fits(1) of a loaded segment = true, want false")
		}
		if err := s.Append([]byte("1"), 0); err == nil {
			t.Error("Append to a loaded segment = nil, want an error")
		}
		if err := s.Unload(); err != nil {
			t.Error(err)
		}
		equal(t, "Bytes after Unload", len(s.Bytes()), 0)
		load(t, s)
		equal(t, "Bytes after Unload and Load", string(s.Bytes()), want)
		remove(t, s)
		remove(t, s)
		equal(t, "files after Remove", files(t, path), []string(nil))
		closeDir(t, d)

		_, backlog = open(t, path, c)
		equal(t, "segments after Remove", len(backlog), 0)
	})
}

func TestLoadReplacesTheHeadByTheConfiguredOne(t *testing.T) {
	for _, head := range []string{"", `{"batch":[`} {
		eachMode(t, func(t *testing.T, c spool.Config) {
			path := t.TempDir()
			d, _ := open(t, path, c)
			newSegment(t, d, "1", "2")
			closeDir(t, d)
			c.Head = head
			_, backlog := open(t, path, c)
			load(t, backlog[0])
			equal(t, "Bytes", string(backlog[0].Bytes()), head+"1,2")
		})
	}
}

// A process reads segments that are larger or smaller than its own, because an earlier process had
// other limits.
func TestSegmentsOfOtherSizesAreRead(t *testing.T) {
	eachMode(t, func(t *testing.T, c spool.Config) {
		path := t.TempDir()
		for i, room := range []int{4, 400, 1} {
			c.MaxMessages, c.MaxData = room, 16*room
			d, backlog := open(t, path, c)
			equal(t, "segments", len(backlog), i)
			for _, s := range backlog {
				load(t, s)
				equal(t, "messages", messages(s, "["), slices.Repeat([]string{"12"}, s.Len()))
			}
			s := newSegment(t, d)
			for s.Fits(2) {
				add(t, s, "12")
			}
			equal(t, "messages that fit", s.Len(), room)
			closeDir(t, d)
		}
	})
}

func TestFitsAndAppendAgreeAtTheBounds(t *testing.T) {
	eachMode(t, func(t *testing.T, c spool.Config) {
		d, _ := open(t, t.TempDir(), c)
		tests := []struct {
			name     string
			messages []string
			next     int // length of the next message
			fits     bool
		}{
			{"empty message", nil, 0, false},
			{"a message that fills the segment", nil, 63, true},
			{"a message of one byte more", nil, 64, false},
			{"a message that fills the rest", []string{"1"}, 61, true},
			{"no room for the comma", []string{"1"}, 62, false},
			{"the last message", []string{"1", "2", "3"}, 1, true},
			{"one message more", []string{"1", "2", "3", "4"}, 1, false},
		}
		for _, tt := range tests {
			t.Run(tt.name, func(t *testing.T) {
				s := newSegment(t, d, tt.messages...)
				before := string(s.Bytes())
				if got := s.Fits(tt.next); got != tt.fits {
					t.Errorf("Fits(%d) = %t after %q, want %t", tt.next, got, tt.messages, tt.fits)
				}
				m := []byte(strings.Repeat("m", tt.next))
				err := s.Append(m, spool.Checksum(m))
				if (err == nil) != tt.fits {
					t.Errorf("Append of %d bytes = %v after %q, want error: %t", tt.next, err, tt.messages, !tt.fits)
				}
				if err != nil {
					equal(t, "Bytes after an error", string(s.Bytes()), before)
				}
				remove(t, s)
			})
		}
	})
}

func TestOpenReturnsSegmentsInTheOrderTheyWereMade(t *testing.T) {
	eachMode(t, func(t *testing.T, c spool.Config) {
		path := t.TempDir()
		var want []string
		next := 0
		for range 3 {
			d, _ := open(t, path, c)
			var spare []*spool.Segment
			for i := range 7 {
				next++
				s := newSegment(t, d, fmt.Sprint(next))
				if i%2 == 0 {
					spare = append(spare, s)
					continue
				}
				want = append(want, fmt.Sprint(next))
				// Make the files spare, so that the next segment reuses one of them.
				for _, s := range spare {
					remove(t, s)
				}
				spare = nil
			}
			for _, s := range spare {
				remove(t, s)
			}
			closeDir(t, d)
		}
		_, backlog := open(t, path, c)
		var got []string
		for _, s := range backlog {
			load(t, s)
			got = append(got, messages(s, c.Head)...)
		}
		equal(t, "messages", got, want)
	})
}

func TestRemovedSegmentsLeaveSpareFilesForNewOnes(t *testing.T) {
	eachMode(t, func(t *testing.T, c spool.Config) {
		path := t.TempDir()
		d, _ := open(t, path, c)
		if s, _, err := d.Take(idA, start); s != nil || err != nil {
			t.Errorf("Take without spare files returned a segment: %t, error %v, want neither", s != nil, err)
		}
		var before []string
		for round := range 20 {
			a, b := newSegment(t, d, "1", "2"), newSegment(t, d, "3", "4", "5")
			equal(t, "Bytes", string(a.Bytes())+string(b.Bytes()), "[1,2[3,4,5")
			switch now := files(t, path); {
			case round == 0:
				before = now
			case round%2 == 1: // in odd rounds the two segments have swapped their files
				equal(t, "files", now, before)
			}
			remove(t, a)
			remove(t, b)
		}
		equal(t, "files", len(before), 2)

		many := []*spool.Segment{}
		for range 8 {
			many = append(many, newSegment(t, d, "1"))
		}
		for _, s := range many {
			remove(t, s)
		}
		equal(t, "files, all spare", len(files(t, path)), 5)
		if s, _, err := d.Take(idA, start); s == nil || err != nil {
			t.Errorf("Take with spare files returned a segment: %t, error %v, want a segment and no error", s != nil, err)
		}
		closeDir(t, d)
		equal(t, "files after Close", files(t, path), []string(nil))
	})
}

func TestNewReturnsErrFullAtMaxBytes(t *testing.T) {
	eachMode(t, func(t *testing.T, c spool.Config) {
		path := t.TempDir()
		c.MaxData = 2000
		size := int64(spool.SegmentSize(c))
		c.MaxBytes = 2*size + size/2
		d, _ := open(t, path, c)
		a, b := newSegment(t, d, "1"), newSegment(t, d, "2")
		refused := func() {
			t.Helper()
			if _, err := d.New(idA, start); !errors.Is(err, spool.ErrFull) {
				t.Errorf("New = %v, want ErrFull; %d of %d bytes used", err, d.Used(), c.MaxBytes)
			}
			if err := d.Prepare(1); !errors.Is(err, spool.ErrFull) {
				t.Errorf("Prepare = %v, want ErrFull", err)
			}
		}
		equal(t, "Used", d.Used(), 2*size)
		refused()
		for _, s := range []*spool.Segment{a, b} {
			if err := s.Unload(); err != nil {
				t.Fatal(err)
			}
		}
		onDisk := int64(0)
		for _, name := range files(t, path) {
			info, err := os.Stat(filepath.Join(path, name))
			if err != nil {
				t.Fatal(err)
			}
			onDisk += info.Size()
		}
		equal(t, "Used with unloaded segments", d.Used(), onDisk)
		if onDisk >= size {
			t.Errorf("two unloaded segments with a message each use %d bytes, want less than one of full size, %d", onDisk, size)
		}
		newSegment(t, d, "3")
		closeDir(t, d)

		d, backlog := open(t, path, c)
		equal(t, "segments", len(backlog), 3)
		equal(t, "Used", d.Used(), onDisk/2*3)
		four, five := newSegment(t, d, "4"), newSegment(t, d, "5")
		refused()
		load(t, backlog[0])
		equal(t, "Used after Load", d.Used(), onDisk/2*3+2*size)
		for _, s := range append(backlog, four, five) {
			remove(t, s)
		}
		equal(t, "Used after Remove", d.Used(), int64(0))
	})
}

func TestReadAtReadsALoadedSegment(t *testing.T) {
	eachMode(t, func(t *testing.T, c spool.Config) {
		d, _ := open(t, t.TempDir(), c)
		s := newSegment(t, d, `{"a":1}`, `{}`)
		read := func() {
			t.Helper()
			r := io.NewSectionReader(s, 0, int64(len(s.Bytes())))
			if err := iotest.TestReader(r, []byte(`[{"a":1},{}`)); err != nil {
				t.Error(err)
			}
			if n, err := s.ReadAt(make([]byte, 1), -1); err == nil {
				t.Errorf("ReadAt(-1) = %d, nil, want an error", n)
			}
		}
		read()
		if err := s.Unload(); err != nil {
			t.Fatal(err)
		}
		if n, err := s.ReadAt(make([]byte, 1), 0); n != 0 || err == nil {
			t.Errorf("ReadAt of an unloaded segment = %d, %v, want an error", n, err)
		}
		load(t, s)
		read()
		remove(t, s)
		if n, err := s.ReadAt(make([]byte, 1), 0); n != 0 || !errors.Is(err, spool.ErrClosed) {
			t.Errorf("ReadAt after Remove = %d, %v, want ErrClosed", n, err)
		}
	})
}

// TestLateReaders reads segments while they are unloaded, loaded and removed, and while their
// files are reused. A reader must get the bytes of its segment or an error.
func TestLateReaders(t *testing.T) {
	eachMode(t, func(t *testing.T, c spool.Config) {
		d, _ := open(t, t.TempDir(), c)
		var readers sync.WaitGroup
		for round := range soakenv.Seeds(t, 30) {
			want := fmt.Sprintf("[%q", strings.Repeat(string(rune('a'+int(round%26))), 20))
			s := newSegment(t, d, want[1:])
			started := make(chan struct{})
			readers.Go(func() {
				b := make([]byte, len(want))
				for first := true; ; first = false {
					n, err := s.ReadAt(b, 0)
					if first {
						close(started)
					}
					if errors.Is(err, spool.ErrClosed) {
						return
					}
					if n > 0 && string(b) != want {
						t.Errorf("ReadAt = %q, %v, want %q", b[:n], err, want)
						return
					}
				}
			})
			<-started
			if round%3 == 0 {
				if err := s.Unload(); err != nil {
					t.Error(err)
				}
				load(t, s)
			}
			remove(t, s)
		}
		readers.Wait()
	})
}

func TestCallsAfterCloseReturnErrClosed(t *testing.T) {
	eachMode(t, func(t *testing.T, c spool.Config) {
		path := t.TempDir()
		d, _ := open(t, path, c)
		kept, empty, waiting := newSegment(t, d, "1"), newSegment(t, d), newSegment(t, d, "2")
		if err := waiting.Unload(); err != nil {
			t.Fatal(err)
		}
		closeDir(t, d)
		closeDir(t, d)
		equal(t, "files", len(files(t, path)), 2)
		if _, err := d.New(idA, start); !errors.Is(err, spool.ErrClosed) {
			t.Errorf("New = %v, want ErrClosed", err)
		}
		if err := d.Prepare(1); !errors.Is(err, spool.ErrClosed) {
			t.Errorf("Prepare = %v, want ErrClosed", err)
		}
		for _, s := range []*spool.Segment{kept, waiting} {
			if _, err := s.Load(); !errors.Is(err, spool.ErrClosed) {
				t.Errorf("Load = %v, want ErrClosed", err)
			}
			if err := s.Remove(); !errors.Is(err, spool.ErrClosed) {
				t.Errorf("Remove = %v, want ErrClosed", err)
			}
			if err := s.Unload(); err != nil {
				t.Errorf("Unload = %v", err)
			}
			if s.Fits(1) || s.Append([]byte("1"), 0) == nil {
				t.Error("a segment of a closed folder accepts messages, want none")
			}
		}
		remove(t, empty)
		_, backlog := open(t, path, c)
		equal(t, "segments", len(backlog), 2)
	})
}

// TestManyAtOnce makes, unloads, loads and removes segments in several goroutines. Then Open finds
// exactly the segments that were not removed.
func TestManyAtOnce(t *testing.T) {
	eachMode(t, func(t *testing.T, c spool.Config) {
		for range soakenv.Seeds(t, 1) {
			path := t.TempDir()
			c.Sync = time.Millisecond
			d, _ := open(t, path, c)
			const goroutines, rounds = 8, 20
			var all sync.WaitGroup
			var mu sync.Mutex
			left := map[string]bool{}
			for g := range goroutines {
				all.Go(func() {
					for i := range rounds {
						m := fmt.Sprintf("%d", 1000*g+i)
						s, err := d.New(idA, start)
						if err != nil {
							t.Errorf("New: %v", err)
							return
						}
						if err := s.Append([]byte(m), spool.Checksum([]byte(m))); err != nil {
							t.Errorf("Append: %v", err)
							return
						}
						if i%3 == 0 {
							s.Unload()
							if _, err := s.Load(); err != nil {
								t.Errorf("Load: %v", err)
							}
						}
						if i%5 == 0 {
							mu.Lock()
							left[m] = true
							mu.Unlock()
						} else if err := s.Remove(); err != nil {
							t.Errorf("Remove: %v", err)
						}
					}
				})
			}
			all.Wait()
			closeDir(t, d)
			again, backlog := open(t, path, c)
			got := map[string]bool{}
			for _, s := range backlog {
				load(t, s)
				for _, m := range messages(s, c.Head) {
					got[m] = true
				}
			}
			closeDir(t, again)
			equal(t, "messages left", got, left)
		}
	})
}

func TestOnlyTheOwnerMayReadTheFiles(t *testing.T) {
	if runtime.GOOS == "windows" {
		return // Windows derives the permissions of files from their folder
	}
	eachMode(t, func(t *testing.T, c spool.Config) {
		path := filepath.Join(t.TempDir(), "spool")
		d, _ := open(t, path, c)
		newSegment(t, d, "1")
		want := map[string]fs.FileMode{path: 0o700}
		got := map[string]fs.FileMode{}
		for _, name := range append(files(t, path), "lock") {
			want[filepath.Join(path, name)] = 0o600
		}
		for name := range want {
			info, err := os.Stat(name)
			if err != nil {
				t.Fatal(err)
			}
			got[name] = info.Mode().Perm()
		}
		equal(t, "permissions", got, want)
		equal(t, "files and folder", len(got), 3)
	})
}

func TestOpenOfAFileReturnsAnError(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := spool.Open(path, small()); err == nil {
		t.Error("Open of a file = nil, want an error")
	}
}

func TestAppendAllocatesNothing(t *testing.T) {
	eachMode(t, func(t *testing.T, c spool.Config) {
		c.MaxMessages, c.MaxData = 10_000, 1<<20
		d, _ := open(t, t.TempDir(), c)
		s := newSegment(t, d)
		message := []byte(`{"event":"Order Completed"}`)
		if n := testing.AllocsPerRun(1000, func() {
			if err := s.Append(message, spool.Checksum(message)); err != nil {
				t.Fatal(err)
			}
			if err := s.Commit(s.Len()); err != nil {
				t.Fatal(err)
			}
		}); n != 0 {
			t.Errorf("an append allocates %v times, want 0", n)
		}
	})
}
