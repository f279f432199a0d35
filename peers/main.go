// Command peers compares this module's client with the clients of others. All make the same calls,
// in the same program and the same run, to the same collector.
//
//	GOWORK=off go run .          # under two minutes
//	GOWORK=off go run . -quick   # a few seconds: does it still run?
//
// Each measurement is a process of its own, so that no client inherits the heap or the connections
// of another. The collector is one more process. Rounds alternate between the clients; the tables
// show medians.
package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"time"
)

func main() {
	os.Exit(run(os.Args[1:]))
}

// run runs the benchmark. If the first argument names a role that the benchmark gives to a process
// of its own, run plays that role instead.
func run(args []string) int {
	var err error
	switch {
	case len(args) == 1 && args[0] == "collector":
		err = runCollector(os.Stdin, os.Stdout)
	case len(args) == 2 && args[0] == "measure":
		err = runMeasurement(args[1], os.Stdout)
	default:
		err = runBenchmark(args)
	}
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 2
	case err != nil:
		fmt.Fprintln(os.Stderr, "peers:", err)
		return 1
	}
	return 0
}

// runMeasurement is the role of a process that drives one client. Its settings
// and its result are JSON.
func runMeasurement(settings string, out *os.File) error {
	var m measurement
	if err := json.Unmarshal([]byte(settings), &m); err != nil {
		return err
	}
	r, err := m.run()
	if err != nil {
		return err
	}
	return json.NewEncoder(out).Encode(r)
}

func runBenchmark(args []string) error {
	flags := flag.NewFlagSet("peers", flag.ContinueOnError)
	quick := flags.Bool("quick", false, "one short round: does everything still run?")
	rounds := flags.Int("rounds", 0, "measurements of each kind; the median counts (default 3, or 1 with -quick)")
	length := flags.Duration("time", 0, "for how long each measurement makes calls (default 500ms, or 50ms with -quick)")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	p := plan{rounds: 3, length: 500 * time.Millisecond, out: os.Stdout}
	if *quick {
		p.rounds, p.length = 1, 50*time.Millisecond
	}
	p.rounds, p.length = cmp.Or(*rounds, p.rounds), cmp.Or(*length, p.length)
	if p.rounds < 0 || p.length < 0 {
		return errors.New("-rounds and -time must not be negative")
	}
	return p.run()
}
