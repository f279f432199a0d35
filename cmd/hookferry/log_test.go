package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"
)

// TestLogNeverWaitsForItsReader shows that lines beyond a bound are left out while the reader of
// standard error does not read, and that the log says how many when it reads again.
func TestLogNeverWaitsForItsReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reader, stderr := io.Pipe()
		l := newLogWriter(stderr, func(count uint64) { fmt.Fprintf(stderr, "%d left out\n", count) })
		line := strings.Repeat("x", 1023) + "\n"
		for range maxLog/len(line) + 3 {
			io.WriteString(l, line)
			synctest.Wait()
		}
		if n := l.count(); n != 3 {
			t.Errorf("%d lines are left out, want 3", n)
		}
		var out bytes.Buffer
		read := make(chan error)
		go func() {
			_, err := io.Copy(&out, reader)
			read <- err
		}()
		synctest.Wait()
		io.WriteString(l, "the next\n")
		l.Close()
		stderr.Close()
		if err := <-read; err != nil {
			t.Fatal(err)
		}
		if want := line + "3 left out\n" + strings.Repeat(line, maxLog/len(line)-1) + "the next\n"; out.String() != want {
			t.Errorf("the log has %d bytes and ends with %q, want %d bytes", out.Len(), out.String()[max(0, out.Len()-50):], len(want))
		}
	})
}

// A failingWriter fails with its error, if it has one.
type failingWriter struct {
	bytes.Buffer
	err error
}

func (w *failingWriter) Write(b []byte) (int, error) {
	if w.err != nil {
		return 0, w.err
	}
	return w.Buffer.Write(b)
}

// TestLogCountsLinesThatCannotBeWritten shows that a failure of standard error, such as a full disk,
// loses lines of the log that are counted, and that the log goes on after it.
func TestLogCountsLinesThatCannotBeWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := &failingWriter{err: errors.New("no space")}
		l := newLogWriter(out, func(count uint64) { fmt.Fprintf(out, "%d left out\n", count) })
		io.WriteString(l, "1\n")
		io.WriteString(l, "2\n")
		synctest.Wait()
		out.err = nil
		io.WriteString(l, "3\n")
		synctest.Wait()
		io.WriteString(l, "4\n")
		l.Close()
		io.WriteString(l, "5\n")
		if got, n := out.String(), l.count(); got != "3\n2 left out\n4\n" || n != 3 {
			t.Errorf("the log is %q, and %d lines are left out, want 3", got, n)
		}
	})
}
