package main

import (
	"bytes"
	"os"
	"strings"
	"testing"
	"time"
)

// The program starts itself as a collector and for each measurement. TestMain lets the test binary
// do both.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && (os.Args[1] == "collector" || os.Args[1] == "measure") {
		os.Exit(run(os.Args[1:]))
	}
	os.Exit(m.Run())
}

// Every client delivers all its events, in each kind of measurement.
func TestClientsDeliver(t *testing.T) {
	addr, stop, err := startCollector()
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := stop(); err != nil {
			t.Error(err)
		}
	}()
	for _, c := range contenders {
		for _, m := range []measurement{
			{Batch: 20, Goroutines: 1, Length: 20 * time.Millisecond},
			{Batch: 250, Goroutines: 8, Length: 20 * time.Millisecond},
			{Batch: 20, Goroutines: 8, Length: 20 * time.Millisecond, Rate: 5000, Latency: true},
		} {
			m.Client, m.Collector = c.name, addr
			r, err := m.runApart()
			if err != nil {
				t.Errorf("%+v: %v", m, err)
				continue
			}
			if r.Received == 0 || r.Lost != 0 || r.Wall < m.Length || r.CPU <= 0 {
				t.Errorf("%+v: got %+v, want some events, none lost, in at least the given time", m, r)
			}
			if m.Latency && (r.P50 <= 0 || r.P999 < r.P50 || r.Max < r.P999) {
				t.Errorf("%+v: got %+v, want P50 > 0, P50 <= P999 <= Max", m, r)
			}
		}
	}
}

// The program prints all its tables, with a row for each client.
func TestTables(t *testing.T) {
	var out bytes.Buffer
	p := plan{rounds: 1, length: 20 * time.Millisecond, out: &out}
	if err := p.run(); err != nil {
		t.Fatal(err)
	}
	text := out.String()
	for _, want := range []string{"Events per second,", "CPU time", "| hookferry to the best of the others |", "99.9% of all calls", "1 rounds of 20ms"} {
		if !strings.Contains(text, want) {
			t.Errorf("the output lacks %q:\n%s", want, text)
		}
	}
	for _, c := range contenders {
		if n := strings.Count(text, "| "+c.name+" |"); n != 4 {
			t.Errorf("%s is in %d tables, want 4:\n%s", c.name, n, text)
		}
	}
}

func TestMedian(t *testing.T) {
	rounds := []result{{Received: 9}, {Received: 1}, {Received: 4}}
	if got := median(rounds, func(r result) float64 { return float64(r.Received) }); got != 4 {
		t.Errorf("median of 9, 1, 4 = %v, want 4", got)
	}
}
