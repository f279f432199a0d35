package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"
)

// pacedRate, in calls a second, is a load that every client here can carry.
const pacedRate = 20000

// A plan makes all measurements and prints their tables.
type plan struct {
	rounds int
	length time.Duration
	out    io.Writer

	collector string
}

// A column of the tables shows one measurement, which the benchmark makes for each
// client.
type column struct {
	title string
	measurement
}

func (p *plan) run() error {
	addr, stop, err := startCollector()
	if err != nil {
		return err
	}
	p.collector = addr
	begin := time.Now()
	err = p.tables()
	if stopErr := stop(); err == nil {
		err = stopErr
	}
	if err == nil {
		fmt.Fprintf(p.out, "\n%d rounds of %v of calls, %.0f s in all.\n", p.rounds, p.length, time.Since(begin).Seconds())
	}
	return err
}

func (p *plan) tables() error {
	p.about()

	var throughput []column
	for _, batch := range []int{20, 250} {
		for _, goroutines := range []int{1, 8} {
			throughput = append(throughput, column{
				fmt.Sprintf("%d a batch, %d callers", batch, goroutines),
				measurement{Batch: batch, Goroutines: goroutines, Length: p.length},
			})
		}
	}
	results, err := p.measure(throughput)
	if err != nil {
		return err
	}
	p.table("Events per second, until the last has been received", throughput, results, perSecond)
	p.table("Events per second of CPU time of the client's process", throughput, results, perCPUSecond)
	p.losses(throughput, results)

	latency := []column{
		{fmt.Sprintf("%d calls a second", pacedRate), measurement{Batch: 20, Goroutines: 8, Length: p.length, Rate: pacedRate, Latency: true}},
		{"as many as possible", measurement{Batch: 20, Goroutines: 8, Length: p.length, Latency: true}},
	}
	if results, err = p.measure(latency); err != nil {
		return err
	}
	for _, quantile := range []struct {
		title string
		of    func(result) time.Duration
	}{
		{"half of all calls", func(r result) time.Duration { return r.P50 }},
		{"99.9% of all calls", func(r result) time.Duration { return r.P999 }},
	} {
		p.durations("Time of a call until it is queued, 20 a batch, 8 callers: "+quantile.title+" take no longer than", latency, results, quantile.of)
	}
	return nil
}

// about describes the machine and the versions.
func (p *plan) about() {
	fmt.Fprintf(p.out, "%s, %d cores, %s/%s", runtime.Version(), runtime.NumCPU(), runtime.GOOS, runtime.GOARCH)
	if model := cpuModel(); model != "" {
		fmt.Fprintf(p.out, ", %s", model)
	}
	fmt.Fprintln(p.out)
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return
	}
	for _, c := range contenders {
		for _, dep := range info.Deps {
			if dep.Path == c.module {
				version := dep.Version
				if dep.Replace != nil {
					version = "as in this repository"
				}
				fmt.Fprintf(p.out, "%s: %s %s\n", c.name, dep.Path, version)
			}
		}
	}
}

// cpuModel returns the name of the processor from /proc/cpuinfo, or "" if the system has
// no such file or the file has no such name.
func cpuModel() string {
	text, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(text)) {
		if name, value, _ := strings.Cut(line, ":"); strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// measure measures some columns. The results are indexed by column, contender and round.
// Rounds alternate between contenders, so that a disturbance of the machine hits all of
// them.
func (p *plan) measure(columns []column) ([][][]result, error) {
	results := make([][][]result, len(columns))
	for i := range results {
		results[i] = make([][]result, len(contenders))
	}
	for round := range p.rounds {
		for i, col := range columns {
			for j := range contenders {
				k := (round + j) % len(contenders) // each contender comes first in turn
				m := col.measurement
				m.Client, m.Collector = contenders[k].name, p.collector
				r, err := m.runApart()
				if err != nil {
					return nil, err
				}
				results[i][k] = append(results[i][k], r)
			}
		}
	}
	return results, nil
}

// runApart makes a measurement in a process of its own.
func (m measurement) runApart() (result, error) {
	self, err := os.Executable()
	if err != nil {
		return result{}, err
	}
	settings, err := json.Marshal(m)
	if err != nil {
		return result{}, err
	}
	cmd := exec.Command(self, "measure", string(settings))
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return result{}, fmt.Errorf("measuring %s: %w\n%s", m.Client, err, &stderr)
	}
	var r result
	if err := json.Unmarshal(stdout.Bytes(), &r); err != nil {
		return result{}, fmt.Errorf("measuring %s: %w\n%s", m.Client, err, &stdout)
	}
	if r.Received == 0 {
		return result{}, fmt.Errorf("measuring %s: no event was received\n%s", m.Client, &stderr)
	}
	return r, nil
}

