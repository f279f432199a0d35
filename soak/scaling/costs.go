package main

import "time"

// A store is a way to keep deliveries, with what it was measured to cost: on two
// shared cores of an AMD EPYC, Linux, Go 1.26.8, November 2026, with bodies of 450
// bytes, receivers and databases on the same machine, and each commit synced. The
// comment of a field has the commands that print it.
type store struct {
	name   string
	server bool // it is a server beside the nodes, which may be several
	cores  int  // that plans give a server at most
	copies int  // of what is stored, each with a server of its own
	owned  bool // a destination is served by one of the nodes that share it

	// accept is the processor time of a node for a call, from its request to the
	// commit; calls come in batches of 100. us/call of
	//	cd cmd/hookferry; go test -run - -bench Server/accept -benchtime 30x .
	accept time.Duration
	// deliver is that for an attempt, from the lease to the stored outcome: for a
	// file us/call less accept of
	//	cd cmd/hookferry; go test -run - -bench Server/deliver -benchtime 30x .
	// and for a database what cpu-us/delivery of
	//	cd webhook/pgqueue; go test -run - -bench Soak . -soak 15s
	// is more than bare_us and us_more of
	//	go test -run - -bench Deliveries/store=file/destinations=10/concurrency=64 -benchtime 8x ./webhook
	// For JetStream, whose server is in the process of the benchmark, a profile
	// tells the two apart:
	//	cd webhook/natsqueue; go test -run - -bench Deliveries/destinations=10 -benchtime 8x -cpuprofile FILE .
	deliver time.Duration
	// database is the processor time of the server for a delivery, from its
	// put to its end: db-cpu-us/delivery of Soak, or of the same profile.
	database time.Duration
	// most is how many deliveries a second one store takes, from put to end,
	// without requests: of a folder what one core allows by the processor time of
	//	go test -run - -bench Store/op=life/batch=512/endpoints=10$ -benchtime 400x ./webhook/filequeue
	// and of a server, by each of its cores, what database allows.
	most float64
	// waiting is the bytes that a delivery which waits takes beside its body.
	//	go run ./soak file-backlog
	//	cd webhook/pgqueue; go test -run - -bench Waiting -benchtime 1x .
	//	cd webhook/natsqueue; the same
	waiting int
	// connections of a node to the server.
	connections int
}

// overTLS is what TLS adds to an attempt on a kept connection: what BenchmarkPostTLS
// takes longer than BenchmarkPost.
//
//	go test -run - -bench Post -benchtime 2s ./webhook/internal/wire
const overTLS = 4 * time.Microsecond

// stores are those whose costs are known.
var stores = []*store{
	{
		name:    "folder",
		copies:  1,
		accept:  10_100 * time.Nanosecond,
		deliver: 34_600*time.Nanosecond + overTLS,
		most:    140_000,
		waiting: 180,
	},
	{
		name:        "PostgreSQL",
		server:      true,
		cores:       8,
		copies:      2,
		accept:      10_100 * time.Nanosecond,
		deliver:     44_750*time.Nanosecond + overTLS,
		database:    23_200 * time.Nanosecond,
		most:        43_000,
		waiting:     310,
		connections: 6,
	},
	{
		name:        "JetStream",
		server:      true,
		owned:       true,
		cores:       2, // a stream is written by one server, in one order
		copies:      3,
		accept:      10_100 * time.Nanosecond,
		deliver:     36_150*time.Nanosecond + overTLS,
		database:    29_200 * time.Nanosecond,
		most:        34_000,
		waiting:     195,
		connections: 1,
	},
}

// Assumptions are what no benchmark knows.
const (
	// head is the bytes of a request beside its body: with X-Signature and a URL of
	// 40 bytes. TestBytesOfARequest holds it to the forwarder.
	head = 200
	// packets is what TLS, TCP and IP add to a request and its answer, of what
	// leaves a node: 22 bytes of a record, and 52 of each of two packets.
	packets = 126
	// target is the use of processors and stores that plans are made for, at the
	// peak of the day. The rest is for what comes after an outage, and for a node
	// that is away.
	target = 0.6

	coreHour = 0.04 // dollars, with the memory that comes with a core
	gbMonth  = 0.10 // dollars, of a local or network SSD
	egressGB = 0.05 // dollars
	month    = 730  // hours
)
