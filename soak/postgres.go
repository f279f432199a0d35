package main

var postgres = []soak{
	{name: "postgres-chaos", what: "processes that share a store in PostgreSQL are killed, and the database is", dir: "soak/postgres", test: "TestChaos"},
	{name: "postgres-bounds", what: "two forwarders bury what exceeds the bound of a backlog: once, and no more than needed", dir: "soak/postgres", test: "TestTwoForwardersBoundBacklog"},
	{name: "postgres-cut", what: "connections to PostgreSQL are cut while puts, leases and settlements are answered", dir: "soak/postgres", test: "TestCut"},
	{name: "postgres-hang", what: "the network to PostgreSQL hangs while a store is closed", dir: "soak/postgres", test: "TestHang"},
	{name: "postgres-failover", what: "the server of PostgreSQL ends and its standby is promoted: a store goes on with it, and nothing is lost", dir: "soak/postgres", test: "TestFailover"},
	{name: "postgres-half-open", what: "the connection for notifications looks open and gets nothing: a new one takes its place", dir: "soak/postgres", test: "TestHalfOpen"},
	{name: "postgres-frozen", what: "PostgreSQL stands still for up to a minute, or a table is locked, under a backlog: nobody is taken for dead; needs Linux", dir: "soak/postgres", test: "TestFrozen"},
	{name: "postgres-suspended", what: "processes that share a store in PostgreSQL are suspended under a backlog: the others take over", dir: "soak/postgres", test: "TestSuspended"},
	{name: "postgres-neighbours", what: "deliveries at full rate beside readers, dumps, idle transactions, restarts, locks; needs Linux", dir: "soak/postgres", test: "TestNeighbours", apart: true},
	{name: "postgres-queue", what: "the conformance suite on PostgreSQL in real time, with notifications", dir: "webhook/pgqueue", test: "TestStoreInRealTime"},
	{name: "postgres-random", what: "random operations on PostgreSQL, with and without PgBouncer", dir: "webhook/pgqueue", test: "TestStore|TestPooler"},
	{name: "postgres-soak", what: "deliveries at full rate: costs, and what is left in the tables", dir: "webhook/pgqueue", bench: "BenchmarkSoak"},
	{name: "postgres-history", what: "the same with a history of ten minutes: sizes each minute, and pages of the list beside it", dir: "webhook/pgqueue", bench: "BenchmarkSoak", args: []string{"-history", "10m"}, apart: true},
	{name: "postgres-backlog", what: "the rate of deliveries without and with a million that wait in PostgreSQL", dir: "webhook/pgqueue", bench: "BenchmarkDeliveries|BenchmarkBacklog", args: []string{"-backlog", "1000000", "-bench.round", "50000"}, apart: true},
	{name: "postgres-window", what: "puts while 9 million are remembered in PostgreSQL", dir: "webhook/pgqueue", bench: "BenchmarkWindow", args: []string{"-remembered", "9000000"}, apart: true},
}
