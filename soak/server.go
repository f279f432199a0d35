package main

var server = []soak{
	{
		name: "kill",
		what: "a server under load that is killed at random moments: what it has accepted arrives, and only what was in flight twice",
		dir:  "soak/server", test: "TestKill",
	},
	{
		name: "rolling-postgres",
		what: "three servers on PostgreSQL that are replaced in turn under load: all arrives once, soon, and in the order of users; needs PostgreSQL",
		dir:  "soak/server", test: "TestRollingRestartOnPostgreSQL",
	},
	{
		name: "rolling-nats",
		what: "three servers on JetStream that are replaced in turn under load: all arrives once, soon, and in the order of users",
		dir:  "soak/server", test: "TestRollingRestartOnNATS",
	},
	{
		name: "nats-away",
		what: "a server whose NATS server is away now and then: what it has accepted arrives",
		dir:  "soak/server", test: "TestNATSIsAway",
	},
	{
		name: "abuse",
		what: "how long the requests of others take while clients do their worst; needs Linux, and a machine that does nothing else",
		dir:  "soak/server", test: "TestAbuse", apart: true,
	},
	{
		name: "amplify",
		what: "small requests that become large: the server's memory, and that others are served; needs Linux",
		dir:  "soak/server", test: "TestAmplification",
	},
	{
		name: "slow-bodies",
		what: "hundreds of bodies of one address that do not come: the server's memory, and that others are served; needs Linux",
		dir:  "soak/server", test: "TestSlowBodies",
	},
	{
		name: "flood",
		what: "how long the requests of others take beside a flood of one address; needs Linux, and a machine that does nothing else",
		dir:  "soak/server", test: "TestFlood", apart: true,
	},
	{
		name: "load",
		what: "how many calls a second the whole server accepts and delivers, and the ratio to a bare HTTP client",
		dir:  "soak/server", bench: "BenchmarkServer", args: []string{"-batches=200"}, apart: true,
	},
	{
		name: "failing",
		what: "how long a server takes to answer a call while 9,999 other destinations answer 503, and before",
		dir:  "soak/server", bench: "BenchmarkFailing", apart: true,
	},
	{
		name: "terminal",
		what: "the commands of a large store at a real terminal, interrupted from its keyboard; needs Linux",
		dir:  "cmd/hookferry", test: "TestTerminalStore",
	},
	{
		name: "upload",
		what: "that a list of a million members takes no memory of its own",
		dir:  "cmd/hookferry/internal/admin", test: "TestLongUpload",
	},
	{name: "page", what: "what the page costs the browser while 1,000 events a second come and 10,000 dead letters are retried",
		dir: "cmd/hookferry/internal/page/e2e", program: []string{"./run", "smooth"}},
}
