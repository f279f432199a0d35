package spool_test

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"
)

// childOf is an environment variable. If it is set, the test binary runs as a child process
// of that kind.
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
