// Package simulation runs the whole service in virtual time: clients with and without a spool,
// the collector, the forwarder, the file store and receivers, over a disk and a network in
// memory. A seed decides what fails and when: the process, the power, writes, syncs, space, the
// network, clocks and receivers.
//
// Each message is followed by its id. After each run, every message that the collector has
// acknowledged was delivered, is a dead letter or waits, for each of its destinations; and no
// endpoint has taken a delivery twice unless a crash lies between.
//
//	go run ./soak simulation -for 10m                # random seeds, which are printed
//	go run ./soak simulation -seed 42                # one of them again
//
// Retries are jittered at random, and goroutines take turns as they like. So a seed that failed
// fails again most of the time, not always.
package simulation
