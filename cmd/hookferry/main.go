// Command hookferry is the Hookferry service on one machine: it accepts calls
// of the HTTP tracking API, keeps them in one file, and forwards each of them
// as a signed webhook.
//
//	hookferry serve --webhook http://localhost:9000/hook
//	hookferry listen
//	hookferry send track --user u1 --event "Signed Up"
//
// Each command explains itself with -h. The exit status is 0 when the command
// did what it was asked, 1 when it failed, 2 when it was called wrongly, and 3
// when what it was asked for is not there: a destination, an audience, a dead
// letter, or a single one that a filter selects.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := context.WithCancel(context.Background())
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() { // until the process ends
		<-signals
		// The first signal asks for an orderly stop. From before that begins,
		// another one has its usual effect: the process ends at once.
		signal.Stop(signals)
		stop()
	}()
	os.Exit(run(ctx, os.Args[1:], process{getenv: os.Getenv, stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr}))
}