func perSecond(r result) float64    { return float64(r.Received) / r.Wall.Seconds() }
func perCPUSecond(r result) float64 { return float64(r.Received) / r.CPU.Seconds() }

// median returns the median of one value over all rounds. The function of returns the
// value of a round.
func median(rounds []result, of func(result) float64) float64 {
	values := make([]float64, len(rounds))
	for i, r := range rounds {
		values[i] = of(r)
	}
	slices.Sort(values)
	return values[len(values)/2]
}

// begin prints the title and the head of a table in Markdown.
func (p *plan) begin(title string, columns []column) {
	fmt.Fprintf(p.out, "\n%s:\n\n| |", title)
	for _, c := range columns {
		fmt.Fprintf(p.out, " %s |", c.title)
	}
	fmt.Fprintf(p.out, "\n|---|%s\n", strings.Repeat("---:|", len(columns)))
}

// table prints the median rate of each contender in each column; the function of returns
// the rate of a round. It also prints the ratio of the first contender's rate to the
// highest rate of the others.
func (p *plan) table(title string, columns []column, results [][][]result, of func(result) float64) {
	p.begin(title, columns)
	for j, c := range contenders {
		fmt.Fprintf(p.out, "| %s |", c.name)
		for i := range columns {
			fmt.Fprintf(p.out, " %.0f |", median(results[i][j], of))
		}
		fmt.Fprintln(p.out)
	}
	fmt.Fprintf(p.out, "| %s to the best of the others |", contenders[0].name)
	for i := range columns {
		best := 0.0
		for _, rounds := range results[i][1:] {
			best = max(best, median(rounds, of))
		}
		fmt.Fprintf(p.out, " %.2f |", median(results[i][0], of)/best)
	}
	fmt.Fprintln(p.out)
}

// durations prints the median duration of each contender in each column. The function of
// returns the duration of a round.
func (p *plan) durations(title string, columns []column, results [][][]result, of func(result) time.Duration) {
	p.begin(title, columns)
	for j, c := range contenders {
		fmt.Fprintf(p.out, "| %s |", c.name)
		for i := range columns {
			d := time.Duration(median(results[i][j], func(r result) float64 { return float64(of(r)) }))
			fmt.Fprintf(p.out, " %v |", d.Round(max(100*time.Nanosecond, d/200)))
		}
		fmt.Fprintln(p.out)
	}
}

// losses prints which clients lost queued events, and which clients made the calling
// program wait.
func (p *plan) losses(columns []column, results [][][]result) {
	for i, col := range columns {
		for j, c := range contenders {
			var lost, waits, received int64
			for _, r := range results[i][j] {
				lost += r.Lost
				waits += r.Waits
				received += r.Received
			}
			if lost != 0 {
				fmt.Fprintf(p.out, "\n%s, %s: %d of %d queued events were lost.\n", c.name, col.title, lost, received+lost)
			}
			if waits != 0 {
				fmt.Fprintf(p.out, "\n%s, %s: %d times its queue was full, and the caller waited %v, for %d events.\n", c.name, col.title, waits, fullWait, received)
			}
		}
	}
}
