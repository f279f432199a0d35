package spool_test

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/hookferry/analytics/internal/spool"
)

const (
	killNotes = "SPOOL_TEST_NOTES" // file
	killFirst = "SPOOL_TEST_FIRST" // number of the first message
	killPlain = "SPOOL_TEST_PLAIN"
)

// What a process that will be killed notes, all numbers of messages. Messages
// leave in the order in which they came.
const (
	noteAppended = iota // Append has returned
	noteRemoving        // Remove has been called for messages up to this one
	noteRemoved         // and has returned
	notes
)

// A notebook survives the process, like a segment, and costs as little: so the
// kill comes while something else is going on.
type notebook struct {
	f     *os.File
	words []atomic.Uint64 // nil where files cannot be mapped
}

func newNotebook(name string) (*notebook, error) {
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil || !spool.CanMap {
		return &notebook{f: f}, err
	}
	memory, err := spool.MapFile(f, 8*notes)
	if err != nil {
		return nil, err
	}
	return &notebook{f, unsafe.Slice((*atomic.Uint64)(unsafe.Pointer(&memory[0])), notes)}, nil
}

func (n *notebook) set(what int, number int) error {
	if n.words != nil {
		n.words[what].Store(uint64(number))
		return nil
	}
	_, err := n.f.WriteAt(binary.NativeEndian.AppendUint64(nil, uint64(number)), int64(8*what))
	return err
}

func killConfig() spool.Config {
	c := spool.Config{Head: `{"batch":[`, MaxData: 4000, MaxMessages: 50}
	c.MaxBytes = int64(12 * spool.SegmentSize(c))
	c.Spare = 2
	if os.Getenv(killPlain) != "" {
		spool.Plain(&c)
	}
	return c
}

// numbered returns the message of a number.
func numbered(n int) []byte {
	return fmt.Appendf(nil, `{"n":%d,"text":"%s"}`, n, strings.Repeat("x", n*7919%150))
}

func numberOf(message string) int {
	digits, _, _ := strings.Cut(strings.TrimPrefix(message, `{"n":`), ",")
	n, err := strconv.Atoi(digits)
	if err != nil || string(numbered(n)) != message {
		return -1
	}
	return n
}

// killChild appends, unloads, loads and removes until it is killed.
func killChild() error {
	note, err := newNotebook(os.Getenv(killNotes))
	if err != nil {
		return err
	}
	n, err := strconv.Atoi(os.Getenv(killFirst))
	if err != nil {
		return err
	}
	dir, queue, err := spool.Open(os.Getenv(childFolder), killConfig())
	if err != nil {
		return err
	}
	fmt.Println("open")
	removeFirst := func() error {
		s := queue[0]
		queue = queue[1:]
		if lost, err := s.Load(); lost != 0 || err != nil {
			return fmt.Errorf("Load = %d, %w", lost, err)
		}
		list := messages(s, killConfig().Head)
		last := numberOf(list[len(list)-1])
		if err := note.set(noteRemoving, last); err != nil {
			return err
		}
		if err := s.Remove(); err != nil {
			return err
		}
		return note.set(noteRemoved, last)
	}
	for ; ; n++ {
		m := numbered(n)
		if len(queue) == 0 || !queue[len(queue)-1].Fits(len(m)) {
			if len(queue) > 0 && rand.IntN(3) == 0 {
				if err := queue[len(queue)-1].Unload(); err != nil {
					return err
				}
			}
			for len(queue) > 0 && rand.IntN(8) != 0 {
				if err := removeFirst(); err != nil {
					return err
				}
			}
			s, err := dir.New(spool.ID{}, time.Now())
			for err == spool.ErrFull {
				if err := removeFirst(); err != nil {
					return err
				}
				s, err = dir.New(spool.ID{}, time.Now())
			}
			if err != nil {
				return err
			}
			queue = append(queue, s)
		}
		if err := queue[len(queue)-1].Append(m, spool.Checksum(m)); err != nil {
			return err
		}
		if err := note.set(noteAppended, n); err != nil {
			return err
		}
	}
}

// TestKill kills a process at random moments, again and again on the same
// folder, and finds each message whose Append had returned unless it was about
// to be removed, none that was removed, and at most one that it was about to
// append.
func TestKill(t *testing.T) {
	rounds := 40
	if testing.Short() {
		rounds = 10
	}
	eachMode(t, func(t *testing.T, c spool.Config) {
		if spool.IsPlain(c) {
			t.Setenv(killPlain, "1")
		}
		path, notesFile := t.TempDir(), filepath.Join(t.TempDir(), "notes")
		if err := os.WriteFile(notesFile, make([]byte, 8*notes), 0o600); err != nil {
			t.Fatal(err)
		}
		next, found, further := 1, 0, 0
		for round := range rounds {
			cmd := child("kill", path, killNotes+"="+notesFile, fmt.Sprintf("%s=%d", killFirst, next))
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			lines := bufio.NewReader(out)
			if line, err := lines.ReadString('\n'); line != "open\n" {
				t.Fatalf("round %d: the process says %q, %v", round, line, err)
			}
			kill := time.AfterFunc(rand.N(10*time.Millisecond), func() { cmd.Process.Kill() })
			if rest, _ := lines.ReadString('\n'); rest != "" {
				t.Fatalf("round %d: the process ended by itself: %s", round, rest)
			}
			cmd.Wait()
			kill.Stop()

			b, err := os.ReadFile(notesFile)
			if err != nil {
				t.Fatal(err)
			}
			var note [notes]int
			for i := range note {
				note[i] = int(binary.NativeEndian.Uint64(b[8*i:]))
			}
			d, backlog := open(t, path, killConfig())
			var got []int
			for _, s := range backlog {
				load(t, s)
				for _, m := range messages(s, killConfig().Head) {
					got = append(got, numberOf(m))
				}
			}
			closeDir(t, d)
			first := note[noteRemoved] + 1
			if len(got) > 0 && got[0] == note[noteRemoving]+1 || len(got) == 0 {
				first = note[noteRemoving] + 1
			}
			// One that was appended, but not yet noted, may have been removed since.
			last := max(note[noteAppended], note[noteRemoving])
			if len(got) > 0 && got[len(got)-1] == last+1 {
				last++
				further++
			}
			want := []int{}
			for n := first; n <= last; n++ {
				want = append(want, n)
			}
			if !slices.Equal(got, want) {
				t.Fatalf("round %d: appended %d, removing %d, removed %d; found %d messages %v, want %d to %d",
					round, note[noteAppended], note[noteRemoving], note[noteRemoved], len(got), got, first, last)
			}
			found += len(got)
			next = last + 1
		}
		if next < rounds || found == 0 {
			t.Fatalf("%d messages appended, %d found: the process was killed too early to prove anything", next-1, found)
		}
		t.Logf("%d kills: %d messages appended, %d found, %d of them of an Append that had not returned", rounds, next-1, found, further)
	})
}
