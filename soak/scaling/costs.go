package main

import "time"

// A store is one of the forwarder's stores with its measured costs. The machine had two
// shared cores of an AMD EPYC, with Linux and Go 1.26.8, in November 2026. Bodies had 450
// bytes, receivers and databases ran on the same machine, and each commit was synced.
// The comment of each field has the commands that print its value.
type store struct {
	name   string
	server bool // the store is a server that several nodes share
	cores  int  // the most cores that a plan gives one server
	copies int  // replicas, each on a server of its own
	owned  bool // each destination is served by one node at a time

	// accept is a node's processor time for one call, from the request to the commit.
	// Calls come in batches of 100. It is the us/call that this command prints:
	//	go test -run - -bench Server/accept -benchtime 30x ./soak/server
	accept time.Duration
	// deliver is a node's processor time for one attempt, from the claim to the stored
	// outcome. For a folder it is the us/call of this command, minus accept:
	//	go test -run - -bench Server/deliver -benchtime 30x ./soak/server
	// For PostgreSQL it is the cpu-us/delivery of the first of these commands, minus the bare_us and
	// the us_more of the second:
	//	go run ./soak -for 15s postgres-soak
	//	go test -run - -bench Deliveries/store=file/destinations=10/concurrency=64 -benchtime 8x ./webhook
	// The JetStream server runs inside the benchmark's process. A profile tells the server's time
	// from the node's:
	//	go test -run - -bench Deliveries/destinations=10 -benchtime 8x -cpuprofile FILE ./webhook/natsqueue
	deliver time.Duration
	// database is the server's processor time for one delivery, from Put to Settle: the
	// db-cpu-us/delivery of postgres-soak, or, for JetStream, the server's time in the
	// profile above.
	database time.Duration
	// most is how many deliveries a second one store takes from Put to Settle, without the requests
	// in between. One core limits a folder. This command prints the core's time for a delivery:
	//	go test -run - -bench Store/op=life/batch=512/endpoints=10$ -benchtime 400x ./webhook/filequeue
	// For a server, most is the number for each core: a second divided by the field database.
	most float64
	// waiting is how many bytes a waiting delivery takes in the store in addition to
	// its body, as printed by
	//	go run ./soak file-backlog
	//	go run ./soak postgres-backlog
	//	go run ./soak nats-backlog
	waiting int
	// connections is how many connections a node has to the server.
	connections int
}

// overTLS is what TLS adds to an attempt on a kept connection: the difference between
// BenchmarkPostTLS and BenchmarkPost.
//
//	go test -run - -bench Post -benchtime 2s ./webhook/internal/wire
const overTLS = 4 * time.Microsecond

// stores are the stores whose costs were measured.
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

// Assumptions that no benchmark can measure.
const (
	// head is the size in bytes of a request without its body, with X-Signature and a URL of 40
	// bytes. TestBytesOfARequest compares it with the forwarder.
	head = 200
	// packets is how many bytes TLS, TCP and IP add to the bytes that a node sends for one request and
	// its answer: 22 for a TLS record, and 52 for each of two packets.
	packets = 126
	// target is the share of processors and stores that a plan uses at the peak of the
	// day. The rest is a reserve for the backlog of an outage, and for a missing node.
	target = 0.6

	coreHour = 0.04 // dollars, for a core and the memory that is sold with it
	gbMonth  = 0.10 // dollars, for a local or network SSD
	egressGB = 0.05 // dollars
	month    = 730  // hours
)
