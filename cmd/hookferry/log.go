package main

import (
	"bytes"
	"io"
	"sync"
	"time"
)

// maxLog bounds the lines of the log that wait for the reader of standard error, in bytes. At the
// bound, further lines are left out and counted.
const maxLog = 1 << 20

// A logWriter writes lines to another writer in a goroutine of its own. So nobody who logs waits for
// the reader of standard error, which may read slowly, stop reading, or be gone.
type logWriter struct {
	to   io.Writer
	tell func(count uint64) // says how many lines were left out; called when writing works again
	more chan struct{}      // has an element if lines wait; closed by Close
	done chan struct{}      // closed when the goroutine ends

	mu      sync.Mutex
	waiting []byte
	writing int // bytes of lines that the goroutine has taken and not written yet
	leftOut uint64
	closed  bool
}

// newLogWriter returns a logWriter, which must be closed. A nil tell is not called.
func newLogWriter(to io.Writer, tell func(count uint64)) *logWriter {
	l := &logWriter{to: to, tell: tell, more: make(chan struct{}, 1), done: make(chan struct{})}
	go l.write()
	return l
}

// Write implements [io.Writer]. It takes whole lines, never blocks and never fails.
func (l *logWriter) Write(lines []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || l.writing+len(l.waiting)+len(lines) > maxLog {
		l.leftOut++
		return len(lines), nil
	}
	l.waiting = append(l.waiting, lines...)
	select {
	case l.more <- struct{}{}:
	default: // the goroutine has not looked yet
	}
	return len(lines), nil
}

// write writes the lines until Close.
func (l *logWriter) write() {
	defer close(l.done)
	var told uint64
	var lines []byte
	for range l.more {
		l.mu.Lock()
		lines, l.waiting = l.waiting, lines[:0]
		l.writing = len(lines)
		l.mu.Unlock()
		works := false
		for line := range bytes.Lines(lines) {
			_, err := l.to.Write(line)
			works = err == nil
			l.mu.Lock()
			l.writing -= len(line)
			if !works {
				l.leftOut++
			}
			l.mu.Unlock()
		}
		if count := l.count(); works && count > told && l.tell != nil {
			l.tell(count - told)
			told = count
		}
	}
}

// count returns how many lines were left out since the start.
func (l *logWriter) count() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.leftOut
}

// Close waits until all lines are written, but at most a second: a reader that does not read must
// not keep the process from ending. The end of the process ends the goroutine.
func (l *logWriter) Close() {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	close(l.more)
	select {
	case <-l.done:
	case <-time.After(time.Second):
	}
}
