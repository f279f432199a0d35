package main

var forwarder = []soak{
	{
		name: "simulation", dir: "internal/simulation", test: "TestSimulation",
		what: "the whole service in virtual time, with crashes and faults of every kind: every message is accounted for",
	},
	{
		name: "inbox-simulation", dir: "internal/simulation", test: "TestInboxAppliesOnce",
		what: "a forwarder and two receivers on one database in virtual time, which crash at any step: each event is applied once",
	},
	{
		name: "inbox", dir: "interop/inbox", program: []string{"./run"},
		what: "receivers on PostgreSQL, MariaDB and SQLite are killed while 64 senders repeat each event: each is applied once",
	},
	{
		name: "planted", dir: "internal/simulation", test: "TestPlantedFaultsAreFound",
		what: "faults planted into the file store: the simulation finds each",
	},
	{
		name: "schedule", dir: "webhook/internal/schedule", test: "TestNothingStalls",
		what: "the forwarder's scheduler at random: limits hold, nothing is lost, nothing stalls",
	},
	{
		name: "hostile", dir: "webhook", test: "TestReceiversThatMisbehaveForDays",
		what: "receivers that misbehave for days of virtual time: every delivery ends, and no other is delayed",
	},
	{
		name: "crowd", dir: "webhook", test: "TestManyThatHangAtOnceDelayNoOther",
		what: "up to a thousand destinations that hang at once delay no other, in virtual time",
	},
	{
		name: "wire", dir: "webhook/internal/wire", test: "TestSocketSoak",
		what: "requests of all sizes over sockets, and receivers that close connections at random",
	},
	{
		name: "memqueue", dir: "webhook/memqueue", test: "TestQueue",
		what: "random operations on the store in memory, compared with a model of the contract",
	},
	{
		name: "isolation", dir: "webhook", bench: "BenchmarkIsolation", apart: true,
		what: "what healthy destinations keep beside a hundred dead ones of 10,000, and a backlog of a million",
		args: []string{"-isolation.destinations=10000", "-isolation.backlog=1000000", "-isolation.turns=30", "-isolation.turn=1s"},
	},
	{
		name: "deliveries", dir: "webhook", bench: "BenchmarkDeliveries|BenchmarkObserver|BenchmarkForwardDurable|BenchmarkIdleLatency|BenchmarkIdleDestination", apart: true,
		what: "deliveries a second beside bare requests, and what else the forwarder's figures are made of",
		args: []string{"-test.benchtime=10x", "-bench.round=10000", "-idle.destinations=10000"},
	},
	{
		name: "audience", dir: "audience", bench: "BenchmarkAudience", apart: true,
		what: "an audience of five million members that is synced, in order and out of it",
		args: []string{"-audience=5000000"},
	},
}
