package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"

	"github.com/spf13/cobra"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
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
	// listen and dial open listeners and connections. Nil means the system's.
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

// A call is one call of a command.
type call struct {
	process
	args   []string    // as many as the use of the command names
	json   bool        // --json
	yes    bool        // --yes
	client *api.Client // of commands that ask a server
}

// An action does the work of its command, until ctx is done. It returns a usagef error
// if the command was called wrongly.
type action func(ctx context.Context, c *call) error

// define makes c a command that does what do returns, which defines its flags. Its
// arguments are those that its use names, as in "sync AUDIENCE FILE" or
// "replay [KEY...]".
func (p process) define(c *cobra.Command, do func(*options) action) {
	o := &options{FlagSet: c.Flags(), command: c, process: p, split: map[string]func(string) []string{}}
	act := do(o)
	o.completeAll()
	c.Args = checkArguments
	c.RunE = func(c *cobra.Command, args []string) error {
		if err := o.readVariables(); err != nil {
			return err
		}
		this := &call{process: p, args: args}
		this.json, _ = o.GetBool("json")
		this.yes, _ = o.GetBool("yes")
		return act(c.Context(), this)
	}
}

// run runs the command that args name, and returns the exit status.
func run(ctx context.Context, args []string, p process) int {
	root := p.commands()
	if len(args) == 0 {
		root.SetOut(p.stderr)
		root.Help()
		return exitUsage
	}
	root.SetArgs(args)
	c, err := root.ExecuteContextC(ctx)
	if err == nil {
		return exitOK
	}
	// An error may say what a server answered.
	fmt.Fprintf(p.stderr, "%s: %s\n", c.CommandPath(), cleanLines(nameOrigin(c, err)))
	var of *exitError
	if !errors.As(err, &of) {
		return exitFailure
	}
	if of.status == exitUsage {
		fmt.Fprintf(p.stderr, "Run '%s -h' for help.\n", c.CommandPath())
	}
	return of.status
}
