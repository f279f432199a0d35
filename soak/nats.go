package main

var nats = []soak{
	{name: "nats-chaos", what: "processes that share a store in NATS are killed, and so is the server", dir: "soak/nats", test: "TestChaos"},
	{name: "nats-parted", what: "the same with three servers, the leader of which is cut off", dir: "soak/nats", test: "TestParted"},
	{name: "nats-leader", what: "the leader of three NATS servers is killed under load", dir: "soak/nats", test: "TestLeaderKilled"},
	{name: "nats-stopped", what: "one of three NATS servers is stopped or silent; every call of a collector is answered in time", dir: "soak/nats", test: "TestServerStopped"},
	{name: "nats-cut", what: "connections to NATS are cut while puts, fetches and settlements are answered", dir: "soak/nats", test: "TestCut"},
	{name: "nats-neighbours", what: "calls at full rate before three NATS servers that are killed, cut off, wiped, frozen, full, or lose the stream; needs unix and the right to mount", dir: "soak/nats", test: "TestNeighbours", apart: true},
	{name: "nats-queue", what: "the conformance suite on NATS in real time, over sockets", dir: "webhook/natsqueue", test: "TestStoreInRealTime"},
	{name: "nats-random", what: "random operations on NATS", dir: "webhook/natsqueue", test: "TestStore"},
	{name: "nats-backlog", what: "the rate of deliveries without and with a million that wait in NATS", dir: "webhook/natsqueue", bench: "BenchmarkDeliveries|BenchmarkBacklog", args: []string{"-backlog", "1000000", "-bench.round", "50000"}, apart: true},
	{name: "nats-replicated", what: "the rate of deliveries with three NATS servers that each keep all", dir: "webhook/natsqueue", bench: "BenchmarkReplicated"},
}
