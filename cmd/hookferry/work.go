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

	"golang.org/x/term"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
)

// confirm asks a question on the terminal, unless --yes is given. It returns nil if the answer is
// yes. Without a terminal and without --yes, it returns a usagef error.
func (c *call) confirm(ctx context.Context, format string, args ...any) error {
	if c.yes {
		return nil
	}
	question := clean(fmt.Sprintf(format, args...))
	in, ok := c.stdin.(*os.File)
	if !ok || !term.IsTerminal(int(in.Fd())) {
		return usagef("%s There is no terminal to answer on: add --yes", question)
	}
	fmt.Fprintf(c.stderr, "%s [y/N] ", question)
	answer := make(chan string, 1)
	go func() { // runs until the user answers, or the process ends
		line, _ := bufio.NewReader(in).ReadString('\n')
		answer <- line
	}()
	select {
	case <-ctx.Done():
		fmt.Fprintln(c.stderr)
		return errors.New("interrupted; nothing was done")
	case line := <-answer:
		switch strings.ToLower(strings.TrimSpace(line)) {
		case "y", "yes":
			return nil
		}
		return errors.New("nothing was done")
	}
}

// work sends a long request, and shows its progress on standard error. It returns the last progress
// that the server sent. The argument done is the verb for an item, such as "replayed". If the
// server does not know the total, part returns the fraction of the work that is done. part may be
// nil.
func (c *call) work(ctx context.Context, done string, part func() float64, r api.Request) (api.Progress, error) {
	return c.follow(ctx, newMeter(c.screen(c.stderr), done), part, api.Work(ctx, c.client, r))
}

// follow shows each progress with the meter and, with --json, prints it.
func (c *call) follow(ctx context.Context, m *meter, part func() float64, stream iter.Seq2[api.Progress, error]) (last api.Progress, err error) {
	defer m.end()
	for progress, err := range stream {
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
			if err := printJSON(c.stdout, progress); err != nil {
				return last, err
			}
		}
		fraction := -1.0
		if part != nil {
			fraction = part()
		}
		m.show(int64(last.Done), int64(last.Total), fraction)
	}
	return last, nil
}

// workOn calls work for a request that selects items, and prints how many items were done, unless
// --json is given. If no item was done, workOn returns an error whose text is the argument none.
func (c *call) workOn(ctx context.Context, thing, done, none string, r api.Request) error {
	end, err := c.work(ctx, done, nil, r)
	switch {
	case err != nil:
		return err
	case end.Done == 0:
		return nothing(errors.New(none))
	case !c.json:
		_, err = fmt.Fprintf(c.stdout, "%s %s\n", counted(end.Done, thing), done)
	}
	return err
}

// openLines opens a file, or standard input if name is "-". part returns the fraction of the file
// that was read, or a negative number if the size is unknown. part is nil for standard input.
func (c *call) openLines(name string) (file io.ReadCloser, part func() float64, err error) {
	if name == "-" {
		return io.NopCloser(c.stdin), nil, nil
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, nil, err
	}
	info, err := f.Stat()
	if err != nil {
		return nil, nil, errors.Join(err, f.Close())
	}
	return f, func() float64 {
		at, err := f.Seek(0, io.SeekCurrent)
		if err != nil || info.Size() == 0 {
			return -1
		}
		return float64(at) / float64(info.Size())
	}, nil
}
