package main

var client = []soak{
	{name: "client", dir: "soak/client", test: "TestSoak", what: "two clients at full speed before a collector that misbehaves; memory, goroutines and files stay bounded"},
	{name: "client-kill", dir: "soak/client", test: "TestKill", what: "kill -9 of a process that tracks with a spool; nothing accepted is lost"},
	{name: "client-outage", dir: ".", test: "TestAnOutageOfAnHour", what: "an hour without a collector at 2,000 messages a second, in virtual time"},
	{name: "client-disk", dir: ".", test: "TestFullDisk", what: "a full disk below the client's spool: a mount where that is permitted, and a bound on the size of files"},
	{name: "client-race", dir: ".", test: "TestFirstCallRacesShutdown", what: "the first calls race Flush, Shutdown and Close; best with -race"},
	{name: "spool-kill", dir: "internal/spool", test: "TestKill", what: "kill -9 of a process that writes a spool; every message whose Append returned is found"},
	{name: "spool-model", dir: "internal/spool", test: "TestFoundAfterEveryStep", what: "copies of the spool's folder after every step have what was appended and not removed"},
	{name: "spool-disk", dir: "internal/spool", test: "TestFullDisk|TestFileLimit", what: "a full disk below the spool"},
	{name: "spool-damage", dir: "internal/spool", test: "TestFlippedBits", what: "every bit of a spool's file is flipped, one after the other"},
	{name: "spool-race", dir: "internal/spool", test: "TestLateReaders|TestManyAtOnce", what: "many rounds of goroutines that share segments; best with -race"},
	{name: "spool-open", dir: "internal/spool", bench: "BenchmarkOpen", what: "how long it takes to open a spool of half a gigabyte"},
	{name: "json", dir: "internal/esjson", test: "TestGenerated", what: "generated texts and values through the encoder, held against encoding/json"},
	{name: "json-node", dir: "internal/esjson", test: "TestAppendAgreesWithNode", what: "generated texts and values through the encoder and through Node's JSON"},
	{name: "json-time", dir: "internal/esjson", test: "TestAppendTakesLinearTime", what: "texts that take minutes unless the encoder's time is linear"},
}
