package spool_test

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"
)

// childOf names the environment variable that makes the test binary a process
// of one of these kinds.
const childOf = "SPOOL_TEST_CHILD"

var children = map[string]func() error{
	"kill": killChild,
	"lock": lockChild,
	"full": fullChild,
}

func TestMain(m *testing.M) {
	if kind := os.Getenv(childOf); kind != "" {
		if err := children[kind](); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}
