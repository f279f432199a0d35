package main

var fileStore = []soak{
	{
		name: "file-chaos",
		what: "two forwarders on files before receivers that do their worst, one of them killed again and again; nothing is lost",
		dir:  "soak/filestore",
		test: "TestChaos",
	},
	{
		name: "file-kill",
		what: "processes that put and settle in a file, killed at random moments; nothing is lost, and nothing comes back",
		dir:  "soak/filestore",
		test: "TestKill",
	},
	{
		name: "file-kill-sync",
		what: "processes that sync audiences and delete users in a file, killed at random moments; each change is told of once",
		dir:  "soak/filestore",
		test: "TestKillDuringSync",
	},
	{
		name: "file-disk",
		what: "full disks, by a bound on files and on a file system of 32 MB; it takes the right to mount",
		dir:  "soak/filestore",
		test: "TestDiskFull",
	},
	{
		name: "file-sizes",
		what: "up to a million small calls, and a thousand of 32 KB, through a file in little memory",
		dir:  "soak/filestore",
		test: "TestSizes",
	},
	{
		name: "settle-1gb",
		what: "1 GB of outcomes settled in a file by one call: memory, how long others wait, and that all is there; needs Linux",
		dir:  "soak/filestore",
		test: "TestSettleGigabyte",
	},
	{
		name: "file-crashmodel",
		what: "a random history of a file whose disk fails and whose process ends, against a model",
		dir:  "webhook/boltqueue",
		test: "TestCrashModel",
	},
	{
		name: "file-power",
		what: "what losses of power at random moments leave of a file, and the end of its process before them",
		dir:  "webhook/boltqueue",
		test: "TestPowerModel",
	},
	{
		name: "file-torn",
		what: "the last entry of the journal, written in part, at random places",
		dir:  "webhook/boltqueue",
		test: "TestTornEntry",
	},
	{
		name: "file-damage",
		what: "pages and bytes of a file spoilt and cut off at random places: noticed, or harmless, and the rest is rescued",
		dir:  "webhook/boltqueue",
		test: "TestDamage",
	},
	{
		name: "file-segments",
		what: "the order of what is due, over many segments of a file",
		dir:  "webhook/boltqueue",
		test: "TestSegmentsAreReadInOrder",
	},
	{
		name: "file-retries",
		what: "retries that come into a lane of a file while it is read",
		dir:  "webhook/boltqueue",
		test: "TestRetriesWhileReading",
	},
	{
		name: "file-compact",
		what: "a file that several open and compact beside each other",
		dir:  "webhook/boltqueue",
		test: "TestCompactBesideOpen",
	},
	{
		name:  "file-backlog",
		what:  "what a million deliveries that wait in a file cost: memory, bytes, an Open, and puts and deliveries beside them",
		dir:   "soak/filestore",
		bench: "BenchmarkBacklog",
		args:  []string{"-backlog=1000000", "-benchtime=100x"},
		apart: true,
	},
	{
		name:  "file-paced",
		what:  "how long puts in a file take at 20,000 deliveries a second",
		dir:   "soak/filestore",
		bench: "BenchmarkPutPaced",
		args:  []string{"-benchtime=20000x"},
		apart: true,
	},
}
