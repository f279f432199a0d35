package main

var fileStore = []soak{
	{
		name: "file-chaos",
		what: "two forwarders on folders before receivers that do their worst, one of them killed again and again; nothing is lost",
		dir:  "soak/filestore",
		test: "TestChaos",
	},
	{
		name: "file-kill",
		what: "processes that put and settle in a folder, killed at random moments; nothing is lost, and nothing comes back",
		dir:  "soak/filestore",
		test: "TestKill",
	},
	{
		name: "file-kill-sync",
		what: "processes that sync audiences and delete users in a folder, killed at random moments; each change is told of",
		dir:  "soak/filestore",
		test: "TestKillDuringSync",
	},
	{
		name: "file-disk",
		what: "full disks, by a bound on files and on a file system of 32 MB, which the store itself fills, too; it takes the right to mount",
		dir:  "soak/filestore",
		test: "TestDiskFull",
	},
	{
		name: "file-sizes",
		what: "up to a million small calls, and a thousand of 32 KB, through a folder in little memory",
		dir:  "soak/filestore",
		test: "TestSizes",
	},
	{
		name: "settle-1gb",
		what: "1 GB of outcomes settled in a folder by one call: memory, how long others wait, and that all is there; needs Linux",
		dir:  "soak/filestore",
		test: "TestSettleGigabyte",
	},
	{
		name: "file-crash",
		what: "the end of the process, and losses of power, at random operations of the disk: what was stored is there",
		dir:  "webhook/filequeue",
		test: "TestCrash",
	},
	{
		name: "file-failing",
		what: "random operations of the disk that fail: each call did what it says, and the store works again by itself",
		dir:  "webhook/filequeue",
		test: "TestFailingDisk",
	},
	{
		name: "file-bits",
		what: "a wrong bit anywhere in a store: noticed, or harmless, and no other delivery is hidden",
		dir:  "webhook/filequeue",
		test: "TestBitFlip",
	},
	{
		name: "file-damage",
		what: "files of a store removed, cut short and spoilt: all that is missing is told, and the rest is rescued",
		dir:  "webhook/filequeue",
		test: "TestNoLossIsSilent",
	},
	{
		name: "file-model",
		what: "random operations on the store in a folder, compared with a model of the contract",
		dir:  "webhook/filequeue",
		test: "TestStore",
	},
	{
		name:  "file-backlog",
		what:  "what a million deliveries that wait in a folder cost: memory, bytes, an Open, and puts and deliveries beside them",
		dir:   "soak/filestore",
		bench: "BenchmarkBacklog",
		args:  []string{"-backlog=1000000", "-benchtime=100x"},
		apart: true,
	},
	{
		name:  "file-paced",
		what:  "how long puts in a folder take at 20,000 deliveries a second",
		dir:   "soak/filestore",
		bench: "BenchmarkPutPaced",
		args:  []string{"-benchtime=20000x"},
		apart: true,
	},
}
