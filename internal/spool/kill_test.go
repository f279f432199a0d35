package spool_test

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/hookferry/analytics/internal/soakenv"
	"github.com/hookferry/analytics/internal/spool"
	"github.com/hookferry/analytics/internal/testkit"
)

const (
	// Environment variables of the child process that TestKill kills.
	killNotes = "SPOOL_TEST_NOTES" // path of the file of the notebook
	killFirst = "SPOOL_TEST_FIRST" // number of the first message
	killPlain = "SPOOL_TEST_PLAIN" // if set, the process does not map files
	killSeed  = "SPOOL_TEST_SEED"
)

// Kinds of notes. A note has the number of the latest message of its kind. Messages are removed
// in the order in which they were appended.
const (
	noteAppended = iota // Append has returned
	noteRemoving        // Remove is about to be called for messages up to this one
	noteRemoved         // Remove has returned
	noteKinds
)

// A notebook keeps the latest note of each kind in a file, which survives the end of the process.
// Making a note is so fast that a kill rarely happens during it.
type notebook struct {
	f     *os.File
	words []atomic.Uint64 // nil where files cannot be mapped
}

func newNotebook(name string) (*notebook, error) {
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil || !spool.CanMap {
		return &notebook{f: f}, err
	}
	memory, err := spool.MapFile(f, 8*noteKinds)
	if err != nil {
		return nil, err
	}
	return &notebook{f, unsafe.Slice((*atomic.Uint64)(unsafe.Pointer(&memory[0])), noteKinds)}, nil
}

func (n *notebook) set(kind int, number int) error {
	if n.words != nil {
		n.words[kind].Store(uint64(number))
		return nil
	}
	_, err := n.f.WriteAt(binary.NativeEndian.AppendUint64(nil, uint64(number)), int64(8*kind))
	return err
}

func killConfig() spool.Config {
	c := spool.Config{Head: `{"batch":[`, MaxData: 4000, MaxMessages: 50}
	c.MaxBytes = int64(12 * spool.SegmentSize(c))
	if os.Getenv(killPlain) != "" {
		spool.Plain(&c)
	}
	return c
}

// numbered returns the message with a given number.
func numbered(n int) []byte {
	return fmt.Appendf(nil, `{"n":%d,"text":"%s"}`, n, strings.Repeat("x", n*7919%150))
}

// numberOf returns the number of a message, or -1 if the message is not one of numbered.
func numberOf(message string) int {
	digits, _, _ := strings.Cut(strings.TrimPrefix(message, `{"n":`), ",")
	n, err := strconv.Atoi(digits)
	if err != nil || string(numbered(n)) != message {
		return -1
	}
	return n
}

// A writer appends numbered messages, and at random unloads, loads and removes segments. It makes
// a note after each append, and before and after it removes a segment.
type writer struct {
	config spool.Config
	dir    *spool.Dir
	queue  []*spool.Segment
	random *rand.Rand
	note   func(kind, number int) error
}

func (w *writer) removeFirst() error {
	s := w.queue[0]
	w.queue = w.queue[1:]
	if lost, err := s.Load(); lost != 0 || err != nil {
		return fmt.Errorf("Load = %d, %w", lost, err)
	}
	list := messages(s, w.config.Head)
	last := numberOf(list[len(list)-1])
	if err := w.note(noteRemoving, last); err != nil {
		return err
	}
	if err := s.Remove(); err != nil {
		return err
	}
	return w.note(noteRemoved, last)
}

func (w *writer) newSegment() error {
	if len(w.queue) > 0 && w.random.IntN(3) == 0 {
		if err := w.queue[len(w.queue)-1].Unload(); err != nil {
			return err
		}
	}
	for len(w.queue) > 0 && w.random.IntN(8) != 0 {
		if err := w.removeFirst(); err != nil {
			return err
		}
	}
	s, err := w.dir.New(spool.ID{}, time.Now())
	for err == spool.ErrFull {
		if err := w.removeFirst(); err != nil {
			return err
		}
		s, err = w.dir.New(spool.ID{}, time.Now())
	}
	if err == nil {
		w.queue = append(w.queue, s)
	}
	return err
}

func (w *writer) append(n int) error {
	m := numbered(n)
	if len(w.queue) == 0 || !w.queue[len(w.queue)-1].Fits(len(m)) {
		if err := w.newSegment(); err != nil {
			return err
		}
	}
	if err := w.queue[len(w.queue)-1].Append(m, spool.Checksum(m)); err != nil {
		return err
	}
	return w.note(noteAppended, n)
}

