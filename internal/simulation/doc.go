// Package simulation runs the whole service in virtual time: clients with and without a spool,
// the collector, the forwarder, the file store and receivers, over a disk and a network in
// memory. A seed decides what fails and when: the process, the power, writes, syncs, space, the
// network, clocks and receivers.
//
// A ledger follows each message by its id. After a run, it checks two things. Every message that
// the collector acknowledged was delivered to each of its destinations, is a dead letter, or waits.
// No endpoint took a delivery twice, unless there was a reason, such as a crash between the two
// requests.
//
//	go run ./soak simulation -for 10m                # random seeds, which are printed
//	go run ./soak simulation -seed 42                # a printed seed again
//
// Retries have random jitter, and the order of goroutines is random. So a seed with which a run
// has failed fails again most of the time, but not always.
package simulation
