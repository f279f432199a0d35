// Command soak runs tests that are slow, random or bound to the speed of the machine: kills,
// chaos on real servers, full disks, abuse, long fuzzing, and benchmarks of large backlogs.
// An ordinary test run includes a short run of each random test, with fixed seeds.
//
//	go run ./soak list                 # the soaks, with what each needs
//	go run ./soak kill -for 10m        # one soak, for ten minutes
//	go run ./soak kill -seed 42        # the same again, from a printed seed
//	go run ./soak simulation -seeds 100000 -busy
//	                                   # so many seeds in a row, beside busy loops; reports each failure
//	go run ./soak all -for 1m          # all of them, a minute each
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"time"
)

// A soak is a test or a benchmark that the soak command runs for a time.
type soak struct {
	name  string
	what  string // what the soak shows, for the list
	dir   string // the folder of its package, from the root of the repository
	test  string // the regular expression of its tests
	bench string // the regular expression of its benchmarks
	fuzz  string // the regular expression of its one fuzz target
	args  []string
	// program is a command that runs in dir instead of a test. Its environment variable
	// SOAK_SECONDS says how long to run.
	program []string
	apart   bool // left out of "all", because it takes minutes whatever -for says, or needs a quiet machine
}

// soaks has all soaks, grouped by the part that they test.
var soaks = slices.Concat(client, server, forwarder, fileStore, postgres, nats, docs, fuzzes)

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		if !errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(os.Stderr, "soak:", err)
		}
		os.Exit(1)
	}
}

// How are the flags of the command.
type how struct {
	length     time.Duration
	seed       uint64
	seeds      int
	busy, race bool
}

// parse returns the flags and the names among the arguments of the command.
func parse(args []string) (h how, names []string, err error) {
	flags := flag.NewFlagSet("soak", flag.ContinueOnError)
	flags.DurationVar(&h.length, "for", time.Minute, "how long each soak runs")
	flags.Uint64Var(&h.seed, "seed", 0, "the `seed` of what is random, as an earlier run printed it; 0 draws one")
	flags.IntVar(&h.seeds, "seeds", 0, "how many seeds to run, in a row from -seed; instead of -for, for soaks that run once per seed")
	flags.BoolVar(&h.busy, "busy", false, "beside loops that keep all cores busy")
	flags.BoolVar(&h.race, "race", false, "with the race detector")
	flags.Usage = func() {
		fmt.Fprintln(flags.Output(), "usage: go run ./soak list | all | NAME... [-for 10m] [-seed N] [-seeds N] [-busy] [-race]")
		flags.PrintDefaults()
	}
	for { // flags may stand before, between and after the names
		if err := flags.Parse(args); err != nil {
			return h, nil, err
		}
		if args = flags.Args(); len(args) == 0 {
			break
		}
		names, args = append(names, args[0]), args[1:]
	}
	if h.length <= 0 {
		return h, nil, errors.New("-for: must be more than 0")
	}
	if h.seeds < 0 {
		return h, nil, errors.New("-seeds: must not be less than 0")
	}
	return h, names, nil
}

func run(args []string, out io.Writer) error {
	h, names, err := parse(args)
	if err != nil {
		return err
	}
	if len(names) == 0 || slices.Equal(names, []string{"list"}) {
		for _, s := range soaks {
			more := ""
			if s.apart {
				more = " (not in all)"
			}
			fmt.Fprintf(out, "%-20s %s%s\n", s.name, s.what, more)
		}
		return nil
	}
	chosen, err := choose(names)
	if err != nil {
		return err
	}
	root, err := root()
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if h.busy {
		for range runtime.NumCPU() {
			go func() { // ends with the process
				for ctx.Err() == nil {
				}
			}()
		}
	}
	var failed []string
	for _, s := range chosen {
		cmd := s.command(ctx, h.length, h.race)
		cmd.Dir = filepath.Join(root, s.dir)
		var text strings.Builder
		cmd.Stdout, cmd.Stderr = io.MultiWriter(out, &text), os.Stderr
		// With CI=true, tests for which a program is not installed fail. Otherwise they are skipped.
		settings := s.settings(h.length, h.seed, h.seeds)
		cmd.Env = slices.Concat(os.Environ(), []string{"CI=true"}, settings)
		fmt.Fprintf(out, "\n=== %s: %s\n%s\n", s.name, s.what, strings.Join(slices.Concat(settings, cmd.Args), " "))
		begin := time.Now()
		err := cmd.Run()
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if s.fuzz != "" && endOfTime.MatchString(text.String()) {
			err = nil
		}
		if err != nil {
			failed = append(failed, s.name)
		}
		fmt.Fprintf(out, "=== %s: %v after %v\n", s.name, outcome(err), time.Since(begin).Round(time.Second))
	}
	if len(failed) > 0 {
		return fmt.Errorf("failed: %s", strings.Join(failed, ", "))
	}
	return nil
}