// checkFound opens the folder of a writer that was stopped at some moment, whose notes are note.
// The folder must have each message whose Append had returned, except messages that the writer
// was removing or had removed. It may have one message whose Append had not returned. checkFound
// returns the numbers of the messages in the folder, and the number of the next message.
func checkFound(t *testing.T, path string, c spool.Config, note [noteKinds]int) (got []int, next int) {
	t.Helper()
	d, backlog := open(t, path, c)
	for _, s := range backlog {
		load(t, s)
		for _, m := range messages(s, c.Head) {
			got = append(got, numberOf(m))
		}
	}
	closeDir(t, d)
	first := note[noteRemoved] + 1
	if len(got) > 0 && got[0] == note[noteRemoving]+1 || len(got) == 0 {
		first = note[noteRemoving] + 1
	}
	// The writer may have removed a message whose append it had not noted yet.
	last := max(note[noteAppended], note[noteRemoving])
	if len(got) > 0 && got[len(got)-1] == last+1 {
		last++
	}
	var want []int
	for n := first; n <= last; n++ {
		want = append(want, n)
	}
	if !slices.Equal(got, want) {
		t.Fatalf("appended %d, removing %d, removed %d; found %d messages %v, want %d to %d",
			note[noteAppended], note[noteRemoving], note[noteRemoved], len(got), got, first, last)
	}
	return got, last + 1
}

// After every step of a writer, a copy of its folder has all messages that it should have. A kill
// at that moment would leave the same files.
func TestFoundAfterEveryStep(t *testing.T) {
	eachMode(t, func(t *testing.T, c spool.Config) {
		c.MaxData, c.MaxMessages = 500, 5
		c.MaxBytes = int64(4 * spool.SegmentSize(c))
		for seed := range soakenv.Seeds(t, 1) {
			path, copied := t.TempDir(), t.TempDir()
			d, _ := open(t, path, c)
			var note [noteKinds]int
			found := 0
			w := &writer{config: c, dir: d, random: rand.New(rand.NewPCG(seed, 0)), note: func(kind, number int) error {
				note[kind] = number
				for _, name := range files(t, copied) {
					if err := os.Remove(filepath.Join(copied, name)); err != nil {
						return err
					}
				}
				for _, name := range files(t, path) {
					b, err := os.ReadFile(filepath.Join(path, name))
					if err != nil {
						return err
					}
					if err := os.WriteFile(filepath.Join(copied, name), b, 0o600); err != nil {
						return err
					}
				}
				got, _ := checkFound(t, copied, c, note)
				found += len(got)
				return nil
			}}
			for n := 1; n <= 40; n++ {
				if err := w.append(n); err != nil {
					t.Fatalf("seed %d: %v", seed, err)
				}
			}
			if note[noteRemoved] == 0 || found < 40 {
				t.Errorf("seed %d: removed %d messages, found %d in all copies, want more, so that the test proves something", seed, note[noteRemoved], found)
			}
			closeDir(t, d)
		}
	})
}

// killChild is the child process "kill". It appends messages until it is killed.
func killChild() error {
	book, err := newNotebook(os.Getenv(killNotes))
	if err != nil {
		return err
	}
	seed, err := strconv.ParseUint(os.Getenv(killSeed), 10, 64)
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
	w := &writer{config: killConfig(), dir: dir, queue: queue, random: rand.New(rand.NewPCG(seed, 1)), note: book.set}
	for ; err == nil; n++ {
		err = w.append(n)
	}
	return err
}

// TestKill kills a writing process at random moments, again and again on the same folder. Each
// time it checks the messages in the folder.
func TestKill(t *testing.T) {
	length, seed := soakenv.Long(t, "spool-kill")
	random := rand.New(rand.NewPCG(seed, 0))
	eachMode(t, func(t *testing.T, c spool.Config) {
		if spool.IsPlain(c) {
			t.Setenv(killPlain, "1")
		}
		path, notesFile := t.TempDir(), filepath.Join(t.TempDir(), "notes")
		if err := os.WriteFile(notesFile, make([]byte, 8*noteKinds), 0o600); err != nil {
			t.Fatal(err)
		}
		next, found, rounds := 1, 0, 0
		for end := time.Now().Add(length); time.Now().Before(end); rounds++ {
			writing := testkit.KillAtEnd(t, child("kill", path, killNotes+"="+notesFile,
				fmt.Sprintf("%s=%d", killFirst, next), fmt.Sprintf("%s=%d", killSeed, random.Uint64())))
			if _, err := writing.Await(regexp.MustCompile("open\n")); err != nil {
				t.Fatal(err)
			}
			select {
			case <-time.After(time.Duration(random.Int64N(int64(10 * time.Millisecond)))):
				writing.Kill()
			case <-writing.Exited():
				t.Fatalf("the process ended before it was killed: %s", writing.Output())
			}
			b, err := os.ReadFile(notesFile)
			if err != nil {
				t.Fatal(err)
			}
			var note [noteKinds]int
			for i := range note {
				note[i] = int(binary.NativeEndian.Uint64(b[8*i:]))
			}
			var got []int
			got, next = checkFound(t, path, killConfig(), note)
			found += len(got)
		}
		if next < rounds || found == 0 {
			t.Fatalf("%d messages appended, %d found: the process was killed too early to prove anything", next-1, found)
		}
		t.Logf("%d kills: %d messages appended, %d found", rounds, next-1, found)
	})
}
