package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"strings"
	"time"

	"golang.org/x/term"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
)

// confirm returns nil if the answer to a question on the terminal is yes, or --yes is given. Without
// a terminal and --yes, it returns a usagef error.
func (c *command) confirm(ctx context.Context, format string, args ...any) error {
	if c.yes {
		return nil
	}
	question := clean(fmt.Sprintf(format, args...))
	in, ok := c.process.stdin.(*os.File)
	if !ok || !term.IsTerminal(int(in.Fd())) {
		return usagef("%s There is no terminal to answer on: add --yes", question)
	}
	fmt.Fprintf(c.process.stderr, "%s [y/N] ", question)
	answer := make(chan string, 1)
	go func() { // runs until the user answers, or the process ends
		line, _ := bufio.NewReader(in).ReadString('\n')
		answer <- strings.ToLower(strings.TrimSpace(line))
	}()
	select {
	case <-ctx.Done():
		fmt.Fprintln(c.process.stderr)
		return errors.New("interrupted; nothing was done")
	case text := <-answer:
		if text == "y" || text == "yes" {
			return nil
		}
		return errors.New("nothing was done")
	}
}

// work sends a long request, shows its progress on standard error, and returns the last progress.
// The argument done is the verb for an item, such as "retried".
func (c *command) work(ctx context.Context, done string, r api.Request) (api.Progress, error) {
	m := newMeter(c.process.screen(c.process.stderr), done)
	if in, ok := r.Body.(*input); ok {
		m.part = in.part
	}
	return c.follow(ctx, m, api.Work(ctx, c.client, r))
}

// follow shows each progress with the meter and, with --json, prints it.
func (c *command) follow(ctx context.Context, m *meter, stream iter.Seq2[api.Progress, error]) (last api.Progress, err error) {
	defer m.end()
	for progress, err := range stream {
		if err != nil {
			last.Done = max(last.Done, progress.Done) // the line with the error has the latest count
		}
		var refused *api.Error
		switch {
		case ctx.Err() != nil:
			return last, fmt.Errorf("interrupted: %s were %s; perhaps a few more, on their way", grouped(last.Done), m.verb)
		case err != nil && last.Done == 0 && errors.As(err, &refused):
			return last, err
		case err != nil:
			return last, fmt.Errorf("%s were %s, then: %w", grouped(last.Done), m.verb, err)
		}
		last = progress
		if c.json {
			if err := printJSON(c.process.stdout, progress); err != nil {
				return last, err
			}
		}
		m.show(int64(last.Done), int64(last.Total))
	}
	return last, nil
}

// An input is a file that the user named, or standard input.
type input struct {
	io.ReadCloser
	part func() float64 // the fraction that was read; nil if the size is unknown
}

// open opens a file, or standard input if name is "-".
func (c *command) open(name string) (*input, error) {
	if name == "-" {
		return &input{ReadCloser: io.NopCloser(c.process.stdin)}, nil
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	in := &input{ReadCloser: f}
	if info, err := f.Stat(); err == nil && info.Size() > 0 {
		in.part = func() float64 {
			at, _ := f.Seek(0, io.SeekCurrent)
			return float64(at) / float64(info.Size())
		}
	}
	return in, nil
}

const (
	meterRedraw = 100 * time.Millisecond // the shortest time between two lines of a meter on a terminal
	meterLine   = 5 * time.Second        // and elsewhere
)

// A meter shows the progress of long work: as a bar on a terminal, elsewhere as lines. If the work
// ends before the first of them is due, the meter prints nothing.
type meter struct {
	screen screen
	verb   string               // such as "retried"
	amount func(float64) string // formats how many items are done, and how many are done per second
	part   func() float64       // the fraction of work whose total is unknown; nil if that is unknown, too
	begin  time.Time
	shown  time.Time
}

func newMeter(s screen, verb string) *meter {
	now := time.Now()
	return &meter{screen: s, verb: verb, amount: rate, begin: now, shown: now}
}

// show displays the progress. If total is 0, the total is unknown.
func (m *meter) show(done, total int64) {
	now, every := time.Now(), meterLine
	if m.screen.terminal {
		every = meterRedraw
	}
	if now.Sub(m.shown) < every {
		return
	}
	m.shown = now
	text, fraction := m.verb+" "+m.amount(float64(done)), -1.0
	switch {
	case total > 0:
		text += " of " + m.amount(float64(total))
		fraction = float64(done) / float64(total)
	case m.part != nil:
		fraction = m.part()
	}
	took := now.Sub(m.begin)
	text += ", " + m.amount(float64(done)/took.Seconds()) + "/s"
	if fraction > 0 && fraction <= 1 && took > 2*time.Second {
		text += ", " + spell(time.Duration(float64(took)*(1/fraction-1))) + " left"
	}
	if !m.screen.terminal {
		fmt.Fprintln(m.screen, text)
		return
	}
	if fraction >= 0 {
		text = bar(min(fraction, 1)) + " " + text
	}
	// A text in the last column would begin a new line.
	fmt.Fprint(m.screen, eraseLine, m.screen.cut(text, m.screen.width-1))
}

func (m *meter) end() {
	if m.screen.terminal && m.shown != m.begin {
		fmt.Fprint(m.screen, eraseLine)
	}
}

const eraseLine = "\r\x1b[K"

func bar(fraction float64) string {
	const width = 20
	full := int(fraction * width)
	return fmt.Sprintf("[%s%s] %3d%%", strings.Repeat("#", full), strings.Repeat("-", width-full), int(fraction*100))
}
