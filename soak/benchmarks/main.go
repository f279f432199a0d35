// Command benchmarks runs the benchmarks whose numbers are in BENCHMARKS.md, and writes
// their table there.
//
//	go run ./soak/benchmarks                    # all of them, in about an hour
//	go run ./soak/benchmarks -quick             # each in a few seconds; does not write the file
//	go run ./soak/benchmarks track post         # some; the other rows stay as they are
//	go run ./soak/benchmarks -go go1.27.4 track # with another release of Go, in a column of its own
//	go run ./soak/benchmarks list
//
// A number is good only if nothing else runs on the machine.
package main

import (
	"bufio"
	"bytes"
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
	"strconv"
	"strings"
)

// A run is one go test command, with the values that this program takes from its
// output.
type run struct {
	name   string
	dir    string // of the package, from the root of the repository
	bench  string // the regular expression of its benchmarks
	full   []string
	quick  []string
	values []value
}

// A value is one row of the table.
type value struct {
	what  string
	bench string // the name of the benchmark, without "Benchmark" and the number of processors
	unit  string // of the metric, as the benchmark prints it
	shown string // what the table has after the number, such as the unit
}

// command returns the shell command that makes the full run. The table shows this command to
// readers, who run it in the root of the repository.
func (r run) command() string {
	return strings.Join(append([]string{"go", "test", "-run", "-", "-bench", "'" + r.bench + "'", "./" + r.dir}, r.full...), " ")
}

func main() {
	if err := benchmarks(os.Args[1:]); err != nil {
		if !errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(os.Stderr, "benchmarks:", err)
		}
		os.Exit(1)
	}
}

