package main

import (
	"fmt"
	"slices"
	"sync"
	"time"
)

// A measurement describes the work of one process, which calls one client for a fixed
// time.
type measurement struct {
	Client     string
	Collector  string // host:port
	Batch      int
	Goroutines int
	Length     time.Duration // how long calls are made; delivery may take longer
	Rate       int           // calls a second of all goroutines; 0 is as fast as possible
	Latency    bool          // time each call
}

// A result has the numbers of a measurement.
type result struct {
	Received int64         // events
	Lost     int64         // calls that were queued but did not arrive
	Waits    int64         // times a call found the queue full
	Wall     time.Duration // from the first call to the last event received
	CPU      time.Duration // processor time of the process in Wall
	P50      time.Duration // time until a call was queued; only with Latency
	P999     time.Duration
	Max      time.Duration
}

const (
	warmUp = 5000 // events

	// fullWait is how long a caller waits before it repeats a call that returned errFull.
	// Some clients block while their queue is full, and never return errFull.
	fullWait = 50 * time.Microsecond
)

// run makes the measurement.
func (m measurement) run() (result, error) {
	of, err := contenderNamed(m.Client)
	if err != nil {
		return result{}, err
	}
	// Warm up first, so that the measurement does not include one-time work and the
	// growth of buffers.
	if err := m.warm(of); err != nil {
		return result{}, fmt.Errorf("%s: %w", m.Client, err)
	}
	if _, err := takeEvents(m.Collector); err != nil {
		return result{}, err
	}

	c, err := of.open("http://"+m.Collector, m.Batch)
	if err != nil {
		return result{}, err
	}
	callers := make([]caller, m.Goroutines)
	for i := range callers {
		callers[i].init(m)
	}
	cpu, start := cpuTime(), time.Now()
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() { callers[i].run(c, m, start) })
	}
	wg.Wait()
	err = c.close()
	r := result{Wall: time.Since(start), CPU: cpuTime() - cpu}
	if err != nil {
		return result{}, fmt.Errorf("%s: %w", m.Client, err)
	}

	var calls int64
	var latencies []time.Duration
	for _, a := range callers {
		if a.err != nil {
			return result{}, fmt.Errorf("%s: %w", m.Client, a.err)
		}
		calls += a.calls
		r.Waits += a.waits
		latencies = append(latencies, a.latencies...)
	}
	if r.Received, err = takeEvents(m.Collector); err != nil {
		return result{}, err
	}
	r.Lost = calls - r.Received
	if len(latencies) > 0 {
		slices.Sort(latencies)
		r.P50 = latencies[len(latencies)/2]
		r.P999 = latencies[len(latencies)*999/1000]
		r.Max = latencies[len(latencies)-1]
	}
	return r, nil
}

func (m measurement) warm(of contender) error {
	c, err := of.open("http://"+m.Collector, m.Batch)
	if err != nil {
		return err
	}
	properties := tenProperties()
	for range warmUp {
		if err := queue(c, properties, nil); err != nil {
			return err
		}
	}
	return c.close()
}

// queue makes a call, again and again while the queue is full.
func queue(c client, properties map[string]any, waits *int64) error {
	for {
		err := c.track(properties)
		if err != errFull {
			return err
		}
		if waits != nil {
			*waits++
		}
		time.Sleep(fullWait)
	}
}

// A caller is a goroutine that makes calls. It makes its map of properties only once, so
// that the benchmark measures the client. Callers share no map, because one of the
// clients writes to it.
type caller struct {
	properties map[string]any
	calls      int64
	waits      int64
	latencies  []time.Duration
	err        error
}

func (a *caller) init(m measurement) {
	a.properties = tenProperties()
	if m.Latency {
		// Room for the fastest client, so that the slice does not grow during the measurement.
		a.latencies = make([]time.Duration, 0, int(m.Length.Seconds()*2e6)/m.Goroutines+1000)
	}
}

func (a *caller) run(c client, m measurement, start time.Time) {
	if m.Rate > 0 {
		a.paced(c, m, start)
		return
	}
	for {
		for range 32 { // read the clock once in 32 calls, so that this costs next to nothing
			a.call(c, m)
		}
		if a.err != nil || time.Since(start) >= m.Length {
			return
		}
	}
}

// paced makes calls at this caller's share of the measurement's rate. Each millisecond it
// makes the calls that are due. If the client is too slow, paced goes on after the end of
// the measurement, until it has made all calls that were due before the end.
func (a *caller) paced(c client, m measurement, start time.Time) {
	ticker := time.NewTicker(time.Millisecond)
	defer ticker.Stop()
	for a.err == nil {
		elapsed := min(time.Since(start), m.Length)
		due := int64(elapsed.Seconds() * float64(m.Rate) / float64(m.Goroutines))
		for a.calls < due && a.err == nil {
			a.call(c, m)
		}
		if elapsed == m.Length {
			return
		}
		<-ticker.C
	}
}

func (a *caller) call(c client, m measurement) {
	if a.err != nil {
		return
	}
	var begin time.Time
	if m.Latency {
		begin = time.Now()
	}
	a.err = queue(c, a.properties, &a.waits)
	a.calls++
	if m.Latency {
		a.latencies = append(a.latencies, time.Since(begin))
	}
}
