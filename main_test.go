package analytics

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if os.Getenv(killEndpoint) != "" {
		fmt.Println(killChild())
		os.Exit(1)
	}
	if os.Getenv(soakCollector) != "" {
		if err := soakChild(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}
