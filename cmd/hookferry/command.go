package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
)

// The exit statuses.
const (
	exitOK      = 0
	exitFailure = 1
	exitUsage   = 2
	exitNothing = 3
)

// A process is what the operating system gives a command.
type process struct {
	getenv         func(string) string
	stdin          io.Reader
	stdout, stderr io.Writer
	// listen and dial are those of its network. Nil means the system's.
	listen func(ctx context.Context, network, address string) (net.Listener, error)
	dial   func(ctx context.Context, network, address string) (net.Conn, error)
}

// transport returns an HTTP transport on the network of the process.
func (p process) transport() *http.Transport {
	t := http.DefaultTransport.(*http.Transport).Clone()
	if p.dial != nil {
		t.DialContext = p.dial
	}
	return t
}

// A command is one of the words that may follow "hookferry", or, of a command
// that has others of its own, one of the words that may follow that.
type command struct {
	name    string
	summary string
	help    string // what -h prints, above the flags if it has some
	args    string // its arguments, as the help has them; "" if it takes none
	// define defines the flags, and returns what is done once they are read.
	// It is nil if there are commands instead.
	define   func(o *options) action
	commands []command
}

// An action does what its command is for, until ctx is done. A *usageError says
// that it was called wrongly. Arguments may be left out, and repeated: it
// checks how many it got.
type action func(ctx context.Context, args []string, p process) error

func commands() []command {
	return []command{
		{name: "serve", summary: "accept calls and forward them to webhooks", help: serveHelp, define: serve},
		{name: "listen", summary: "receive webhooks and print them", help: listenHelp, define: listen},
		{name: "send", summary: "send one call", help: sendHelp, commands: sendCommands()},
		{name: "status", summary: "print how a running server is", help: statusHelp, define: status},
		{name: "health", summary: "ask a running server whether it accepts calls", help: healthHelp, define: health},
		{name: "events", summary: "print what happens to deliveries", help: eventsHelp, define: events},
		{name: "test", summary: "send samples to a destination or URL now", help: testHelp, args: "[DESTINATION|URL]", define: test},
		{name: "pause", summary: "stop attempts for destinations", help: pauseHelp, args: "DESTINATION...", define: pause},
		{name: "resume", summary: "end the pause of destinations", help: resumeHelp, args: "DESTINATION...", define: resume},
		{name: "dead", summary: "list, show, replay or discard dead letters", help: deadHelp, commands: deadCommands()},
		{name: "audience", summary: "create, sync or list audiences", help: audienceHelp, commands: audienceCommands()},
		{name: "delete-user", summary: "tell destinations to delete users", help: deleteUserHelp, args: "USER...", define: deleteUsers},
		{name: "config", summary: "check a configuration file, or print an example", help: configHelp, commands: configCommands()},
		{name: "store", summary: "check, compact or rescue what serve keeps", help: storeHelp, commands: storeCommands()},
		{name: "completion", summary: "print a script that completes words in a shell", help: completionHelp, commands: completionCommands()},
		{name: "version", summary: "print the version", help: versionHelp, define: printVersion},
		{name: "help", summary: "print this text, or explain a command", help: helpHelp, args: "[COMMAND...]", define: printHelp},
	}
}

// A usageError is a mistake in how a command was called.
type usageError struct{ problem string }

func (e *usageError) Error() string { return e.problem }

func usagef(format string, args ...any) error {
	return &usageError{fmt.Sprintf(format, args...)}
}

// A nothingError says that what a command was to work on is not there.
type nothingError struct{ error }

func (e *nothingError) Unwrap() error { return e.error }

// run runs the command that args name, and returns the exit status.
func run(ctx context.Context, args []string, p process) int {
	if len(args) == 0 {
		writeHelp(p.stderr)
		return exitUsage
	}
	switch args[0] {
	case "-h", "-help", "--help":
		args[0] = "help"
	case "-version", "--version":
		args[0] = "version"
	}
	c, name, rest, err := findCommand(args)
	if err == nil {
		err = c.run(ctx, name, rest, p)
	}
	return exitStatus(p.stderr, name, err)
}

// findCommand returns the command that args begin with, with its full name and
// what follows it. With an error, the name is as far as it is known.
func findCommand(args []string) (c command, name string, rest []string, err error) {
	c, name = command{commands: commands()}, "hookferry"
	for len(args) > 0 && c.define == nil && !strings.HasPrefix(args[0], "-") {
		i := slices.IndexFunc(c.commands, func(c command) bool { return c.name == args[0] })
		if i < 0 {
			return c, name, args, usagef("no command %q; there are %s", args[0], c.names())
		}
		c, args = c.commands[i], args[1:]
		name += " " + c.name
	}
	return c, name, args, nil
}

// names lists the commands that c has.
func (c command) names() string {
	names := make([]string, len(c.commands))
	for i, sub := range c.commands {
		names[i] = sub.name
	}
	return strings.Join(names, ", ")
}

func (c command) run(ctx context.Context, name string, args []string, p process) error {
	o := newOptions(name, c.help)
	act := func(context.Context, []string, process) error { return usagef("want a command: %s", c.names()) }
	if c.define != nil {
		act = c.define(o)
	}
	args, err := o.parse(args, p)
	if err != nil {
		return err
	}
	if len(args) > 0 && c.args == "" {
		return usagef("unexpected argument %q", args[0])
	}
	return o.named(act(ctx, args, p))
}

// exitStatus reports err, if it is one, on a line of its own.
func exitStatus(stderr io.Writer, name string, err error) int {
	if err == nil || errors.Is(err, flag.ErrHelp) {
		return exitOK
	}
	// An error may say what a server answered.
	fmt.Fprintf(stderr, "%s: %s\n", name, cleanLines(err.Error()))
	var usage *usageError
	var nothing *nothingError
	switch {
	case errors.As(err, &usage):
		fmt.Fprintf(stderr, "Run '%s -h' for help.\n", name)
		return exitUsage
	case errors.As(err, &nothing):
		return exitNothing
	}
	return exitFailure
}

const helpHelp = `Usage: hookferry help [COMMAND...]

Help lists the commands, or explains one.

Examples:
  hookferry help
  hookferry help dead ls
`

func printHelp(*options) action {
	return func(_ context.Context, args []string, p process) error {
		if len(args) == 0 {
			writeHelp(p.stdout)
			return nil
		}
		c, name, rest, err := findCommand(args)
		if err != nil {
			return err
		}
		if len(rest) > 0 {
			return usagef("unexpected argument %q", rest[0])
		}
		o := newOptions(name, c.help)
		if c.define != nil {
			c.define(o)
		}
		o.writeHelp(p.stdout)
		return nil
	}
}

func writeHelp(w io.Writer) {
	fmt.Fprint(w, `Hookferry accepts analytics calls and forwards each of them as a signed webhook.

Usage: hookferry COMMAND [flags]

Commands:
`)
	for _, c := range commands() {
		fmt.Fprintf(w, "  %-11s %s\n", c.name, c.summary)
	}
	fmt.Fprint(w, `
Try it, in three terminals:
  hookferry listen
  hookferry serve -webhook http://localhost:9000/hook
  hookferry send track -user u1 -event "Signed Up"

'hookferry COMMAND -h' explains a command.
Exit status: 0 done, 1 failed, 2 called wrongly, 3 what was asked for is not
there.
`)
}
