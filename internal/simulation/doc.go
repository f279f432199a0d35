// Package simulation runs the whole service in virtual time: clients with and without a spool,
// the collector, the forwarder, the file store and receivers, over a disk and a network in
// memory. A seed decides what fails and when: the process, the power, writes, syncs, space, the
// network, clocks and receivers. The seed also decides which goroutine goes on.
//
// A ledger follows each message by its id. After a run, it checks three things. Every message that
// the collector acknowledged was delivered to each of its destinations, is a dead letter, or waits.
// What was delivered is in the history, or was counted as not kept. No endpoint took a delivery
// twice, unless there was a reason, such as a crash between the two requests.
//
// A third of the messages have a key. At each request, all deliveries with the same key that were
// put earlier must have ended. No delivery comes again after a later one with its key.
//
// A message that is put again is not stored again. After the disk was full it may be, as the store then
// forgets ids rather than stay full.
//
//	go run ./soak simulation -for 10m                # random seeds, which are printed
//	go run ./soak simulation -seed 42                # a printed seed again
//	go run ./soak simulation -seeds 100000 -busy     # so many in a row, beside busy loops
//
// A run that fails keeps a trace of its operations, and the files of its disk, in a folder that its
// message names. hookferry store check --data FOLDER reads them.
//
// # A seed repeats
//
// Two runs of a seed have the same trace, byte for byte, with the same build of this test. A goroutine
// waits at each entry point of the simulated world for its turn: operations of the disk, calls of the
// store, requests and answers. Once all other goroutines are blocked, one goes on, which the seed
// chooses (turns). Each turn has its own instant. Numbers of crypto/rand and internal/random come from
// the seed, and so does the order of what the file store yields from a map. The test runs on one core,
// where goroutines that one turn makes ready run in the order in which they became ready.
//
// Between two entry points, the Go runtime decides the rest:
//
//   - It preempts a goroutine that runs for 10 ms of real time, so others that are ready overtake it.
//     A turn takes microseconds, so this happens only if the machine does not run the process for that
//     long. The test knows when it may have happened: such a run is compared again.
//   - It chooses at random among several ready cases of a select, and the order of timers that fire
//     in the same nanosecond. The service has selects whose choice matters in none of the seeds that
//     were compared. Only timers that one turn sets to the same time fire together, such as the limits
//     of requests that begin together.
//   - It orders maps at random. The service sorts what it takes from a map where the order matters.
//   - A garbage collection lets others overtake the goroutine that starts it. The test collects between
//     the runs. A run that needs more memory than the machine has room for is not protected from that.
//   - The race detector makes the order of goroutines random. With it, runs are not compared.
//
// With several cores about one seed in five would differ, as which connection a request gets depends
// on the order of two workers. Files of the clients' spools are real, and not in the trace.
package simulation
