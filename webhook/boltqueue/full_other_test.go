//go:build !unix

package boltqueue_test

// limitDir is not used: there is no bound on a process's files to reach.
const limitDir = "BOLTQUEUE_LIMIT_DIR"

func limitChild(string) {}
