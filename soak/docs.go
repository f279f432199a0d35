package main

var docs = []soak{
	{
		name: "outage",
		what: "the table of outages in BENCHMARKS.md, by the real scheduler in virtual time",
		dir:  "webhook/internal/schedule",
		test: "TestOutage",
	},
	{
		name: "receivers",
		what: "the receivers of docs/receivers.md in JavaScript, Python, Ruby and PHP, on their interpreters",
		dir:  "docs",
		test: "TestReceivers",
	},
}
