package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
)

// The exit statuses.
const (
	exitOK      = 0
	exitFailure = 1
	exitUsage   = 2
)

// A process is what the operating system gives a command.
type process struct {
	getenv         func(string) string
	stdout, stderr io.Writer
}

// A command is one of the words that may follow "hookferry".
type command struct {
	name    string
	summary string
	// run does what the command is for, until ctx is done. A *usageError says
	// that it was called wrongly, flag.ErrHelp that it has printed its help.
	run func(ctx context.Context, args []string, p process) error
}

func commands() []command {
	return []command{
		{"serve", "accept calls and forward them to webhooks", serve},
		{"listen", "receive webhooks and print them", listen},
		{"send", "send one call", send},
		{"store", "check, compact or rescue what serve keeps", store},
		{"version", "print the version", printVersion},
		{"help", "print this text", printHelp},
	}
}

// A usageError is a mistake in how a command was called.
type usageError struct{ problem string }

func (e *usageError) Error() string { return e.problem }

func usagef(format string, args ...any) error {
	return &usageError{fmt.Sprintf(format, args...)}
}

// run runs the command that args name, and returns the exit status.
func run(ctx context.Context, args []string, p process) int {
	if len(args) == 0 {
		writeHelp(p.stderr)
		return exitUsage
	}
	name := args[0]
	switch name {
	case "-h", "-help", "--help":
		name = "help"
	case "-version", "--version":
		name = "version"
	}
	for _, c := range commands() {
		if c.name == name {
			return exitStatus(p.stderr, name, c.run(ctx, args[1:], p))
		}
	}
	return exitStatus(p.stderr, "", usagef("no command %q", name))
}

// exitStatus reports err, if it is one, on a line of its own.
func exitStatus(stderr io.Writer, command string, err error) int {
	name := "hookferry"
	if command != "" {
		name += " " + command
	}
	var usage *usageError
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
		return exitOK
	case errors.As(err, &usage):
		fmt.Fprintf(stderr, "%s: %v\nRun '%s -h' for help.\n", name, err, name)
		return exitUsage
	default:
		fmt.Fprintf(stderr, "%s: %v\n", name, err)
		return exitFailure
	}
}

func printHelp(_ context.Context, args []string, p process) error {
	if len(args) > 0 {
		return usagef("unexpected argument %q; 'hookferry COMMAND -h' explains a command", args[0])
	}
	writeHelp(p.stdout)
	return nil
}

func writeHelp(w io.Writer) {
	fmt.Fprint(w, `Hookferry accepts analytics calls and forwards each of them as a signed webhook.

Usage: hookferry COMMAND [flags]

Commands:
`)
	for _, c := range commands() {
		fmt.Fprintf(w, "  %-9s %s\n", c.name, c.summary)
	}
	fmt.Fprint(w, `
Try it, in three terminals:
  hookferry listen
  hookferry serve -webhook http://localhost:9000/hook
  hookferry send track -user u1 -event "Signed Up"

'hookferry COMMAND -h' explains a command.
Exit status: 0 done, 1 failed, 2 called wrongly.
`)
}
