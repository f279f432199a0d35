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

// The exit statuses of the program; see the documentation of the command.
const (
	exitOK      = 0
	exitFailure = 1
	exitUsage   = 2
	exitNothing = 3
)

// A process has what a command uses of the operating system.
type process struct {
	getenv         func(string) string
	stdin          io.Reader
	stdout, stderr io.Writer
	// listen opens listeners, and dial opens connections. Nil means the functions of package net.
	listen func(ctx context.Context, network, address string) (net.Listener, error)
	dial   func(ctx context.Context, network, address string) (net.Conn, error)
}

func (p process) transport() *http.Transport {
	t := http.DefaultTransport.(*http.Transport).Clone()
	if p.dial != nil {
		t.DialContext = p.dial
	}
	return t
}

// A call is one invocation of a command.
type call struct {
	process
	args   []string    // the arguments; their number fits the usage line
	json   bool        // --json
	yes    bool        // --yes
	client *api.Client // set for commands that call a server
}

// An action does the work of its command. It ends when ctx is done. It returns a usagef error if
// the user invoked the command wrongly.
type action func(ctx context.Context, c *call) error

// define calls do, which defines the flags of the command c and returns the action that c runs. The
// field c.Use names the arguments that c accepts, as in "sync AUDIENCE FILE" or "replay [KEY...]".
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

// run runs the command that args name. It returns the exit status.
func run(ctx context.Context, args []string, p process) int {
	if p.listen == nil {
		p.listen = new(net.ListenConfig).Listen
	}
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
	// An error may contain text from a server, so control characters are escaped.
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
