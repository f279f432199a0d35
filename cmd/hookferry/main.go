// Command hookferry is the Hookferry server and its command line. The server accepts
// calls of the HTTP tracking API, stores them, and forwards each as a signed webhook.
//
//	hookferry serve --webhook http://localhost:9000/hook
//	hookferry listen
//	hookferry send track --user u1 --event "Signed Up"
//
// -h explains each command. The exit status is 0 if the command did its work, 1 if it
// failed, 2 if it was called wrongly, and 3 if the destination, the audience or the
// dead letter is not there, or a filter selects nothing.
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
	go func() { // runs until the process ends
		<-signals
		// The first signal asks for an orderly stop. A second one, perhaps as soon as ctx is done,
		// ends the process. So signal.NotifyContext, which cancels ctx first, is no substitute.
		signal.Stop(signals)
		stop()
	}()
	os.Exit(run(ctx, os.Args[1:], process{getenv: os.Getenv, stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr}))
}
