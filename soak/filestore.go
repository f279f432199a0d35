package main

var fileStore = []soak{
	{
		name: "file-chaos",
		what: "two forwarders with a store in a folder each, and receivers that fail in every way; one forwarder is killed again and again; nothing is lost",
		dir:  "soak/filestore",
		test: "TestChaos",
	},
	{
		name: "file-kill",
		what: "processes that put and settle in a folder are killed at random moments; nothing is lost, nothing settled comes back, and each key keeps its order",
		dir:  "soak/filestore",
		test: "TestKill",
	},
	{
		name: "file-kill-sync",
		what: "processes that sync audiences and delete users in a folder are killed at random moments; each change is announced",
		dir:  "soak/filestore",
		test: "TestKillDuringSync",
	},
	{
		name: "file-disk",
		what: "full disks: by a limit on files, and on a file system of 32 MB that the test or the store fills; needs the right to mount",
		dir:  "soak/filestore",
		test: "TestDiskFull",
	},
	{
		name: "file-sizes",
		what: "up to a million small calls, and a thousand of 32 KB, through a store in a folder, in little memory",
		dir:  "soak/filestore",
		test: "TestSizes",
	},
	{
		name: "settle-1gb",
		what: "one call that settles 1 GB of outcomes in a folder: memory, how long other calls wait, and that nothing is missing; needs Linux",
		dir:  "soak/filestore",
		test: "TestSettleGigabyte",
	},
	{
		name: "file-crash",
		what: "the process ends, or power is lost, at random operations of the disk; everything that was stored is there",
		dir:  "webhook/filequeue",
		test: "TestCrash",
	},
	{
		name: "file-failing",
		what: "random operations of the disk fail; each call did what its result says, and the store recovers by itself",
		dir:  "webhook/filequeue",
		test: "TestFailingDisk",
	},
	{
		name: "file-bits",
		what: "one wrong bit anywhere in a store is noticed or harmless, and hides no other delivery",
		dir:  "webhook/filequeue",
		test: "TestBitFlip",
	},
	{
		name: "file-damage",
		what: "files of a store are removed, cut short or overwritten; Check reports everything that is missing, and Rescue copies the rest",
		dir:  "webhook/filequeue",
		test: "TestNoLossIsSilent",
	},
	{
		name: "file-model",
		what: "random operations on the file store, compared with a model of the contract",
		dir:  "webhook/filequeue",
		test: "TestStore",
	},
	{
		name:  "file-backlog",
		what:  "the cost of a million deliveries that wait in a folder: memory, disk space, time of Open, and speed of puts and deliveries beside them",
		dir:   "soak/filestore",
		bench: "BenchmarkBacklog",
		args:  []string{"-backlog=1000000", "-benchtime=100x"},
		apart: true,
	},
	{
		name:  "file-paced",
		what:  "how long puts into a folder take at 20,000 deliveries a second",
		dir:   "soak/filestore",
		bench: "BenchmarkPutPaced",
		args:  []string{"-benchtime=20000x"},
		apart: true,
	},
}
