package main

var docs = []soak{
	{
		name: "scaling",
		what: "the simulation behind docs/scaling.md against a forwarder in virtual time, and its largest table; -for bounds the first alone",
		dir:  "soak/scaling",
		test: "TestModelDoesWhatTheForwarderDoes|TestGuideOfAHundredBillion|TestWaitingTimeIsThatOfErlangC",
	},
	{
		name: "receivers",
		what: "the receivers of docs/receivers.md in JavaScript, Python, Ruby and PHP, on their interpreters",
		dir:  "docs",
		test: "TestReceivers",
	},
}
