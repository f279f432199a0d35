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

// A command is a command of the program. The fields from args on are set when its action runs.
type command struct {
	flags
	server string // the flag with the address of the server; "" if the command asks none

	args   []string    // the arguments; their number fits the usage line
	client *api.Client // set for commands that call a server
}

// An action does the work of its command, until ctx is done; see usagef for a wrong invocation.
type action func(ctx context.Context) error

// define calls do, which defines the flags of a command and returns the action that it runs.
func (p process) define(cmd *cobra.Command, do func(*command) action) {
	c := &command{flags: flags{process: p, set: cmd.Flags(), cobra: cmd}}
	act := do(c)
	c.completeAll()
	cmd.Args = checkArguments
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c.args = args
		if err := c.readVariables(); err != nil {
			return err
		}
		return act(cmd.Context())
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
	last := newLogWriter(p.stderr, nil) // the process ends even if nobody reads standard error
	defer last.Close()
	// An error may contain text from a server, so control characters are escaped.
	fmt.Fprintf(last, "%s: %s\n", c.CommandPath(), cleanLines(nameOrigins(c, err)))
	of, ok := errors.AsType[*exitError](err)
	if !ok {
		return exitFailure
	}
	if of.status == exitUsage {
		fmt.Fprintf(last, "Run '%s -h' for help.\n", c.CommandPath())
	}
	return of.status
}