func benchmarks(args []string) error {
	flags := flag.NewFlagSet("benchmarks", flag.ContinueOnError)
	quick := flags.Bool("quick", false, "run each for a few seconds, to see that each row is printed; write nothing")
	toolchain := flags.String("go", runtime.Version(), "the `release` of Go, as go1.27.4")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if slices.Equal(flags.Args(), []string{"list"}) {
		for _, r := range runs {
			fmt.Printf("%-12s %s\n", r.name, r.command())
		}
		return nil
	}
	chosen := runs
	if flags.NArg() > 0 {
		chosen = nil
	}
	for _, name := range flags.Args() {
		i := slices.IndexFunc(runs, func(r run) bool { return r.name == name })
		if i < 0 {
			return fmt.Errorf("no benchmark is named %q; the names: go run ./soak/benchmarks list", name)
		}
		chosen = append(chosen, runs[i])
	}
	_, file, _, _ := runtime.Caller(0)
	root := filepath.Dir(filepath.Dir(filepath.Dir(file)))
	if !filepath.IsAbs(root) { // built with -trimpath
		var err error
		if root, err = os.Getwd(); err != nil {
			return err
		}
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	for _, r := range chosen {
		results, err := r.measure(ctx, root, *toolchain, *quick)
		if err != nil {
			return fmt.Errorf("%s: %w", r.name, err)
		}
		for _, v := range r.values {
			fmt.Printf("| %s | %s |\n", v.what, results[v.what])
		}
		if *quick {
			continue
		}
		// Update the file after each run, so that an interruption loses no earlier results.
		path := filepath.Join(root, "BENCHMARKS.md")
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if text, err = update(text, *toolchain, results); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		if err := os.WriteFile(path, text, 0o666); err != nil {
			return err
		}
	}
	return nil
}

// measure runs the benchmarks of r. It returns the measured numbers as text. The key of each is the
// name of its row in the table, value.what.
func (r run) measure(ctx context.Context, root, toolchain string, quick bool) (map[string]string, error) {
	more := r.full
	if quick {
		more = r.quick
	}
	args := append([]string{"test", "-run", "-", "-timeout", "0", "-bench", r.bench, "./" + r.dir}, more...)
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.Dir = root
	// With CI=true, benchmarks for which a program is not installed fail. Otherwise they are skipped.
	cmd.Env = append(os.Environ(), "GOTOOLCHAIN="+toolchain, "CI=true")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = io.MultiWriter(&out, os.Stderr), os.Stderr
	fmt.Fprintln(os.Stderr, "go", strings.Join(args, " "))
	if err := cmd.Run(); err != nil {
		return nil, err
	}
	metrics := parse(&out)
	results := map[string]string{}
	for _, v := range r.values {
		n, ok := metrics[v.bench+" "+v.unit]
		if !ok {
			return nil, fmt.Errorf("no %s was printed by Benchmark%s", v.unit, v.bench)
		}
		results[v.what] = format(n) + v.shown
	}
	return results, nil
}

// processors matches the number of processors, which the testing package appends to the name of a
// benchmark.
var processors = regexp.MustCompile(`-\d+$`)

// parse returns the metrics that benchmarks printed, by name and unit.
func parse(out io.Reader) map[string]float64 {
	metrics := map[string]float64{}
	for lines := bufio.NewScanner(out); lines.Scan(); {
		f := strings.Fields(lines.Text())
		if len(f) < 4 || !strings.HasPrefix(f[0], "Benchmark") {
			continue
		}
		name := strings.TrimPrefix(processors.ReplaceAllString(f[0], ""), "Benchmark")
		for i := 2; i+1 < len(f); i += 2 {
			if n, err := strconv.ParseFloat(f[i], 64); err == nil {
				metrics[name+" "+f[i+1]] = n
			}
		}
	}
	return metrics
}

// format formats n with about three significant digits, and commas between thousands.
func format(n float64) string {
	digits := 2
	switch {
	case n == float64(int64(n)) && n < 100, n >= 100:
		digits = 0
	case n >= 10:
		digits = 1
	}
	s := strconv.FormatFloat(n, 'f', digits, 64)
	if digits > 0 {
		return s
	}
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// The markers before and after the table in the file.
const (
	begin = "<!-- go run ./soak/benchmarks writes this table -->\n"
	end   = "<!-- end -->"
)

// update returns the content of BENCHMARKS.md, which is text, with these results in the column of
// the Go release that toolchain names. The rows are in the order of runs. update keeps the other
// cells, but drops rows that are in no run.
func update(text []byte, toolchain string, results map[string]string) ([]byte, error) {
	before, rest, found := strings.Cut(string(text), begin)
	old, after, found2 := strings.Cut(rest, end)
	if !found || !found2 {
		return nil, fmt.Errorf("the file has no table between %q and %q", begin, end)
	}
	columns := []string{} // releases of Go
	cells := map[string]string{}
	for i, line := range strings.Split(strings.TrimSpace(old), "\n") {
		row := strings.Split(strings.Trim(line, "|"), "|")
		for i := range row {
			row[i] = strings.TrimSpace(row[i])
		}
		switch {
		case len(row) < 3 || i == 1: // no table yet, or the line below its head
		case i == 0:
			columns = row[1 : len(row)-1]
		default:
			for j, column := range columns {
				if j+1 < len(row) {
					cells[column+" "+row[0]] = row[j+1]
				}
			}
		}
	}
	if !slices.Contains(columns, toolchain) {
		columns = append(columns, toolchain)
		slices.Sort(columns)
	}
	for what, cell := range results {
		cells[toolchain+" "+what] = cell
	}
	var b strings.Builder
	b.WriteString(before + begin)
	fmt.Fprintf(&b, "| What | %s | Command |\n|---|%s---|\n", strings.Join(columns, " | "), strings.Repeat("---|", len(columns)))
	for _, r := range runs {
		for _, v := range r.values {
			fmt.Fprintf(&b, "| %s |", v.what)
			for _, column := range columns {
				fmt.Fprintf(&b, " %s |", cells[column+" "+v.what])
			}
			fmt.Fprintf(&b, " `%s` |\n", r.command())
		}
	}
	b.WriteString(end + after)
	return []byte(b.String()), nil
}