// endOfTime matches a false alarm of the fuzzer, which now and then reports the end of its
// fuzzing time as a failure.
var endOfTime = regexp.MustCompile(`--- FAIL: Fuzz\w+ \(.*\)\n +context deadline exceeded\n`)

// choose returns the soaks of these names.
func choose(names []string) ([]soak, error) {
	var chosen []soak
	for _, name := range names {
		if name == "all" {
			for _, s := range soaks {
				if !s.apart {
					chosen = append(chosen, s)
				}
			}
			continue
		}
		i := slices.IndexFunc(soaks, func(s soak) bool { return s.name == name })
		if i < 0 {
			return nil, fmt.Errorf("no soak is named %q; the names: go run ./soak list", name)
		}
		chosen = append(chosen, soaks[i])
	}
	return chosen, nil
}

// command returns the go command that runs a soak, in the folder of its package.
func (s soak) command(ctx context.Context, length time.Duration, race bool) *exec.Cmd {
	if len(s.program) > 0 {
		return s.interruptible(exec.CommandContext(ctx, s.program[0], s.program[1:]...))
	}
	args := []string{"test", "-count=1", "-v", "-timeout=0"}
	if race {
		args = append(args, "-race")
	}
	switch {
	case s.fuzz != "":
		args = append(args, "-run=^$", "-fuzz=^"+s.fuzz+"$", "-fuzztime="+length.String(), "-fuzzminimizetime=1000x", ".")
		return s.interruptible(exec.CommandContext(ctx, "go", args...))
	case s.bench != "":
		args = append(args, "-run=^$", "-bench=^("+s.bench+")$", "-benchtime=1x")
	default:
		args = append(args, "-run=^("+s.test+")$")
	}
	return s.interruptible(exec.CommandContext(ctx, "go", slices.Concat(args, []string{"."}, s.args)...))
}

// settings returns the environment variables that internal/soakenv, or a program, reads.
func (s soak) settings(length time.Duration, seed uint64, seeds int) []string {
	switch {
	case len(s.program) > 0:
		return []string{fmt.Sprint("SOAK_SECONDS=", int(length.Seconds()))}
	case s.fuzz != "":
		return nil
	case seeds > 0:
		return []string{fmt.Sprint("SOAK_SEEDS=", seeds), fmt.Sprint("SOAK_SEED=", seed)}
	}
	return []string{"SOAK_FOR=" + length.String(), fmt.Sprint("SOAK_SEED=", seed)}
}

// interruptible makes the cancellation of cmd send an interrupt instead of a kill, so that cmd
// can end its child processes.
func (soak) interruptible(cmd *exec.Cmd) *exec.Cmd {
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	return cmd
}

func outcome(err error) string {
	if err != nil {
		return "FAILED (" + err.Error() + ")"
	}
	return "ok"
}

// root returns the folder of the repository, which it derives from the path of this source file.
func root() (string, error) {
	_, file, _, ok := runtime.Caller(0)
	if dir := filepath.Dir(filepath.Dir(file)); ok && filepath.IsAbs(dir) {
		return dir, nil
	}
	return os.Getwd()
}
